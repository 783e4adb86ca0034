"""Statuses of turns, runs and questions, and the origins of prompts."""

from __future__ import annotations

from enum import StrEnum


class TurnStatus(StrEnum):
    """WAITING: the agent waits for a person. OVER_BUDGET: the turn was stopped because the budget of its task or
    project is used up."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"
    OVER_BUDGET = "over_budget"

    @property
    def is_final(self) -> bool:
        return self not in OPEN_TURNS


OPEN_TURNS = (TurnStatus.QUEUED, TurnStatus.RUNNING, TurnStatus.WAITING)


PLATFORM = "platform"
"""The source of a text part of a prompt that no person wrote, and the author of asks that are not the agent's."""


class Origin(StrEnum):
    """The source of a prompt: a person in the session, a task's description, a failed verify command, feedback on the
    pull request, or the test of an agent."""

    PERSON = "person"
    TASK = "task"
    VERIFY = "verify"
    FEEDBACK = "feedback"
    TEST = "test"


class RunStatus(StrEnum):
    """LOST: the sandbox failed or was deleted, so the end of the process is unknown."""

    STARTING = "starting"
    READY = "ready"
    ENDED = "ended"
    LOST = "lost"


LIVE_RUNS = (RunStatus.STARTING, RunStatus.READY)


class AskKind(StrEnum):
    PERMISSION = "permission"
    QUESTION = "question"


class AskStatus(StrEnum):
    PENDING = "pending"
    ANSWERED = "answered"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
