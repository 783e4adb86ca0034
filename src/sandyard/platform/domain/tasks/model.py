"""States of tasks and attempts."""

from __future__ import annotations

from enum import StrEnum


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
    def over(self) -> bool:
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
