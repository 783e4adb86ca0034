"""The queue of git operations, with test handlers: its guarantees do not depend on git."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Database, DatabaseUnavailableError
from sandyard.platform.db.models import Event, GitOperation, Project, ProjectMember, Sandbox, User
from sandyard.platform.domain.git.model import OperationKind
from sandyard.platform.domain.git.operations.runner import (
    MAX_ATTEMPTS,
    MAX_IMMEDIATE_REPORTS,
    Handler,
    Job,
    OperationFailedError,
    OperationRunner,
)
from sandyard.platform.domain.git.repository_queue import RepositoryQueue
from sandyard.platform.domain.repositories.errors import ConflictsError
from sandyard.platform.domain.repositories.model import Conflict
from sandyard.platform.domain.sandboxes.model import utc_now

DEADLINE = 20
COMMIT, PUSH = OperationKind.COMMIT, OperationKind.PUSH


class OperationsHarness:
    """Operations on a real database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.user, self.project = make_ordered_id("usr_"), make_ordered_id("prj_")
        self.restart()

    def restart(self) -> None:
        """Start the operations of a new process."""
        self.handlers: dict[OperationKind, Handler] = {}
        self.operations = OperationRunner(self.database, RepositoryQueue(), self.handlers)

    async def prepare(self) -> None:
        now = utc_now()
        async with self.database.transaction() as tx:
            tx.add(User(id=self.user, name=self.user, role="member", created_at=now))
            await tx.session.flush()
            tx.add(Project(id=self.project, owner_id=self.user, name="p", settings={}, created_at=now, updated_at=now))

    async def create_sandbox(self) -> Sandbox:
        row = Sandbox(
            id=make_ordered_id("sbx_"),
            owner_id=self.user,
            project_id=self.project,
            template="base",
            idempotency_key=make_ordered_id("key_"),
            status="running",
            idle_seconds=300,
            created_at=utc_now(),
        )
        async with self.database.transaction() as tx:
            tx.add(row)
        return row

    async def submit(self, kind: OperationKind, sandbox: Sandbox, **arguments: Any) -> GitOperation:
        return await self.operations.submit(kind, sandbox, project_id=self.project, user_id=self.user, **arguments)

    async def wait(self, row: GitOperation) -> GitOperation:
        async with asyncio.timeout(DEADLINE):
            return await self.operations.wait(row.id)

    async def list_event_kinds(self, row: GitOperation) -> list[str]:
        async with self.database.reading() as session:
            found = await session.scalars(select(Event).where(Event.kind.startswith("git.")).order_by(Event.seq))
            return [event.kind for event in found if event.data["operationId"] == row.id]


@pytest.fixture
async def harness(database: Database) -> AsyncIterator[OperationsHarness]:
    made = OperationsHarness(database)
    await made.prepare()
    yield made
    await made.operations.close()


async def test_stores_runs_and_publishes_operation(harness: OperationsHarness) -> None:
    async def commit(job: Job) -> dict[str, Any]:
        job.progress("writing", 50)
        return {"commit": job.arguments["message"]}

    harness.handlers[COMMIT] = commit
    row = await harness.wait(await harness.submit(COMMIT, await harness.create_sandbox(), message="fix: it"))
    assert (row.status, row.detail, row.attempts) == ("completed", {"commit": "fix: it"}, 1)
    assert row.started_at and row.finished_at
    assert await harness.list_event_kinds(row) == ["git.queued", "git.started", "git.progress", "git.completed"]


async def test_failure_keeps_details(harness: OperationsHarness) -> None:
    async def push(job: Job) -> dict[str, Any]:
        raise ConflictsError([Conflict("a.txt", "content")])

    harness.handlers[PUSH] = push
    row = await harness.wait(await harness.submit(PUSH, await harness.create_sandbox()))
    assert (row.status, row.error_code) == ("failed", "conflicts")
    error = OperationFailedError(row)
    assert (error.status, error.code) == (409, "conflicts")
    assert error.extra["operationId"] == row.id
    assert error.extra["files"] == [{"path": "a.txt", "kind": "content", "detail": ""}]


async def test_internal_error_shows_no_details(harness: OperationsHarness) -> None:
    async def push(job: Job) -> dict[str, Any]:
        raise ValueError("secret")

    harness.handlers[PUSH] = push
    row = await harness.wait(await harness.submit(PUSH, await harness.create_sandbox()))
    assert (row.status, row.error_code) == ("failed", "internal")
    assert row.error is not None and "secret" not in row.error
    assert OperationFailedError(row).status == 500


async def test_runs_operations_of_sandbox_in_order(harness: OperationsHarness) -> None:
    seen: list[int] = []
    inside = 0

    async def commit(job: Job) -> dict[str, Any]:
        nonlocal inside
        inside += 1
        assert inside == 1
        await asyncio.sleep(0.002)
        inside -= 1
        seen.append(job.arguments["number"])
        return {}

    harness.handlers[COMMIT] = commit
    sandbox = await harness.create_sandbox()
    rows = [await harness.submit(COMMIT, sandbox, number=number) for number in range(10)]
    for row in rows:
        await harness.wait(row)
    assert seen == list(range(10))


async def test_one_writer_per_repository_with_queue_position(harness: OperationsHarness) -> None:
    go = asyncio.Event()
    writing = 0

    async def push(job: Job) -> dict[str, Any]:
        nonlocal writing
        async with job.wait_turn("repo", "owner"):
            writing += 1
            assert writing == 1
            await go.wait()
            writing -= 1
        return {}

    harness.handlers[PUSH] = push
    rows = [await harness.submit(PUSH, await harness.create_sandbox()) for _ in range(4)]
    async with asyncio.timeout(DEADLINE):
        while {
            (harness.operations.get_position(row.id), (await harness.operations.get(row.id)).status) for row in rows
        } != {
            (0, "running"),
            (1, "queued"),
            (2, "queued"),
            (3, "queued"),
        }:
            await asyncio.sleep(0.01)
    last = next(row for row in rows if harness.operations.get_position(row.id) == 3)
    assert last.id == max(row.id for row in rows if harness.operations.get_position(row.id))
    go.set()
    assert {(await harness.wait(row)).status for row in rows} == {"completed"}
    assert await harness.list_event_kinds(last) == [
        "git.queued",
        "git.started",
        "git.queued",
        "git.started",
        "git.completed",
    ]


async def test_nested_turns_show_the_position_in_the_one_that_is_waited_for(harness: OperationsHarness) -> None:
    go = asyncio.Event()

    async def commit(job: Job) -> dict[str, Any]:
        async with job.wait_turn("mirror", "owner"):
            await go.wait()
        return {}

    async def push(job: Job) -> dict[str, Any]:
        async with job.wait_turn("repo", "owner"):
            async with job.wait_turn("mirror", "owner"):
                pass
            return {"position": harness.operations.get_position(job.operation.id)}

    harness.handlers.update({COMMIT: commit, PUSH: push})
    operations = harness.operations
    first = await harness.submit(COMMIT, await harness.create_sandbox())
    async with asyncio.timeout(DEADLINE):
        while operations.get_position(first.id) != 0:
            await asyncio.sleep(0.01)
        second = await harness.submit(PUSH, await harness.create_sandbox())
        while (operations.get_position(second.id), (await operations.get(second.id)).status) != (1, "queued"):
            await asyncio.sleep(0.01)
    go.set()
    assert (await harness.wait(second)).detail == {"position": 0}
    assert operations.get_position(second.id) is None


async def test_restart_keeps_order(harness: OperationsHarness) -> None:
    begun: list[str] = []
    go = asyncio.Event()

    async def block(job: Job) -> dict[str, Any]:
        async with job.wait_turn("repo", "owner"):
            await job.store(seen=True)
            await asyncio.Event().wait()
        return {}

    async def push(job: Job) -> dict[str, Any]:
        async with job.wait_turn("repo", "owner"):
            begun.append(job.operation.id)
            await go.wait()
            return {"seen": job.arguments.get("seen", False)}

    harness.handlers[PUSH] = block
    rows = [await harness.submit(PUSH, await harness.create_sandbox()) for _ in range(5)]
    async with asyncio.timeout(DEADLINE):
        while not any([(await harness.operations.get(row.id)).arguments for row in rows]):
            await asyncio.sleep(0.01)
    await harness.operations.close()  # like a process that ends in the middle of all of them
    harness.restart()
    harness.handlers[PUSH] = push
    assert await harness.operations.recover() == 5
    async with asyncio.timeout(DEADLINE):
        while any(harness.operations.get_position(row.id) is None for row in rows):
            await asyncio.sleep(0.01)
    go.set()
    ended = [await harness.wait(row) for row in rows]
    assert [row.status for row in ended] == ["completed"] * 5
    assert sum(row.detail["seen"] for row in ended) == 1
    assert begun[1:] == sorted(begun[1:])
    assert len(begun) == 5
    assert await harness.operations.recover() == 0


async def test_gives_up_after_repeated_interruptions(harness: OperationsHarness) -> None:
    async def block(job: Job) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    harness.handlers[PUSH] = block
    row = await harness.submit(PUSH, await harness.create_sandbox())
    for attempt in range(1, MAX_ATTEMPTS + 1):
        async with asyncio.timeout(DEADLINE):
            while (await harness.operations.get(row.id)).attempts < attempt:
                await asyncio.sleep(0.01)
        await harness.operations.close()
        harness.restart()
        harness.handlers[PUSH] = block
        await harness.operations.recover()
    ended = await harness.wait(row)
    assert ended.status == "failed" and str(MAX_ATTEMPTS) in (ended.error or "")


async def test_waiting_operation_is_not_running(harness: OperationsHarness) -> None:
    go = asyncio.Event()

    async def push(job: Job) -> dict[str, Any]:
        await go.wait()
        return {}

    harness.handlers[PUSH] = push
    row = await harness.submit(PUSH, await harness.create_sandbox())
    assert (await harness.operations.wait(row.id, 0.05)).status in ("queued", "running")
    waiting = asyncio.ensure_future(harness.operations.wait(row.id))
    await asyncio.sleep(0.05)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    go.set()
    assert (await harness.wait(row)).status == "completed"


async def test_deletes_old_operations(harness: OperationsHarness) -> None:
    async def push(job: Job) -> dict[str, Any]:
        raise ConflictError

    harness.handlers[PUSH] = push
    row = await harness.wait(await harness.submit(PUSH, await harness.create_sandbox()))
    assert row.finished_at is not None
    await harness.operations.trim(utc_now() - row.finished_at)
    async with harness.database.reading() as session:
        assert await session.get(GitOperation, row.id) is None


async def test_repeats_operation_whose_result_was_not_stored(
    harness: OperationsHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def push(job: Job) -> dict[str, Any]:
        return {"attempt": job.operation.attempts}

    async def away(*_: Any, **__: Any) -> None:
        raise DatabaseUnavailableError

    harness.handlers[PUSH] = push
    with monkeypatch.context() as patched:
        patched.setattr(harness.operations, "finish", away)
        row = await harness.submit(PUSH, await harness.create_sandbox())
        await harness.operations.tasks.wait(DEADLINE)
    assert (await harness.operations.get(row.id)).status == "running"
    assert await harness.operations.recover(timedelta(hours=1)) == 0
    assert await harness.operations.recover() == 1
    assert (await harness.wait(row)).detail == {"attempt": 2}


async def test_limits_progress_events(harness: OperationsHarness) -> None:
    async def push(job: Job) -> dict[str, Any]:
        for number in range(5000):
            job.progress(f"Thing {number}", 1)
        return {}

    harness.handlers[PUSH] = push
    row = await harness.wait(await harness.submit(PUSH, await harness.create_sandbox()))
    kinds = await harness.list_event_kinds(row)
    assert kinds[-1] == "git.completed" and kinds.count("git.progress") <= MAX_IMMEDIATE_REPORTS + 1


async def test_repeated_push_before_start_is_same_operation(harness: OperationsHarness) -> None:
    sandbox, begun, go_on = await harness.create_sandbox(), asyncio.Event(), asyncio.Event()

    async def slow(job: Job) -> dict[str, Any]:
        begun.set()
        await go_on.wait()
        return {}

    harness.handlers |= {PUSH: slow, COMMIT: slow}
    first = await harness.submit(PUSH, sandbox)
    async with asyncio.timeout(DEADLINE):
        await begun.wait()
    second = await harness.submit(PUSH, sandbox)
    assert second.id != first.id  # the first may already have read the commits
    assert (await harness.submit(PUSH, sandbox)).id == second.id
    commit = await harness.submit(COMMIT, sandbox)
    third = await harness.submit(PUSH, sandbox)
    assert third.id not in (first.id, second.id)  # it has to push what was committed before it
    go_on.set()
    for row in (first, second, commit, third):
        assert (await harness.wait(row)).status == "completed"


async def test_repeated_crashes_leave_one_push(harness: OperationsHarness) -> None:
    sandbox = await harness.create_sandbox()

    async def never(job: Job) -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    asked = set()
    for _ in range(4):
        harness.restart()
        harness.handlers[PUSH] = never
        asked.add((await harness.submit(PUSH, sandbox)).id)
        await harness.operations.recover()
        await harness.operations.close()
    assert len(asked) == 1


@pytest.mark.parametrize("how", ["removed", "disabled"])
async def test_operations_of_former_members_do_not_start(harness: OperationsHarness, how: str) -> None:
    """They would use the project's credential. Those of others continue."""
    member, ran, go, queued = make_ordered_id("usr_"), list[str](), asyncio.Event(), asyncio.Event()
    async with harness.database.transaction() as tx:
        tx.add(User(id=member, name=member, role="member", created_at=utc_now()))
        await tx.session.flush()
        tx.add(ProjectMember(project_id=harness.project, user_id=member, added_at=utc_now()))

    async def commit(job: Job) -> dict[str, Any]:
        await go.wait()
        return {}

    async def push(job: Job) -> dict[str, Any]:
        if job.operation.user_id == member:
            queued.set()
        async with job.wait_turn("repo", "owner"):
            ran.append(job.operation.id)
            await go.wait()
        return {}

    harness.handlers.update({COMMIT: commit, PUSH: push})
    operations, project = harness.operations, harness.project
    own = await harness.submit(PUSH, await harness.create_sandbox())
    async with asyncio.timeout(DEADLINE):
        while not ran:
            await asyncio.sleep(0.01)
    in_repository_queue = await operations.submit(
        PUSH, await harness.create_sandbox(), project_id=project, user_id=member
    )
    sandbox = await harness.create_sandbox()
    await harness.submit(COMMIT, sandbox)
    behind_another = await operations.submit(PUSH, sandbox, project_id=project, user_id=member)
    of_the_platform = await operations.submit(PUSH, sandbox, project_id=project, user_id=None)
    async with asyncio.timeout(DEADLINE):
        await queued.wait()
    async with harness.database.transaction() as tx:
        if how == "removed":
            await tx.session.execute(delete(ProjectMember).where(ProjectMember.user_id == member))
        else:
            await tx.session.execute(update(User).where(User.id == member).values(disabled_at=utc_now()))
    go.set()
    for submitted in (in_repository_queue, behind_another):
        row = await harness.wait(submitted)
        assert (row.status, row.error_code) == ("failed", "owner_without_access")
        assert row.error is not None and "no longer has access" in row.error
    for row in (own, of_the_platform):
        assert (await harness.wait(row)).status == "completed"
    assert set(ran) == {own.id, of_the_platform.id}
