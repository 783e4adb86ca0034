"""The words for cards and the attempts at them."""

from __future__ import annotations

from enum import StrEnum


class Column(StrEnum):
    """Where a card is; the status of a task."""

    BACKLOG = "backlog"
    IN_PROGRESS = "in_progress"
    IN_REVIEW = "in_review"
    DONE = "done"
    CANCELLED = "cancelled"


class AttemptStatus(StrEnum):
    """READY: done and committed, and one of several that somebody has to pick from. ARCHIVED: another one was picked."""

    QUEUED = "queued"
    RUNNING = "running"
    READY = "ready"
    IN_REVIEW = "in_review"
    FAILED = "failed"
    CANCELLED = "cancelled"
    MERGED = "merged"
    ARCHIVED = "archived"

    @property
    def over(self) -> bool:
        return self not in OPEN_ATTEMPTS


OPEN_ATTEMPTS = (AttemptStatus.QUEUED, AttemptStatus.RUNNING, AttemptStatus.READY, AttemptStatus.IN_REVIEW)


class RoundKind(StrEnum):
    """What a round of an attempt is for: the task itself, words from a person or the forge, the publishing of one that was picked,
    or once more after a failure."""

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
