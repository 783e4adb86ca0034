"""Errors of moving tasks on the board."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandyard.kit.errors import ConflictError, InvalidInputError
from sandyard.platform.domain.tasks.model import Column


class ColumnFullError(ConflictError):
    """The column is full."""

    code = "column_full"

    def __init__(self, column: Column, limit: int, count: int) -> None:
        self.column, self.limit, self.count = column, limit, count
        super().__init__(
            f"The column {column} is full ({count} of {limit} tasks). Move a task out of it, or raise the "
            "limit in the project's settings."
        )

    @property
    def extra(self) -> Mapping[str, object]:
        return {"column": self.column, "limit": self.limit, "count": self.count}


class TaskBlockedError(ConflictError):
    """Tasks that this one needs are not done."""

    code = "task_blocked"

    def __init__(self, blockers: Sequence[tuple[str, str, str]]) -> None:
        """Build the message. `blockers`: id, title and column of each."""
        self.ids = [task_id for task_id, _, _ in blockers]
        named = ", ".join(f"{task_id} ({title[:60]!r}, {column})" for task_id, title, column in blockers[:5])
        more = f" and {len(blockers) - 5} more" if len(blockers) > 5 else ""
        super().__init__(f"The task needs tasks that are not done yet: {named}{more}.")

    @property
    def extra(self) -> Mapping[str, object]:
        return {"blockedBy": self.ids}


class MoveRefusedError(ConflictError):
    """This move is not allowed."""

    code = "move_refused"


class NothingInReviewError(ConflictError):
    """No attempt at this task is in review, so there is no agent to receive the feedback. Retry the task instead."""

    code = "nothing_in_review"


class FeedbackNeededError(InvalidInputError):
    """Feedback is required to send a task back from review. The agent receives it as its next prompt."""

    code = "feedback_needed"


class NeedsCycleError(InvalidInputError):
    """Tasks cannot need each other in a cycle."""

    code = "needs_cycle"
