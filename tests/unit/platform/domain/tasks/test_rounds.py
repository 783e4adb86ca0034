"""The steps of a round, with steps that do nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import DatabaseUnavailableError
from sandyard.platform.db.models import Attempt, Task
from sandyard.platform.domain.tasks.attempt_records import lock_attempt, set_attempt_status
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column, StepName
from sandyard.platform.domain.tasks.rounds import Rounds
from sandyard.platform.domain.tasks.steps import StepContext, StepKey
from tests.unit.platform.domain.tasks.board import Board


class Steps:
    """Steps that finish at once. `meanwhile` runs during the step of that name; an error given for a step is raised
    once."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.meanwhile: dict[str, Callable[[], Awaitable[None]]] = {}
        self.errors: dict[str, SandyardError] = {}

    def __getattr__(self, name: str) -> Callable[..., Awaitable[dict[str, Any]]]:
        async def step(*_: Any, **__: Any) -> dict[str, Any]:
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
    task = await board.task()
    board.attempts.start(board.executor)
    await board.until(lambda: bool(board.executor.begun))
    return task, await board.attempt(task)


async def test_runs_all_steps_despite_database_outage(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0.01)
    task, attempt = await running(board)
    steps = Steps()
    steps.errors["agent"] = DatabaseUnavailableError()
    await play(board, steps, attempt)
    assert steps.done == ["setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request"]
    assert (await board.attempt(task)).status == AttemptStatus.IN_REVIEW
    assert (await board.tasks.get(board.owner, task.id)).status == Column.IN_REVIEW
    tried = {step.name: step.tries for step in await board.attempts.list_steps(attempt.id)}
    assert (tried["agent"], tried["verify"]) == (2, 1)
    await play(board, steps, attempt)  # the end was not recorded
    assert (len(steps.done), (await board.attempt(task)).status) == (8, AttemptStatus.IN_REVIEW)


async def test_merged_during_step(board: Board) -> None:
    task, attempt = await running(board)
    steps = Steps()

    async def merged() -> None:
        async with board.database.transaction() as tx:
            row = await tx.session.get(Attempt, attempt.id)
            assert row is not None
            row.status = AttemptStatus.MERGED

    steps.meanwhile["provision"] = merged
    await play(board, steps, attempt)
    assert steps.done == ["setup", "provision"]
    assert (await board.attempt(task)).status == AttemptStatus.MERGED


async def test_merged_when_step_starts(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    task, attempt = await running(board)
    note_begun = Rounds.record_step_started

    async def overtaken(self: Rounds, place: StepKey, name: StepName) -> tuple[StepContext, dict[str, Any]] | None:
        monkeypatch.setattr(Rounds, "record_step_started", note_begun)
        async with board.database.transaction() as tx:
            found = await lock_attempt(tx, place[0])
            assert found is not None
            set_attempt_status(tx, found[1], AttemptStatus.MERGED)
        return await note_begun(self, place, name)

    monkeypatch.setattr(Rounds, "record_step_started", overtaken)
    await play(board, Steps(), attempt)
    row = await board.attempt(task)
    assert (row.status, row.step) == (AttemptStatus.MERGED, None)


async def test_leftovers_of_earlier_round_do_not_end_later_one(board: Board) -> None:
    task, attempt = await running(board)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Attempt, attempt.id)
        assert row is not None
        row.round = 2
    steps = Steps()
    await play(board, steps, attempt, 1)
    assert (steps.done, (await board.attempt(task)).status) == ([], AttemptStatus.RUNNING)


@pytest.mark.parametrize("words", [None, "And mind the gap"])
async def test_stopped_in_last_step(board: Board, words: str | None) -> None:
    """Feedback given before the stop starts no further round."""
    task, attempt = await running(board)
    steps = Steps()

    async def stopped() -> None:
        if words is not None:
            async with board.database.transaction() as tx:
                found = await lock_attempt(tx, attempt.id)
                assert found is not None
                await board.attempts.send_back(tx, *found, words, "somebody")
        await board.tasks.stop(board.owner, task.id)

    steps.meanwhile["pull_request"] = stopped
    await play(board, steps, attempt)
    row = await board.attempt(task)
    assert (row.status, row.round) == (AttemptStatus.CANCELLED, 1)
    assert (await board.tasks.get(board.owner, task.id)).status == Column.CANCELLED
    await board.until(lambda: board.turns.ended == [attempt.session_id])


@pytest.mark.parametrize("step", [None, "verify"])
async def test_ends_when_user_loses_access(board: Board, step: str | None) -> None:
    """Before it starts, or before its next step."""
    member = await board.person("member")
    await board.projects.add_member(board.owner, board.project.id, member.user_id)
    task = await board.tasks.create(member, board.project.id, TaskFields(title="x"), start=True)
    board.attempts.start(board.executor)
    await board.until(lambda: bool(board.executor.begun))
    steps = Steps()

    async def removed() -> None:
        await board.projects.remove_member(board.owner, board.project.id, member.user_id)

    if step is None:
        await removed()
    else:
        steps.meanwhile[step] = removed
    await play(board, steps, await board.attempt(task))
    assert steps.done == ([] if step is None else ["setup", "provision", "checkout", "agent", "verify"])
    row = await board.attempt(task)
    assert (row.status, row.error_code) == (AttemptStatus.FAILED, "owner_without_access")
    await board.tasks.retry(board.owner, task.id)
    assert (await board.attempt(task, 2)).owner_id == board.owner.user_id
