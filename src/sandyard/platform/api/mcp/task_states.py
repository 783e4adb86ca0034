"""The state of a task, as shown to a model."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from sandyard.platform.api.mcp.asks import AskState
from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.api.task_views import AttemptView, DiffStat, TaskView
from sandyard.platform.domain.forge.model import Checks, PullState, Review
from sandyard.platform.domain.tasks.model import AttemptStatus, Column

DESCRIPTION_LIMIT, ERROR_LIMIT = 20_000, 4_000
_WORKING = (AttemptStatus.QUEUED, AttemptStatus.RUNNING)


class Pull(Model):
    url: str
    number: int | None
    state: PullState
    review: Review
    checks: Checks


class AttemptState(Model):
    id: str
    number: int
    agent: str
    model: str | None
    status: AttemptStatus = Field(
        description="queued, running: at work. ready: finished, and one of several to pick from. in_review: has a pull request."
    )
    step: str | None = Field(
        description="The current step: setup, provision, checkout, agent, verify, commit, push or pull_request."
    )
    round: int
    queue_position: int | None
    session_id: str | None = Field(description="Null before its session exists and after it was deleted.")
    sandbox_id: str | None
    branch: str | None
    verified: bool | None = Field(description="Whether the verify command passed. Null if it has not run yet.")
    diff: DiffStat | None
    seconds: float | None
    cost_usd: float | None
    cost_estimated: bool = Field(
        description="Whether `costUsd` contains an estimate, such as that of a request that was stopped."
    )
    error: str | None

    @classmethod
    def from_view(cls, view: AttemptView) -> AttemptState:
        own = ("cost_usd", "cost_estimated", "error")
        fields = {name: getattr(view, name) for name in cls.model_fields if name not in own}
        return cls(
            **fields,
            cost_usd=view.spent.cost_usd,
            cost_estimated=view.spent.estimated > 0,
            error=view.error and view.error[:ERROR_LIMIT],
        )


class TaskSummary(Model):
    model_config = example(id="tsk_00mwhnkzc0a1b2c3d4e5", title="Fix the login", status="in_review", rests=True)

    id: str
    project_id: str
    title: str
    status: Column
    rests: bool = Field(description="True if nothing is working on the task and nothing will start automatically.")
    priority: int
    blocked_by: list[str] = Field(description="Tasks that must be done before it can start.")
    attempts: list[AttemptState]
    pull_request: Pull | None
    error: str | None
    created_at: Instant
    updated_at: Instant


class TaskState(TaskSummary):
    description: str
    asks: list[AskState] = Field(description="Open requests of its agents. Answer them with answer_ask.")
    hint: str = Field(description="The current state and what you can do next.")


class TaskStatusReport(Model):
    id: str
    project_id: str
    title: str
    status: Column
    rests: bool
    hint: str = Field(description="The current state and what you can do next.")


class TaskList(Model):
    items: list[TaskSummary]
    next_cursor: str | None


def summarize(view: TaskView) -> TaskSummary:
    return TaskSummary(
        id=view.id,
        project_id=view.project_id,
        title=view.title,
        status=view.status,
        rests=is_at_rest(view),
        priority=view.priority,
        blocked_by=view.blocked_by,
        attempts=[AttemptState.from_view(attempt) for attempt in view.attempts],
        pull_request=None if view.pull_request is None else Pull.model_validate(view.pull_request),
        error=view.error and view.error[:ERROR_LIMIT],
        created_at=view.created_at,
        updated_at=view.updated_at,
    )


def describe_state(view: TaskView, asks: Sequence[AskState]) -> TaskState:
    return TaskState(
        **dict(summarize(view)),
        description=view.description[:DESCRIPTION_LIMIT],
        asks=list(asks),
        hint=_make_hint(view, asks),
    )


def describe_status(view: TaskView) -> TaskStatusReport:
    return TaskStatusReport(
        id=view.id,
        project_id=view.project_id,
        title=view.title,
        status=view.status,
        rests=is_at_rest(view),
        hint=_make_hint(view, ()),
    )


def is_at_rest(view: TaskView) -> bool:
    if any(attempt.status in _WORKING for attempt in view.attempts):
        return False
    return not (view.start_when_ready and view.status == Column.BACKLOG)


def _make_hint(view: TaskView, asks: Sequence[AskState]) -> str:
    if asks:
        return "An agent is waiting for an answer: call answer_ask."
    return _describe_resting(view) if is_at_rest(view) else _describe_working(view)


def _describe_working(view: TaskView) -> str:
    if view.blocked_by and view.status == Column.BACKLOG:
        return f"The task starts when these tasks are done: {', '.join(view.blocked_by)}."
    running = any(attempt.status == AttemptStatus.RUNNING for attempt in view.attempts)
    if view.queue_position is not None and not running:
        return f"The task is queued at position {view.queue_position}: call wait_for_task."
    return "The task is in progress: call wait_for_task."


def _describe_resting(view: TaskView) -> str:
    if view.status == Column.BACKLOG and view.start_error is not None:
        return f"The task was not started automatically: {view.start_error} Call start_task."
    ready = any(attempt.status == AttemptStatus.READY for attempt in view.attempts)
    if view.status == Column.IN_PROGRESS and ready:
        return "Attempts are ready: compare them with task_diff and choose one with pick_attempt."
    return {
        Column.BACKLOG: "The task has not been started: call start_task.",
        Column.IN_PROGRESS: "The task failed: see its error. retry_task tries again from the existing work.",
        Column.IN_REVIEW: "The task is ready for review: task_diff shows the changes, send_feedback requests changes.",
        Column.DONE: "The task is done.",
        Column.CANCELLED: "The task was stopped: retry_task continues it.",
    }[view.status]
