"""The steps of a round, with steps that do nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import DatabaseUnavailableError
from sandyard.platform.db.models import Attempt, Sandbox, Session, Task
from sandyard.platform.domain.sandboxes.model import SANDBOX_LOST, SandboxDestroyedError, Status, utc_now
from sandyard.platform.domain.tasks.attempt_records import lock_attempt, set_attempt_status
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column, StepName
from sandyard.platform.domain.tasks.rounds import MAX_LOSSES, Rounds
from sandyard.platform.domain.tasks.step_support import StepContext, StepFailure, StepKey
from tests.unit.platform.domain.tasks.board import Board


class Steps:
    """Steps that finish at once. `meanwhile` runs during the step of that name; an error given for a step is raised
    once, and `failures` are returned one after the other."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.meanwhile: dict[str, Callable[[], Awaitable[None]]] = {}
        self.errors: dict[str, SandyardError] = {}
        self.failures: dict[str, list[StepFailure]] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def step(*_: Any, **arguments: Any) -> dict[str, Any]:
            self.calls.append((name, arguments))
            if self.failures.get(name):
                return {"failed": self.failures[name].pop()}
            if (error := self.errors.pop(name, None)) is not None:
                raise error
            if name in self.meanwhile:
                await self.meanwhile[name]()
            self.done.append(name)
            return {"ok": True}

        return step


async def play(board: Board, steps: Steps, attempt: Attempt, number: int = 1) -> None:
    async def step(_: str, verb: Callable[..., Awaitable[dict[str, Any]]], *arguments: Any) -> dict[str, Any]:
        return await verb(*arguments)

    await Rounds(board.database, board.attempts, board.tasks, steps).run_round(step, attempt.id, number)  # type: ignore[arg-type]


async def running(board: Board) -> tuple[Task, Attempt]:
    task = await board.create_task()
    board.attempts.start(board.executor)
    await board.wait_until(lambda: bool(board.executor.begun))
    return task, await board.get_attempt(task)


async def test_runs_all_steps_despite_database_outage(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0.01)
    task, attempt = await running(board)
    steps = Steps()
    steps.errors["agent"] = DatabaseUnavailableError()
    await play(board, steps, attempt)
    assert steps.done == ["setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request"]
    assert (await board.get_attempt(task)).status == AttemptStatus.IN_REVIEW
    assert (await board.tasks.get(board.owner, task.id)).status == Column.IN_REVIEW
    tried = {step.name: step.tries for step in await board.attempts.list_steps(attempt.id)}
    assert (tried["agent"], tried["verify"]) == (2, 1)
    await play(board, steps, attempt)  # the end was not recorded
    assert (len(steps.done), (await board.get_attempt(task)).status) == (8, AttemptStatus.IN_REVIEW)


@pytest.mark.parametrize("losses", [1, MAX_LOSSES + 1])
async def test_begins_again_when_the_sandbox_is_lost(board: Board, losses: int) -> None:
    task, attempt = await running(board)
    steps = Steps()
    failure: StepFailure = {"code": SANDBOX_LOST, "message": "It no longer exists."}
    steps.failures["agent"] = [failure] * losses
    await play(board, steps, attempt)
    row = await board.get_attempt(task)
    if losses > MAX_LOSSES:
        assert (row.status, row.error) == (AttemptStatus.FAILED, "It no longer exists.")
        return
    assert row.status == AttemptStatus.IN_REVIEW
    assert steps.done[:4] == ["setup", "provision", "checkout", "provision"], "what was prepared is used again"
    assert [arguments for name, arguments in steps.calls if name == "agent"] == [
        {"turn": "agent", "prompt": None},
        {"turn": "agent/loss-1", "prompt": None, "after_loss": True},
    ]


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_does_not_begin_again_when_the_sandbox_is_deleted(board: Board, is_deleted: bool) -> None:
    task, attempt = await running(board)
    steps, now = Steps(), utc_now()
    owner = {"owner_id": attempt.owner_id, "template": "base", "created_at": now}
    status = Status.DESTROYED if is_deleted else Status.RUNNING  # which is still being deleted
    async with board.database.transaction() as tx:
        tx.add(Session(id=attempt.session_id, title="", updated_at=now, sandbox_id="sbx_1", **owner))
        await tx.session.flush()
        deleted = Sandbox(id="sbx_1", session_id=attempt.session_id, idempotency_key="k", idle_seconds=1, **owner)
        deleted.status, deleted.destroy_requested_at = status, now
        tx.add(deleted)
    steps.failures["agent"] = [{"code": SANDBOX_LOST, "message": "The sandbox was deleted."}]
    await play(board, steps, attempt)
    row = await board.get_attempt(task)
    assert (row.status, row.error_code) == (AttemptStatus.FAILED, SandboxDestroyedError.code)
    assert steps.done == ["setup", "provision", "checkout"]


async def test_merged_during_step(board: Board) -> None:
    task, attempt = await running(board)
    steps = Steps()

    async def merge() -> None:
        async with board.database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id)
            assert row is not None
            row.status = AttemptStatus.MERGED

    steps.meanwhile["provision"] = merge
    await play(board, steps, attempt)
    assert steps.done == ["setup", "provision"]
    assert (await board.get_attempt(task)).status == AttemptStatus.MERGED


async def test_merged_when_step_starts(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    task, attempt = await running(board)
    record_step_started = Rounds.record_step_started

    async def merge_and_record(
        self: Rounds, place: StepKey, name: StepName
    ) -> tuple[StepContext, dict[str, Any]] | None:
        monkeypatch.setattr(Rounds, "record_step_started", record_step_started)
        async with board.database.transaction() as tx:
            found = await lock_attempt(tx, place[0])
            assert found is not None
            set_attempt_status(tx, found[1], AttemptStatus.MERGED)
        return await record_step_started(self, place, name)

    monkeypatch.setattr(Rounds, "record_step_started", merge_and_record)
    await play(board, Steps(), attempt)
    row = await board.get_attempt(task)
    assert (row.status, row.step) == (AttemptStatus.MERGED, None)


async def test_leftovers_of_earlier_round_do_not_end_later_one(board: Board) -> None:
    task, attempt = await running(board)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Attempt, attempt.id)
        assert row is not None
        row.round = 2
    steps = Steps()
    await play(board, steps, attempt, 1)
    assert (steps.done, (await board.get_attempt(task)).status) == ([], AttemptStatus.RUNNING)


@pytest.mark.parametrize("words", [None, "And mind the gap"])
async def test_stopped_in_last_step(board: Board, words: str | None) -> None:
    """Feedback given before the stop starts no further round."""
    task, attempt = await running(board)
    steps = Steps()

    async def stop() -> None:
        if words is not None:
            async with board.database.transaction() as tx:
                found = await lock_attempt(tx, attempt.id)
                assert found is not None
                await board.attempts.send_back(tx, *found, words, "somebody")
        await board.tasks.stop(board.owner, task.id)

    steps.meanwhile["pull_request"] = stop
    await play(board, steps, attempt)
    row = await board.get_attempt(task)
    assert (row.status, row.round) == (AttemptStatus.CANCELLED, 1)
    assert (await board.tasks.get(board.owner, task.id)).status == Column.CANCELLED
    await board.wait_until(lambda: board.turns.ended == [attempt.session_id])


@pytest.mark.parametrize("step", [None, "verify"])
async def test_ends_when_user_loses_access(board: Board, step: str | None) -> None:
    """Before it starts, or before its next step."""
    member = await board.create_person("member")
    await board.projects.add_member(board.owner, board.project.id, member.user_id)
    task = await board.tasks.create(member, board.project.id, TaskFields(title="x"), start=True)
    board.attempts.start(board.executor)
    await board.wait_until(lambda: bool(board.executor.begun))
    steps = Steps()

    async def remove() -> None:
        await board.projects.remove_member(board.owner, board.project.id, member.user_id)

    if step is None:
        await remove()
    else:
        steps.meanwhile[step] = remove
    await play(board, steps, await board.get_attempt(task))
    assert steps.done == ([] if step is None else ["setup", "provision", "checkout", "agent", "verify"])
    row = await board.get_attempt(task)
    assert (row.status, row.error_code) == (AttemptStatus.FAILED, "owner_without_access")
    await board.tasks.retry(board.owner, task.id)
    assert (await board.get_attempt(task, 2)).owner_id == board.owner.user_id
