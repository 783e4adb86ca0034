"""What a session's sandbox is created from, and which of its work that already contains."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select

from sandyard.platform.db.models import (
    Checkout,
    Checkpoint,
    GitOperation,
    Preparation,
    PreparationStatus,
    Project,
    Sandbox,
    Session,
)
from sandyard.platform.domain.git.model import OperationKind, PreparedCheckout
from sandyard.platform.domain.sandboxes.model import utc_now


def is_newer(kept: Checkpoint | None, row: Session) -> bool:
    """Return whether Git has newer work than the snapshot."""
    return kept is not None and (row.checkpoint_at is None or kept.created_at > row.checkpoint_at)


def get_prepared_checkout(preparation: Preparation) -> PreparedCheckout:
    return PreparedCheckout(
        base=preparation.base_branch,
        commit=preparation.base_commit,
        shallow=tuple(preparation.detail.get("shallow", ())),
        warnings=tuple(preparation.detail.get("lacks", ())),
    )


def select_preparation(row: Session, project: Project) -> Select[Preparation]:
    """Return the preparation that one of its sandboxes was created from, if it still exists."""
    made_of = select(Sandbox.template).where(Sandbox.session_id == row.id)
    query = select(Preparation).where(Preparation.project_id == project.id, Preparation.snapshot.in_(made_of))
    return query.where(Preparation.status == PreparationStatus.READY).limit(1)


def select_first_checkout(row: Session) -> Select[dict[str, Any]]:
    """Return the arguments of the first clone."""
    query = select(GitOperation.arguments).where(
        GitOperation.session_id == row.id, GitOperation.kind == OperationKind.CLONE
    )
    return query.order_by(GitOperation.id).limit(1)


def move_checkout(checkout: Checkout, sandbox_id: str) -> Checkout:
    """Return the same checkout for a sandbox that was created from a snapshot of its own."""
    columns = {column.key: getattr(checkout, column.key) for column in Checkout.__table__.columns}
    return Checkout(**{**columns, "sandbox_id": sandbox_id, "updated_at": utc_now()})
