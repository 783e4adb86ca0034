"""Responses about tasks and attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import Field

from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.db import models
from sandyard.platform.domain.forge.model import Checks, ForgeKind, PullState, Review
from sandyard.platform.domain.projects.model import BudgetSettings
from sandyard.platform.domain.tasks.cards import AttemptCard, Card
from sandyard.platform.domain.tasks.columns import BoardPage
from sandyard.platform.domain.tasks.fields import WantedAttempt
from sandyard.platform.domain.tasks.model import AttemptStatus, Column, Outcome, StepName, list_outcomes

TASK, PROJECT = "tsk_0mh3k7a1x2abcdefghij", "prj_0mh3k7a1x2abcdefghij"
ATTEMPT, SESSION = "att_0mh3k7a1x2abcdefghij", "ses_0mh3k7a1x2abcdefghij"


class PullSummary(Model):
    id: str
    forge: ForgeKind
    number: int | None
    url: str
    title: str
    state: PullState
    draft: bool
    head_branch: str
    base_branch: str
    review: Review
    checks: Checks
    mergeable: bool | None


class SpentView(Model):
    """Model usage, as counted by the platform's gateway."""

    calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost_usd: float | None = Field(description="Null if the models' prices are unknown.")
    unpriced: int = Field(description="Number of responses with unknown cost, which are not in the total.")
    estimated: int = Field(
        description="Number of requests whose cost is an estimate: they were stopped or interrupted, are in progress, or reported no usage."
    )


class DiffStat(Model):
    files: int = 0
    added: int = 0
    removed: int = 0


class StepView(Model):
    round: int
    number: int
    name: str
    status: str = Field(description="running, completed or failed.")
    outcome: Outcome = Field(
        description="The result. `failed`: the step or the verify command failed. `fixed`: a later try in the same round fixed the "
        "problems. `skipped`: the project has no verify command. `not_applicable`: the remote has no pull requests."
    )
    tries: int = Field(description="More than 1 if the step was restarted after a crash.")
    detail: dict[str, Any]
    error: str | None
    started_at: Instant
    finished_at: Instant | None

    @classmethod
    def list_from_rows(cls, steps: Sequence[models.Step]) -> list[StepView]:
        return [
            cls(**{name: getattr(step, name) for name in _STEP_FIELDS}, outcome=outcome)
            for step, outcome in zip(steps, list_outcomes(steps), strict=True)
        ]


class AttemptView(Model):
    model_config = example(
        id=ATTEMPT, taskId=TASK, number=1, sessionId=SESSION, agent="demo", status="running", step="verify", round=1
    )

    id: str
    task_id: str
    number: int
    owner_id: str = Field(description="The user on whose behalf the attempt runs.")
    session_id: str | None = Field(
        description="The session the attempt runs in. Null before it exists and after it was deleted."
    )
    sandbox_id: str | None
    agent: str
    model: str | None
    status: AttemptStatus
    step: str | None = Field(description="The current step.")
    step_detail: str | None = Field(
        description="During `setup`: a description of the current work, such as “installing OpenCode (first time only)”."
    )
    step_output: str | None = Field(description="The last line of its output, if any.")
    round: int = Field(description="The first round is the task itself; each later one is feedback or a retry.")
    queue_position: int | None = Field(description="1 is next to start.")
    stopping: bool = Field(description="True if a user asked to stop it.")
    verified: bool | None = Field(description="Whether the verify command passed. Null if it has not run yet.")
    verification: dict[str, Any] | None = Field(
        description="`ok`, `command`, `exitCode`, `seconds` and `at` of the verify command."
    )
    diff: DiffStat | None
    branch: str | None
    head: str | None = Field(description="The newest commit of the branch.")
    spent: SpentView
    seconds: float | None = Field(description="Working time, without waiting before and between rounds.")
    working_since: Instant | None = Field(
        description="While the attempt is working: a time that is `seconds` ago, to show a running clock. Null otherwise."
    )
    pull_request: PullSummary | None
    error: str | None
    error_code: str | None
    steps: list[StepView] | None = Field(description="Null in lists of tasks.")
    queued_at: Instant
    started_at: Instant | None
    finished_at: Instant | None

    @classmethod
    def from_card(cls, card: AttemptCard) -> AttemptView:
        row, detail = card.attempt, card.attempt.detail or {}
        verified = detail.get("verified")
        progress = detail.get("doing") if row.step == StepName.SETUP else None
        if progress is not None and progress.get("round") != row.round:
            progress = None
        return cls(
            **{name: getattr(row, name) for name in _ATTEMPT_FIELDS},
            step_detail=None if progress is None else progress["step"],
            step_output=None if progress is None else progress["output"],
            session_id=card.session_id,
            sandbox_id=card.sandbox_id,
            queue_position=card.queue_position,
            stopping=row.cancel_at is not None and not AttemptStatus(row.status).is_final,
            verified=None if verified is None else verified["ok"],
            verification=None if verified is None else dict(verified),
            diff=DiffStat.model_validate(detail["diff"]) if detail.get("diff") else None,
            branch=detail.get("branch"),
            head=detail.get("head"),
            spent=SpentView.model_validate(card.spent),
            seconds=card.seconds,
            working_since=card.working_since,
            pull_request=_to_pull_summary(card.pull_request),
            steps=None if card.steps is None else StepView.list_from_rows(card.steps),
        )


class CardView(Model):
    """A task as shown on the board."""

    model_config = example(
        id=TASK, projectId=PROJECT, title="Fix the login", status="in_progress", position=0, agent="demo", attempts=[]
    )

    id: str
    project_id: str
    created_by: str | None
    title: str
    status: Column
    position: int = Field(description="Position in the column, starting at 0.")
    priority: int
    base_branch: str | None
    from_session_id: str | None = Field(
        description="The session whose sandbox is copied for each attempt. It may have been deleted."
    )
    agent: str | None
    model: str | None
    wanted: list[WantedAttempt] = Field(description="The attempts to run. Empty means one.")
    budget: BudgetSettings
    source: dict[str, Any] = Field(description="What created the task: `kind` is person, issue or schedule.")
    start_when_ready: bool = Field(
        description="True if the task starts automatically once it is not blocked and a slot is free."
    )
    starts_for: str | None = Field(
        description="The user on whose behalf it starts automatically. Null if it does not, and after it has started."
    )
    start_error: str | None = Field(
        description="Why the task was not started automatically, although somebody had asked for it. It waits until somebody starts it."
    )
    needs: list[str]
    blocked_by: list[str] = Field(description="Ids of the tasks in `needs` that are not done.")
    queue_position: int | None = Field(description="Queue position of its first waiting attempt.")
    attempts: list[AttemptView]
    pull_request: PullSummary | None = Field(description="The newest pull request.")
    error: str | None
    created_at: Instant
    updated_at: Instant
    started_at: Instant | None
    finished_at: Instant | None

    @classmethod
    def from_card(cls, card: Card) -> Self:
        row, source = card.task, card.task.source or {}
        return cls(
            **{name: getattr(row, name) for name in _TASK_FIELDS if name in cls.model_fields},
            position=card.position,
            wanted=[WantedAttempt.model_validate(attempt) for attempt in row.attempts or []],
            budget=BudgetSettings.model_validate(row.budget or {}),
            source={name: value for name, value in source.items() if name not in {"startsFor", "startError"}},
            start_when_ready="startsFor" in source,
            starts_for=source.get("startsFor"),
            start_error=source.get("startError"),
            needs=list(card.needs),
            blocked_by=list(card.blocked_by),
            queue_position=card.queue_position,
            attempts=[AttemptView.from_card(attempt) for attempt in card.attempts],
            pull_request=_to_pull_summary(card.pull_request),
        )


class TaskView(CardView):
    description: str


class ColumnView(Model):
    status: Column
    total: int = Field(description="Number of tasks in the column.")
    matching: int = Field(description="Number of these tasks that match the filters.")
    failed: int = Field(
        description="Number of failed tasks in progress, out of `total`. They do not count towards the column's limit."
    )
    items: list[CardView] = Field(description="This page of the matching tasks.")


class BoardView(Model):
    columns: list[ColumnView]
    titles: dict[str, str] = Field(description="Titles of tasks that block tasks on this page but are not on it.")

    @classmethod
    def from_page(cls, page: BoardPage) -> BoardView:
        return cls(
            columns=[
                ColumnView(
                    status=column.column,
                    total=column.total,
                    matching=column.matching,
                    failed=column.failed,
                    items=[CardView.from_card(card) for card in column.cards],
                )
                for column in page.columns
            ],
            titles=dict(page.titles),
        )


class ProjectCounts(Model):
    project_id: str
    columns: dict[Column, int] = Field(description="Number of tasks by column. Empty columns are left out.")
    failed: int = Field(description="Number of failed tasks in progress.")


class TaskCounts(Model):
    items: list[ProjectCounts]


class AttemptList(Model):
    items: list[AttemptView]

    @classmethod
    def from_card(cls, card: Card) -> AttemptList:
        return cls(items=[AttemptView.from_card(attempt) for attempt in card.attempts])


class QueuedAttempt(Model):
    model_config = example(position=1, taskId=TASK, attemptId=ATTEMPT, number=1, title="Fix the login")

    position: int
    task_id: str
    attempt_id: str
    project_id: str
    number: int
    title: str
    agent: str
    model: str | None
    round: int
    reason: str
    queued_at: Instant

    @classmethod
    def from_row(cls, row: models.Attempt, title: str, position: int, reason: str) -> QueuedAttempt:
        fields = {name: getattr(row, name) for name in _WAITING_FIELDS}
        return cls(**fields, attempt_id=row.id, title=title, position=position, reason=reason)


class QueueView(Model):
    items: list[QueuedAttempt]


_STEP_FIELDS = ("round", "number", "name", "status", "tries", "detail", "error", "started_at", "finished_at")
_WAITING_FIELDS = ("task_id", "project_id", "number", "agent", "model", "round", "queued_at")
_ATTEMPT_FIELDS = (
    *("id", "task_id", "number", "owner_id", "agent", "model", "status", "step", "round"),
    *("error", "error_code", "queued_at", "started_at", "finished_at"),
)
_TASK_FIELDS = (
    *("id", "project_id", "created_by", "title", "description", "status", "priority", "base_branch", "agent", "model"),
    *("from_session_id", "error", "created_at", "updated_at", "started_at", "finished_at"),
)


def _to_pull_summary(row: models.PullRequest | None) -> PullSummary | None:
    return None if row is None else PullSummary.model_validate(row)
