"""Why a card may not be where somebody wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sandyard.kit.errors import ConflictError, InvalidInputError
from sandyard.platform.domain.tasks.model import Column


class ColumnFullError(ConflictError):
    """The column holds as many tasks as it may."""

    code = "column_full"

    def __init__(self, column: Column, limit: int, count: int) -> None:
        self.column, self.limit, self.count = column, limit, count
        super().__init__(
            f"The column {column} may hold {limit} and has {count}. Move one out of it first, or raise its limit in the "
            "project's settings."
        )

    @property
    def extra(self) -> Mapping[str, object]:
        return {"column": self.column, "limit": self.limit, "count": self.count}


class TaskBlockedError(ConflictError):
    """Tasks that this one needs are not done."""

    code = "task_blocked"

    def __init__(self, blockers: Sequence[tuple[str, str, str]]) -> None:
        """`blockers`: id, title and column of each."""
        self.ids = [task_id for task_id, _, _ in blockers]
        named = ", ".join(f"{task_id} ({title[:60]!r}, {column})" for task_id, title, column in blockers[:5])
        more = f" and {len(blockers) - 5} more" if len(blockers) > 5 else ""
        super().__init__(f"It needs what is not done yet: {named}{more}.")

    @property
    def extra(self) -> Mapping[str, object]:
        return {"blockedBy": self.ids}


class MoveRefusedError(ConflictError):
    """A task does not go from there to there."""

    code = "move_refused"


class NothingInReviewError(ConflictError):
    """No attempt at this task is in review, so nobody would get the feedback. Retry the task instead."""

    code = "nothing_in_review"


class FeedbackNeededError(InvalidInputError):
    """A task that goes back from review needs feedback: the words that the agent gets next."""

    code = "feedback_needed"


class NeedsCycleError(InvalidInputError):
    """Tasks cannot need each other in a circle."""

    code = "needs_cycle"
