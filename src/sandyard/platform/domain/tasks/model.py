"""States of tasks and attempts."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from sandyard.platform.db.models import Step


class Column(StrEnum):
    """The column of a task on the board, which is its status."""

    BACKLOG = "backlog"
    IN_PROGRESS = "in_progress"
    IN_REVIEW = "in_review"
    DONE = "done"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    """READY: finished and committed, one of several to pick from. ARCHIVED: another attempt was picked."""

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    IN_REVIEW = "in_review"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MERGED = "merged"
    ARCHIVED = "archived"

    @property
    def is_final(self) -> bool:
        return self not in OPEN_ATTEMPTS


OPEN_ATTEMPTS = (AttemptStatus.QUEUED, AttemptStatus.RUNNING, AttemptStatus.READY, AttemptStatus.IN_REVIEW)


class RoundKind(StrEnum):
    """The purpose of a round: the task itself, feedback from a person or the forge, publishing a picked attempt, or a retry."""

    TASK = "task"
    FEEDBACK = "feedback"
    PUBLISH = "publish"
    RETRY = "retry"


class StepName(StrEnum):
    SETUP = "setup"
    PROVISION = "provision"
    CHECKOUT = "checkout"
    AGENT = "agent"
    VERIFY = "verify"
    COMMIT = "commit"
    PUSH = "push"
    PULL_REQUEST = "pull_request"


class Outcome(StrEnum):
    """The result of a step.

    FAILED: the step or the verify command failed. FIXED: it failed, and a later try in the same round succeeded. SKIPPED: the project
    has no verify command. NOT_APPLICABLE: the remote does not support pull requests.
    """

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FIXED = "fixed"
    SKIPPED = "skipped"
    NOT_APPLICABLE = "not_applicable"


def list_outcomes(steps: Sequence[Step]) -> list[Outcome]:
    """Return the outcomes of all steps of one attempt, in order."""
    found: list[Outcome] = []
    succeeded: set[tuple[int, str]] = set()
    for step in reversed(steps):
        outcome = _get_outcome(step)
        if outcome is Outcome.SUCCEEDED:
            succeeded.add((step.round, step.name))
        if outcome is Outcome.FAILED and step.status == "completed" and (step.round, step.name) in succeeded:
            outcome = Outcome.FIXED
        found.append(outcome)
    return found[::-1]


def _get_outcome(step: Step) -> Outcome:
    detail = step.detail or {}
    if step.status != "completed":
        return Outcome.RUNNING if step.status == "running" else Outcome.FAILED
    if detail.get("ok") is False:
        return Outcome.FAILED
    if step.name == StepName.VERIFY and "ok" not in detail:
        return Outcome.SKIPPED
    if step.name == StepName.PULL_REQUEST and detail.get("number") is None:
        return Outcome.NOT_APPLICABLE
    return Outcome.SUCCEEDED
