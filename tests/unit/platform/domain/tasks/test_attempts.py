"""Scheduling of attempts, and stopping, retrying and picking them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import select

from sandyard.kit.errors import BusyError, ConflictError, NotFoundError
from sandyard.platform.db.database import DatabaseUnavailableError
from sandyard.platform.db.models import Attempt, ModelProvider, Sandbox, Session, Task, Turn
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.tasks.attempts import MAX_PENDING_CHARACTERS, MAX_PENDING_MESSAGES
from sandyard.platform.domain.tasks.errors import ColumnFullError
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from tests.unit.platform.domain.tasks.board import Board

_LAST = {AttemptStatus.FAILED: "advance", AttemptStatus.CANCELLED: "retry"}


@pytest.mark.both_databases
async def test_limits_and_order(board: Board) -> None:
    """Limits of the project, the user and the machine; ordered by priority, then by age."""
    other_owner = await board.create_person("other")
    narrow = await board.create_project(other_owner, tasks={"parallel": 1})
    first = await board.create_task("first", project=narrow)
    second = await board.create_task("second", project=narrow)
    urgent = await board.create_task("urgent", project=narrow, priority=5)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    assert board.executor.begun == [((await board.get_attempt(urgent)).id, 1)]
    waiting = await board.attempts.list_queue(other_owner)
    assert [(row.task_id, place) for row, place, _ in waiting] == [(first.id, 1), (second.id, 2)]
    assert "tasks.parallel" in waiting[0][2]
    assert await board.attempts.list_queue(board.owner) == [], "not visible to others"

    await board.finish_round(await board.get_attempt(urgent), AttemptStatus.IN_REVIEW)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    assert board.executor.begun[1][0] == (await board.get_attempt(first)).id

    mine = [await board.create_task(f"mine {number}") for number in range(4)]
    await board.wait_until(lambda: len(board.executor.begun) == 4)
    started = {attempt for attempt, _ in board.executor.begun[2:]}
    assert started == {(await board.get_attempt(task)).id for task in mine[:2]}
    assert "SANDYARD_PARALLEL_ATTEMPTS" in (await board.attempts.list_queue(board.owner))[0][2]
    assert sorted((await board.attempts.get_queue_positions()).values()) == [1, 2, 3]


async def start_order(board: Board) -> list[str]:
    """Return the titles of the tasks whose attempts have started, in order."""
    async with board.database.reading() as session:
        query = select(Attempt.id, Task.title).join(Task, Task.id == Attempt.task_id)
        titles = {row[0]: row[1] for row in (await session.execute(query)).all()}
    return [titles[attempt] for attempt, _ in board.executor.begun]


@pytest.mark.both_databases
async def test_users_take_turns_whatever_their_priorities(board: Board) -> None:
    hog, wide = await board.create_person("hog"), {"parallel": 50}
    crowded, own = await board.create_project(hog, tasks=wide), await board.create_project(tasks=wide)
    hogs = [await board.create_task(f"hog {number}", project=crowded, priority=90 + number) for number in range(5)]
    mine = [await board.create_task(f"mine {number}", project=own) for number in range(2)]
    order = await board.attempts.get_queue_positions()
    places = [order[(await board.get_attempt(task)).id] for task in (*reversed(hogs), *mine)]
    assert places == [1, 3, 5, 6, 7, 2, 4]
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 3)
    assert await start_order(board) == ["hog 4", "mine 0", "hog 3"]

    late = [await board.create_task(f"late {number}", project=crowded, priority=100) for number in range(5)]
    order = await board.attempts.get_queue_positions()
    assert order[(await board.get_attempt(mine[1])).id] == 1, "its owner has the fewest working attempts"
    await board.finish_round(await board.get_attempt(hogs[4]), AttemptStatus.IN_REVIEW)
    await board.wait_until(lambda: len(board.executor.begun) == 4)
    assert (await start_order(board))[3] == "mine 1"
    await board.finish_round(await board.get_attempt(hogs[3]), AttemptStatus.IN_REVIEW)
    await board.wait_until(lambda: len(board.executor.begun) == 5)
    assert (await board.attempts.get_queue_positions())[(await board.get_attempt(late[1])).id] == 1
    assert (await start_order(board))[4] == "late 0"


async def test_full_project_does_not_delay_other_projects_of_its_users(board: Board) -> None:
    narrow, wide = await board.create_project(tasks={"parallel": 1}), await board.create_project(tasks={"parallel": 50})
    for number in range(5):
        await board.create_task(f"narrow {number}", project=narrow, priority=100)
    await board.create_task("wide", project=wide)
    crowded = await board.create_project(await board.create_person("hog"), tasks={"parallel": 50})
    for number in range(5):
        await board.create_task(f"hog {number}", project=crowded)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 3)
    assert await start_order(board) == ["narrow 0", "hog 0", "wide"]


@pytest.mark.both_databases
@pytest.mark.parametrize(
    ("turn", "sandbox", "counts"),
    [("waiting", "paused", False), ("waiting", "running", True), ("running", "paused", True)],
)
async def test_paused_attempt_that_waits_for_answer_holds_no_slot(
    board: Board, turn: str, sandbox: str, counts: bool
) -> None:
    for number in range(4):
        await board.create_task(str(number), project=await board.create_project(tasks={"parallel": 50}))
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 3)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Attempt, board.executor.begun[0][0])
        assert row is not None
        common = {"owner_id": row.owner_id, "project_id": row.project_id, "template": "base", "created_at": utc_now()}
        tx.add(Session(id=row.session_id, title="x", sandbox_id="sbx_1", updated_at=utc_now(), **common))
        await tx.session.flush()
        box = {"session_id": row.session_id, "idempotency_key": "x", "status": sandbox, "idle_seconds": 1}
        tx.add(Sandbox(id="sbx_1", **box, **common))
        tx.add(
            Turn(
                id="trn_1",
                session_id=row.session_id,
                number=1,
                origin="task",
                user_id=row.owner_id,
                status=turn,
                usage={},
                queued_at=utc_now(),
            )
        )
    ((_, _, reason),) = await board.attempts.list_queue(board.owner)
    assert ("limit" in reason) is counts
    if not counts:
        board.attempts.nudge()
        await board.wait_until(lambda: len(board.executor.begun) == 4)


async def test_uses_demo_agent_only_without_models(board: Board) -> None:
    """Unless the project (as the sample does) or the task names it."""
    sample = await board.create_project(agent={"default": "demo"})
    assert (await board.get_attempt(await board.create_task())).agent == "demo"
    async with board.database.transaction() as tx:
        tx.add(
            ModelProvider(
                id="mdl_1",
                project_id=board.project.id,
                name="OpenAI",
                kind="openai",
                base_url="https://api.openai.com/v1",
                hint="…",
                models=[],
                prices={},
                created_at=utc_now(),
                updated_at=utc_now(),
            )
        )
    assert (await board.get_attempt(await board.create_task())).agent == "codex"
    assert (await board.get_attempt(await board.create_task(agent="demo"))).agent == "demo"
    assert (await board.get_attempt(await board.create_task(project=sample))).agent == "demo"
    other = await board.create_project()
    assert (await board.get_attempt(await board.create_task(project=other))).agent == "demo", (
        "the key belongs to another project"
    )


@pytest.mark.both_databases
async def test_restart_starts_admitted_attempts(board: Board) -> None:
    task, broken = await board.create_task(), await board.create_task()
    attempt, lost = await board.get_attempt(task), await board.get_attempt(broken)
    async with board.database.transaction() as tx:
        for item in (attempt, lost):
            row = await tx.session.get(Attempt, item.id)
            assert row is not None
            row.status = AttemptStatus.RUNNING
    board.executor.states[lost.id] = "broken"
    board.attempts.start(board.executor)
    await board.wait_until(lambda: bool(board.executor.begun))
    assert board.executor.begun == [(attempt.id, 1)]
    async with asyncio.timeout(20):
        while (await board.get_attempt(broken)).status == AttemptStatus.RUNNING:
            await asyncio.sleep(0.01)
    assert (await board.get_attempt(broken)).status == AttemptStatus.FAILED
    async with board.database.reading() as session:
        found = await session.get(Task, broken.id)
    assert found is not None
    assert "Retry" in (found.error or "")


async def test_stop(board: Board) -> None:
    """A queued attempt never starts; a running one is asked to end, and ends as cancelled, not as failed."""
    task = await board.create_task(attempts=[{"agent": "demo"}, {"agent": "demo"}])
    running = await board.get_attempt(task)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Attempt, running.id)
        assert row is not None
        row.status = AttemptStatus.RUNNING
    await board.tasks.move(board.owner, task.id, Column.CANCELLED)
    one, two = (await board.attempts.list_for_task(board.owner, task.id))[:2]
    assert (one.status, two.status) == (AttemptStatus.RUNNING, AttemptStatus.CANCELLED)
    assert set(board.turns.cancelled) == {one.session_id, two.session_id}
    await board.attempts.fail(one.id, "turn_failed", "whatever")
    assert (await board.get_attempt(task)).status == AttemptStatus.CANCELLED
    await board.wait_until(lambda: one.session_id in board.turns.ended)


async def test_retry(board: Board) -> None:
    task = await board.create_task()
    with pytest.raises(ConflictError, match="nothing to retry"):
        await board.tasks.retry(board.owner, task.id)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    attempt = await board.get_attempt(task)
    await board.attempts.fail(attempt.id, "verify_failed", "It still fails.")
    await board.tasks.retry(board.owner, task.id)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    again = await board.get_attempt(task)
    assert board.executor.begun[1] == (attempt.id, 2)
    assert (again.work["kind"], again.work["ended"]) == ("retry", "It still fails.")
    assert (again.session_id, again.error) == (attempt.session_id, None)
    assert again.agent == "demo"

    await board.tasks.update(board.owner, task.id, {"agent": "codex", "model": "gpt-5.5"})
    await board.attempts.fail(attempt.id, "verify_failed", "It still fails.")
    await board.tasks.retry(board.owner, task.id)
    other = await board.get_attempt(task)
    assert (other.agent, other.model, other.round) == ("codex", "gpt-5.5", 3), "as the task is configured now"
    assert other.session_id == attempt.session_id, "with the work done so far"


async def test_retry_with_message(board: Board) -> None:
    task = await board.create_task()
    with pytest.raises(ConflictError, match="nothing to retry"):
        await board.tasks.retry(board.owner, task.id, message="Go on.")
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    attempt = await board.get_attempt(task)
    await board.attempts.fail(attempt.id, "agent_gave_up", "It was refused something.")
    with pytest.raises(ConflictError):
        await board.tasks.retry(board.owner, task.id, message="Go on.", attempt_id="att_other")
    await board.tasks.retry(board.owner, task.id, message="Paint it instead.", attempt_id=attempt.id)
    again = await board.get_attempt(task)
    assert [item["words"] for item in again.work["said"]] == ["Paint it instead."]
    assert (await board.tasks.get(board.owner, task.id)).error is None
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    await board.finish_round(again, AttemptStatus.IN_REVIEW)
    await board.tasks.move(board.owner, task.id, Column.DONE)
    with pytest.raises(ConflictError, match="nothing to continue"):
        await board.tasks.retry(board.owner, task.id, message="Once more.")


@pytest.mark.both_databases
@pytest.mark.parametrize("status", [AttemptStatus.FAILED, AttemptStatus.CANCELLED])
async def test_retry_is_one_transaction(board: Board, status: AttemptStatus, monkeypatch: pytest.MonkeyPatch) -> None:
    """If interrupted, nothing has happened: no task in progress without work on it, and no work on a task that is not
    in progress."""
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    attempt = await board.get_attempt(task)
    if status == AttemptStatus.FAILED:
        await board.finish_round(attempt, AttemptStatus.IN_REVIEW)
        async with board.database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id)
            assert row is not None
            row.status = status
    else:
        await board.tasks.stop(board.owner, task.id)
        await board.attempts.fail(attempt.id, "cancelled", "It was stopped.")
    before = (await board.tasks.get(board.owner, task.id)).status

    async def cut_off(*_: object, **__: object) -> None:
        raise DatabaseUnavailableError

    with monkeypatch.context() as broken:
        # what the second and the third transaction started with
        broken.setattr(board.tasks if status == AttemptStatus.FAILED else board.attempts, _LAST[status], cut_off)
        with pytest.raises(DatabaseUnavailableError):
            await board.tasks.retry(board.owner, task.id)
    assert (await board.tasks.get(board.owner, task.id)).status == before
    assert (await board.get_attempt(task)).status == status
    await board.tasks.retry(board.owner, task.id)
    assert (await board.tasks.get(board.owner, task.id)).status == Column.IN_PROGRESS
    await board.wait_until(lambda: len(board.executor.begun) == 2)


async def test_feedback_during_work_starts_next_round(board: Board) -> None:
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Attempt, (await board.get_attempt(task)).id)
        assert row is not None
        await board.attempts.send_back(tx, task, row, "also this", "grace")
        await board.attempts.send_back(tx, task, row, "and that", "grace")
    assert len(board.executor.begun) == 1
    await board.finish_round(await board.get_attempt(task), AttemptStatus.IN_REVIEW)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    again = await board.get_attempt(task)
    assert [item["words"] for item in again.work["said"]] == ["also this", "and that"]
    assert "pending" not in again.detail


async def test_pick(board: Board) -> None:
    task = await board.create_task(attempts=[{"agent": "demo"}] * 3)
    ids = [(await board.get_attempt(task, number)).id for number in (1, 2, 3)]
    with pytest.raises(ConflictError, match="Only an attempt that is ready"):
        await board.attempts.pick(board.owner, task.id, ids[0])
    for number in (1, 2, 3):
        await board.finish_round(await board.get_attempt(task, number), AttemptStatus.READY)
    with pytest.raises(NotFoundError):
        await board.attempts.pick(await board.create_person("stranger"), task.id, ids[0])
    with pytest.raises(NotFoundError):
        await board.attempts.pick(board.owner, task.id, "att_unknown")
    picked = await board.attempts.pick(board.owner, task.id, ids[1])
    assert (picked.status, picked.work["kind"]) == (AttemptStatus.QUEUED, "publish")
    assert picked.work["solo"], "comments on its pull request go there, too"
    statuses = [row.status for row in await board.attempts.list_for_task(board.owner, task.id)]
    assert statuses == [AttemptStatus.ARCHIVED, AttemptStatus.QUEUED, AttemptStatus.ARCHIVED]
    assert ProjectSettings.from_project(board.project).tasks.parallel == 4


async def test_retries_failed_start_later(board: Board) -> None:
    board.executor.failures.append(BusyError())
    attempt = await board.get_attempt(await board.create_task())
    board.attempts.start(board.executor)
    await board.wait_until(lambda: not board.executor.failures)
    board.attempts.nudge()
    await board.wait_until(lambda: bool(board.executor.begun))
    assert board.executor.begun == [(attempt.id, 1)]


async def test_last_attempt_fails_while_others_are_ready(board: Board) -> None:
    task = await board.create_task(attempts=[{"agent": "demo"}] * 2)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    await board.finish_round(await board.get_attempt(task, 1), AttemptStatus.READY)
    assert (await board.tasks.get(board.owner, task.id)).status == Column.IN_PROGRESS
    last = await board.get_attempt(task, 2)
    await board.attempts.fail(last.id, "turn_failed", "It fails.", number=7)
    assert (await board.get_attempt(task, 2)).status == AttemptStatus.RUNNING, "it is in another round"
    await board.attempts.fail(last.id, "turn_failed", "It fails.", number=1)
    known = await board.tasks.get(board.owner, task.id)
    assert (known.status, known.error) == (Column.IN_REVIEW, None)


async def test_feedback_survives_failed_round(board: Board) -> None:
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    await board.finish_round(await board.get_attempt(task), AttemptStatus.IN_REVIEW)
    await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="also this")
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    await board.attempts.fail((await board.get_attempt(task)).id, "engine_full", "There is no sandbox to be had.")
    await board.tasks.retry(board.owner, task.id)
    assert [item["words"] for item in (await board.get_attempt(task)).work["said"]] == ["also this"]


@pytest.mark.parametrize("how", ["moved", "retried"])
async def test_restarted_before_its_end_was_handled(board: Board, how: str) -> None:
    """The end of a task is handled by followers of events, which may lag behind."""
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    first = await board.get_attempt(task)
    await board.finish_round(first, AttemptStatus.IN_REVIEW)
    await board.tasks.move(board.owner, task.id, Column.DONE)
    if how == "retried":
        await board.tasks.retry(board.owner, task.id)
    else:
        await board.tasks.move(board.owner, task.id, Column.BACKLOG)
        await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    assert (await board.get_attempt(task, 1)).status == AttemptStatus.ARCHIVED
    await board.finish_round(await board.get_attempt(task, 2), AttemptStatus.IN_REVIEW)
    await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="Once more")
    assert [(await board.get_attempt(task, number)).round for number in (1, 2)] == [1, 2]


async def create_failed_attempt(board: Board, **fields: Any) -> tuple[Task, Attempt]:
    """Create a task whose only attempt has failed in its first round."""
    task = await board.create_task(**fields)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    attempt = await board.get_attempt(task)
    await board.attempts.fail(attempt.id, "agent_gave_up", "It was refused something.")
    return task, attempt


async def archive(board: Board) -> None:
    await board.projects.update(board.owner, board.project.id, archived=True)


async def test_allowing_permission_resumes_failed_attempt(board: Board) -> None:
    task, attempt = await create_failed_attempt(board)
    assert await board.tasks.resume_allowed(board.owner, attempt.session_id, ["rm -rf build"])
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    again = await board.get_attempt(task)
    assert "rm -rf build" in again.work["said"][0]["words"]
    assert not await board.tasks.resume_allowed(board.owner, attempt.session_id, ["x"]), "it is working"
    assert not await board.tasks.resume_allowed(board.owner, "ses_other", ["x"])


@pytest.mark.parametrize("column", [Column.CANCELLED, Column.DONE, Column.BACKLOG])
async def test_allowing_permission_does_not_start_finished_task(board: Board, column: Column) -> None:
    task, attempt = await create_failed_attempt(board)
    if column == Column.DONE:  # completed by another attempt
        async with board.database.transaction() as tx:
            row = await tx.session.get(Task, task.id)
            assert row is not None
            await board.tasks.advance(tx, row, Column.DONE)
    else:
        await board.tasks.move(board.owner, task.id, column)
    assert await board.tasks.resume_allowed(board.owner, attempt.session_id, ["rm -rf build"])
    assert (await board.tasks.get(board.owner, task.id)).status == column
    assert (await board.get_attempt(task)).status == AttemptStatus.FAILED


async def test_allowing_permission_does_not_start_stopped_task(board: Board) -> None:
    task = await board.create_task()
    await board.tasks.stop(board.owner, task.id)
    attempt = await board.get_attempt(task)
    assert attempt.status == AttemptStatus.CANCELLED
    assert await board.tasks.resume_allowed(board.owner, attempt.session_id, ["rm -rf build"])
    assert (await board.get_attempt(task)).status == AttemptStatus.CANCELLED


@pytest.mark.both_databases
async def test_resuming_respects_column_limit(board: Board) -> None:
    task, attempt = await create_failed_attempt(board)
    settings = ProjectSettings.model_validate({"tasks": {"wip_limits": {"in_progress": 1}}})
    await board.projects.update(board.owner, board.project.id, settings=settings)
    await board.create_task("another one")
    with pytest.raises(ColumnFullError):
        await board.tasks.resume_allowed(board.owner, attempt.session_id, ["rm -rf build"])
    assert (await board.get_attempt(task)).status == AttemptStatus.FAILED


async def test_archived_project_resumes_nothing(board: Board) -> None:
    task, attempt = await create_failed_attempt(board)
    await archive(board)
    with pytest.raises(ConflictError, match="archived"):
        await board.tasks.resume_allowed(board.owner, attempt.session_id, ["rm -rf build"])
    with pytest.raises(ConflictError, match="archived"):
        await board.tasks.retry(board.owner, task.id)
    assert (await board.get_attempt(task)).status == AttemptStatus.FAILED


async def test_archived_project_accepts_no_feedback(board: Board) -> None:
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    await board.finish_round(await board.get_attempt(task), AttemptStatus.IN_REVIEW)
    await archive(board)
    with pytest.raises(ConflictError, match="archived"):
        await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="Once more")
    assert (await board.tasks.get(board.owner, task.id)).status == Column.IN_REVIEW
    await board.tasks.move(board.owner, task.id, Column.DONE)


async def test_limits_messages_of_retries(board: Board) -> None:
    """The newest are kept."""
    task, attempt = await create_failed_attempt(board)
    for number in range(MAX_PENDING_MESSAGES + 3):
        await board.tasks.retry(board.owner, task.id, message=f"{number}")
        await board.wait_until(lambda begun=number + 2: len(board.executor.begun) == begun)  # type: ignore[misc]
        await board.attempts.fail(attempt.id, "verify_failed", "It still fails.")
    words = [item["words"] for item in (await board.get_attempt(task)).work["said"]]
    assert words == [str(number) for number in range(3, MAX_PENDING_MESSAGES + 3)]
    await board.tasks.retry(board.owner, task.id, message="x" * MAX_PENDING_CHARACTERS)
    assert [len(item["words"]) for item in (await board.get_attempt(task)).work["said"]] == [MAX_PENDING_CHARACTERS]


@pytest.mark.parametrize("meanwhile", [False, True])
async def test_feedback_goes_to_current_agent_of_task(board: Board, meanwhile: bool) -> None:
    """Including feedback given while the other agent was working."""
    task = await board.create_task(agent="demo")
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    attempt = await board.get_attempt(task)
    await board.tasks.update(board.owner, task.id, {"agent": "codex", "model": "gpt-5.5"})
    if meanwhile:
        async with board.database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id)
            assert row is not None
            await board.attempts.send_back(tx, task, row, "also this", "grace")
    await board.finish_round(attempt, AttemptStatus.IN_REVIEW)
    if not meanwhile:
        await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="also this")
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    other = await board.get_attempt(task)
    assert (other.agent, other.model, other.session_id) == ("codex", "gpt-5.5", attempt.session_id)
    assert (other.work["kind"], other.work["said"][0]["words"]) == ("feedback", "also this")


@pytest.mark.parametrize("how", ["sent back", "retried"])
async def test_picked_attempt_keeps_agent(board: Board, how: str) -> None:
    """It is the second of the task's attempts, although it is the only one left."""
    task = await board.create_task(attempts=[{"agent": "demo"}, {"agent": "codex"}])
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 2)
    for number in (1, 2):
        await board.finish_round(await board.get_attempt(task, number), AttemptStatus.READY)
    picked = await board.get_attempt(task, 2)
    await board.attempts.pick(board.owner, task.id, picked.id)
    await board.wait_until(lambda: len(board.executor.begun) == 3)
    if how == "retried":
        await board.attempts.fail(picked.id, "push_failed", "It could not be pushed.")
        await board.tasks.retry(board.owner, task.id)
    else:
        await board.finish_round(await board.get_attempt(task, 2), AttemptStatus.IN_REVIEW)
        await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="also this")
    assert (await board.get_attempt(task, 2)).agent == "codex"
    await board.wait_until(lambda: len(board.executor.begun) == 4)
    await board.finish_round(await board.get_attempt(task, 2), AttemptStatus.IN_REVIEW)
    await board.tasks.update(board.owner, task.id, {"attempts": [], "agent": "opencode"})
    await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="also that")
    assert (await board.get_attempt(task, 2)).agent == "opencode"
