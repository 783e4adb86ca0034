"""Changes of an attempt's row, inside the caller's transaction."""

from __future__ import annotations

from typing import Any

from sandyard.platform.db.database import Transaction
from sandyard.platform.db.models import Attempt, Task
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.tasks.model import AttemptStatus
from sandyard.platform.domain.tasks.moves import lock_board

_REVIEWABLE = (AttemptStatus.READY, AttemptStatus.IN_REVIEW)


async def lock_attempt(tx: Transaction, attempt_id: str) -> tuple[Task, Attempt] | None:
    """Lock and return an attempt and its task. The board is locked first, as everywhere."""
    found = await tx.session.get(Attempt, attempt_id)
    if found is None:
        return None
    await lock_board(tx, found.project_id)
    task = await tx.session.get(Task, found.task_id, with_for_update=True, populate_existing=True)
    attempt = await tx.session.get(Attempt, attempt_id, with_for_update=True, populate_existing=True)
    return None if task is None or attempt is None else (task, attempt)


def set_attempt_status(
    tx: Transaction, row: Attempt, status: AttemptStatus, *, error: str | None = None, error_code: str | None = None
) -> None:
    """Set the final or resting status of an attempt."""
    now = utc_now()
    row.status, row.error, row.error_code, row.updated_at = status, error, error_code, now
    row.finished_at = now
    if status not in _REVIEWABLE:
        row.step = None
    emit_attempt_event(
        tx, row, f"attempt.{status}", round=row.round, error=None if error is None else error[:1000], code=error_code
    )


def emit_attempt_event(tx: Transaction, row: Attempt, kind: str, **data: Any) -> None:
    tx.emit(
        kind,
        owner_id=row.owner_id,
        project_id=row.project_id,
        task_id=row.task_id,
        session_id=row.session_id,
        attemptId=row.id,
        number=row.number,
        **data,
    )
