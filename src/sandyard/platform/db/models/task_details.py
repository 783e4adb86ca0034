"""Types of the JSON columns of tasks, their attempts, steps and preparations.

Keys and values are as they are stored; the API shows most of them.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class RequestedAttempt(TypedDict, total=False):
    """One of `Task.attempts`: a `tasks.fields.WantedAttempt`. None means the default of the task or the project."""

    agent: str | None
    model: str | None


class TaskBudget(TypedDict, total=False):
    """`Task.budget`: a `projects.model.BudgetSettings` without limits that are None."""

    usd: float
    tokens: int


class TaskSource(TypedDict, total=False):
    """`Task.source`: what created the task."""

    kind: Literal["person", "issue", "schedule"]
    number: int  # issue
    url: str | None
    author: str
    scheduleId: str  # schedule
    name: str
    startsFor: str
    """The user for whom it starts as soon as it can. The API shows it as a field of the task."""
    startError: str
    """Why it was not started automatically. The API shows it as a field of the task."""


class MessageToAgent(TypedDict):
    """A message for the agent. `automatic`: no person wrote it."""

    words: str
    by: str
    automatic: bool
    about: NotRequired[str]
    """The subject of the round's commit, if it is not taken from the prompt."""
    resume: NotRequired[bool]
    """It asks the agent to continue after an interruption."""


class RoundInput(TypedDict, total=False):
    solo: bool
    """The task has one attempt. The default is True."""
    place: int | None
    """The place of the attempt in the task's list of agents."""
    said: list[MessageToAgent]
    ended: str | None
    """The error that ended the round which is retried."""
    traceparent: str
    """The request that started the round, if telemetry is sent."""


class RoundWork(RoundInput):
    """`Attempt.work`: what the current round works on. `kind` is a `tasks.model.RoundKind`."""

    kind: str


class SetupProgress(TypedDict):
    round: int
    step: str
    output: str | None


class Verification(TypedDict):
    """The last run of the verify command."""

    ok: bool
    command: str
    commandId: str
    exitCode: int | None
    seconds: float | None
    at: str


class DiffCounts(TypedDict):
    files: int
    added: int
    removed: int


class AttemptDetail(TypedDict, total=False):
    """`Attempt.detail`: its results."""

    doing: SetupProgress
    verified: Verification
    diff: DiffCounts
    branch: str
    head: str | None
    pullRequestId: str
    pending: list[MessageToAgent]
    """Messages that wait for the end of the current round."""
    automatic: int
    """How many rounds the forge has started because checks failed."""


class UndoneFiles(TypedDict):
    """Changes of the verify command that were undone. `commit` keeps them."""

    count: int
    paths: list[str]
    commit: str | None


class StepDetail(TypedDict, total=False):
    """`Step.detail`: what a step saved for a retry after a crash, and the part of its result that people see."""

    preparationId: str  # setup
    sourceSessionId: str
    sessionId: str  # provision
    sandboxId: str
    branch: str  # checkout, push
    baseBranch: str
    commit: str | None
    turnId: str  # agent
    stopReason: str | None
    leftovers: int
    ok: bool  # verify, push
    tree: str
    commandId: str
    exitCode: int | None
    undone: UndoneFiles
    head: str  # commit
    files: int
    added: int
    removed: int
    message: str  # push
    pullRequestId: str  # pull_request
    number: int | None
    url: str | None


class SetupCommand(TypedDict):
    """A command of a project's setup. `exitCode` is None while it runs."""

    source: str
    command: str
    commandId: str
    exitCode: int | None
    seconds: float


class PreparationDetail(TypedDict, total=False):
    """`Preparation.detail`: what ran, and what sessions that start from it need to know."""

    step: str
    sources: list[str]
    """The source of the commands."""
    commands: list[SetupCommand]
    warnings: list[str]
    agentsMd: bool
    """Whether the repository has an AGENTS.md."""
    envs: dict[str, str]
    engineId: str | None
    """The engine's id of the sandbox that the snapshot was taken of."""
    shallow: list[str]
    """The commits where the history of the checkout ends."""
    lacks: list[str]
    """Things that the checkout lacks, one sentence each."""
    seconds: float
    failure: dict[str, Any]
    """The extra fields of the error."""
