"""Prompts at the beginning of a round, and the commit at its end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.platform.db.models import AgentRun, Attempt, Project, Sandbox, Session, Task, Turn
from sandyard.platform.domain.agents.model import PLATFORM, Origin, TurnStatus
from sandyard.platform.domain.sandboxes.e2b import EngineQuotaError
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.sessions.service import TaskCopy
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.source_sessions import SourceSessionError
from sandyard.platform.domain.tasks.step_support import CancelledStep, StepContext
from sandyard.platform.domain.tasks.steps import Steps
from tests.unit.platform.domain.tasks.board import Board


class Sandboxes:
    """Sessions, agents, git and turns of one sandbox with uncommitted changes, whose agent does nothing."""

    def __init__(self) -> None:
        self.prompts: list[tuple[Origin, list[dict[str, Any]]]] = []
        self.committed: list[str] = []
        self.operations = self.repository = self

    async def get_sandbox(self, *_: Any) -> Any:
        return SimpleNamespace(id="sbx_1")

    async def profile(self, *_: Any) -> Any:
        return SimpleNamespace(demo=False)

    async def get_checkout(self, *_: Any) -> Any:
        return SimpleNamespace(base_commit="c0ffee", branch="task/1")

    async def prompt(self, *given: Any, origin: Origin, **_: Any) -> Turn:
        self.prompts.append((origin, list(given[2])))
        return Turn(id="trn_1", status=TurnStatus.COMPLETED)

    async def wait(self, _: str) -> Turn:
        return Turn(id="trn_1", status=TurnStatus.COMPLETED)

    async def end_leftovers(self, _: str) -> int:
        return 0

    async def get(self, _: str) -> Any:
        return None

    async def ensure_running(self, _: Any) -> None:
        pass

    async def list_operations(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(items=[])

    async def get_status(self, *_: Any) -> Any:
        return SimpleNamespace(clean=False, entries=())

    async def commit(self, *_: Any, message: str) -> Any:
        self.committed.append(message)
        return Turn(id="gop_1")

    async def get_diff(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(files=(), added=1, removed=0)

    async def list_commits(self, *_: Any, **__: Any) -> Any:
        return [SimpleNamespace(id="c0ffee")]


async def read_prompt(board: Board, task: Task) -> tuple[Origin, list[str]]:
    """Return the current prompt of the attempt's agent: its author, then each part. "(platform)" marks text of the
    platform."""
    inside = Sandboxes()
    steps, work = await prepare(board, task, inside)
    await steps.agent(work, (work.attempt.id, work.attempt.round, 1), {}, turn="agent", prompt=None)
    ((origin, texts),) = inside.prompts
    return origin, ["(platform)" if item.get("source") == PLATFORM else item["text"] for item in texts]


async def commit_changes(board: Board, task: Task) -> str:
    """Commit the changes of the current round and return the message."""
    inside = Sandboxes()
    steps, work = await prepare(board, task, inside)
    await steps.commit(work, (work.attempt.id, work.attempt.round, 1), {})
    (message,) = inside.committed
    return message


async def prepare(board: Board, task: Task, inside: Sandboxes) -> tuple[Steps, StepContext]:
    parts: Any = [board.database, inside, inside, None, inside, inside, None, None, inside, None]
    async with board.database.reading() as session:
        attempt = await session.get(Attempt, (await board.get_attempt(task)).id)
        row, project = await session.get(Task, task.id), await session.get(Project, task.project_id)
    assert attempt is not None and row is not None and project is not None
    return Steps(*parts), StepContext(attempt, row, project, board.owner)


async def has_worked(board: Board, attempt: Attempt, agent: str) -> None:
    now = utc_now()
    async with board.database.transaction() as tx:
        frame = {"owner_id": board.owner.user_id, "template": "base", "created_at": now}
        tx.add(Session(id=attempt.session_id, title="x", updated_at=now, **frame))
        await tx.session.flush()
        box = {"session_id": attempt.session_id, "idempotency_key": "b", "status": "running", "idle_seconds": 1}
        tx.add(Sandbox(id="sbx_1", **frame, **box))
        await tx.session.flush()
        of = {"session_id": attempt.session_id}
        tx.add(AgentRun(id="run_1", sandbox_id="sbx_1", agent=agent, status="ended", started_at=now, **of))
        await tx.session.flush()
        turn = {"number": 1, "origin": "task", "status": "failed", "queued_at": now, "request": 3}
        tx.add(Turn(id="trn_0", run_id="run_1", **of, **turn))


async def begun(board: Board) -> tuple[Task, Attempt]:
    task = await board.create_task("Paint it", agent="codex")
    board.attempts.start(board.executor)
    await board.wait_until(lambda: len(board.executor.begun) == 1)
    return task, await board.get_attempt(task)


@pytest.mark.parametrize("agent", [None, "codex", "opencode"])
async def test_retry_message_is_in_next_prompt(board: Board, agent: str | None) -> None:
    """Even if no agent was prompted before, because the round failed earlier."""
    task, attempt = await begun(board)
    if agent is not None:
        await has_worked(board, attempt, agent)
    await board.attempts.fail(attempt.id, "no_model", "There is no model.")
    await board.tasks.retry(board.owner, task.id, message="Blue, please.")
    expected = {
        None: ["Paint it", "(platform)", "Blue, please."],
        "codex": ["(platform)", "Blue, please."],
        "opencode": ["Paint it", "(platform)", "(platform)", "Blue, please."],
    }
    assert await read_prompt(board, task) == (Origin.TASK, expected[agent])


@pytest.mark.parametrize("agent", ["codex", "opencode"])
async def test_feedback_includes_task_for_new_agent(board: Board, agent: str) -> None:
    task, attempt = await begun(board)
    await has_worked(board, attempt, "codex")
    await board.finish_round(attempt, AttemptStatus.IN_REVIEW)
    await board.tasks.update(board.owner, task.id, {"agent": agent})
    await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback="Blue, please.")
    origin, texts = await read_prompt(board, task)
    expected = {"codex": ["Blue, please."], "opencode": ["Paint it", "(platform)", "(platform)", "Blue, please."]}
    assert (origin, texts) == (Origin.FEEDBACK, expected[agent])


async def test_commit_of_feedback_is_named_after_it(board: Board) -> None:
    task, attempt = await begun(board)
    await board.attempts.fail(attempt.id, "no_model", "There is no model.")
    await board.tasks.retry(board.owner, task.id, message="Blue, please.")
    assert await commit_changes(board, task) == "chore: paint it"  # it contains the whole task
    await board.finish_round(attempt, AttemptStatus.IN_REVIEW)
    feedback = "Please:\n- fix the `door`\n- and the roof"
    await board.tasks.move(board.owner, task.id, Column.IN_PROGRESS, feedback=feedback)
    assert await commit_changes(board, task) == "fix: fix the door"
    await board.attempts.fail(attempt.id, "turn_failed", "The agent failed.")
    await board.tasks.retry(board.owner, task.id)
    assert await commit_changes(board, task) == "fix: fix the door"


class Forks(Sandboxes):
    """A source session that is forked into rows, except those whose number is in `full`."""

    def __init__(self, board: Board) -> None:
        super().__init__()
        self._board = board
        self.full: set[int] = set()
        self.calls: list[list[str]] = []
        self.error: SandyardError | None = None
        self.working = asyncio.Event()
        self.working.set()

    async def require_model(self, *_: Any) -> None:
        pass

    async def fork_for_task(self, caller: Any, source: str, task: Task, copies: list[TaskCopy]) -> dict[str, Any]:
        self.calls.append([copy.session_id for copy in copies])
        await self.working.wait()
        if self.error is not None:
            raise self.error
        made = {}
        async with self._board.database.transaction() as tx:
            for number, copy in enumerate(copies, 1):
                if number in self.full:
                    made[copy.session_id] = EngineQuotaError()
                    continue
                frame = {"owner_id": caller.user_id, "template": "base", "created_at": utc_now()}
                row = made[copy.session_id] = Session(id=copy.session_id, title="x", updated_at=utc_now(), **frame)
                tx.add(row)
        return made


async def started_from_session(board: Board) -> tuple[Forks, Steps, list[StepContext]]:
    """Start a task with two attempts from a session."""
    project = await board.projects.update(board.owner, board.project.id, repository="https://example.org/x.git")
    task = await board.create_task(attempts=[{"agent": "demo"}] * 2)
    async with board.database.transaction() as tx:
        row = await tx.session.get(Task, task.id)
        assert row is not None
        row.from_session_id = "ses_source"
        attempts = (await board.attempts.list_for_tasks([task.id]))[task.id]
        for attempt in attempts:
            attempt.status = AttemptStatus.RUNNING
            await tx.session.merge(attempt)
    forks = Forks(board)
    parts: Any = [board.database, forks, forks, None, forks, forks, forks, None, forks, None]
    return forks, Steps(*parts), [StepContext(attempt, row, project, board.owner) for attempt in attempts]


async def set_up(steps: Steps, context: StepContext) -> dict[str, Any]:
    return dict(await steps.setup(context, (context.attempt.id, 1, 1), {}))


async def test_attempts_from_a_session_are_forked_in_one_request(board: Board) -> None:
    forks, steps, (first, second) = await started_from_session(board)
    results = await asyncio.gather(set_up(steps, first), set_up(steps, second))
    assert results == [{"shown": {"sourceSessionId": "ses_source"}}] * 2
    assert forks.calls == [[first.attempt.session_id, second.attempt.session_id]]
    await set_up(steps, first)  # repeated after a crash
    assert len(forks.calls) == 1


async def test_attempt_that_could_not_be_forked_with_the_others_is_forked_by_its_own_step(board: Board) -> None:
    forks, steps, (first, second) = await started_from_session(board)
    forks.full = {2}
    await set_up(steps, first)
    await set_up(steps, second)
    assert forks.calls == [[first.attempt.session_id, second.attempt.session_id], [second.attempt.session_id]]


async def test_source_session_that_cannot_be_forked_fails_the_step_with_advice(board: Board) -> None:
    forks, steps, (first, _) = await started_from_session(board)
    forks.error = NotFoundError("There is no session 'ses_source'.")
    with pytest.raises(SourceSessionError, match=r"ses_source.*There is no session.*fromSessionId.*retry"):
        await set_up(steps, first)


async def test_stopped_while_its_source_session_is_forked(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.platform.domain.tasks.step_support.CANCEL_CHECK_S", 0.01)
    forks, steps, (first, second) = await started_from_session(board)
    forks.working.clear()
    step = asyncio.create_task(set_up(steps, first))
    await board.wait_until(lambda: bool(forks.calls))
    await board.attempts.cancel(first.task.id)
    with pytest.raises(CancelledStep):
        await step
    forks.working.set()
    assert await set_up(steps, second), "a stopped attempt is not forked"
    assert len(forks.calls) == 1
