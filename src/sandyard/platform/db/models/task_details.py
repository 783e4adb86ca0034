"""Types of the JSON columns of attempts and their steps. Keys and values are as they are stored; the API shows most of them."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class Said(TypedDict):
    """A message for the agent. `automatic`: no person wrote it."""

    words: str
    by: str
    automatic: bool
    about: NotRequired[str]
    """What the round's commit is named after, if not the words."""


class RoundInput(TypedDict, total=False):
    solo: bool
    """The task has one attempt. The default is True."""
    place: int | None
    """The place of the attempt in the task's list of agents."""
    said: list[Said]
    ended: str | None
    """The error that ended the round which is retried."""


class RoundWork(RoundInput):
    """`Attempt.work`: what the current round works on. `kind` is a `tasks.model.RoundKind`."""

    kind: str


class SetupProgress(TypedDict):
    round: int
    step: str
    output: str | None


class Verification(TypedDict):
    """The last run of the project's check."""

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
    pending: list[Said]
    """Messages that wait for the end of the current round."""
    automatic: int
    """How many rounds the forge has started because checks failed."""


class UndoneFiles(TypedDict):
    """Changes of a check that were undone. `commit` keeps them."""

    count: int
    paths: list[str]
    commit: str | None


class StepDetail(TypedDict, total=False):
    """`Step.detail`: what a step saved for a retry after a crash, and the part of its result that people see."""

    preparationId: str  # setup
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
