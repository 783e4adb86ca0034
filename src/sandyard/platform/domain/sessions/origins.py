"""Origins of sessions' sandboxes: what they are created from, and which part of the work that already contains."""

from __future__ import annotations

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
from sandyard.platform.db.models.git_details import OperationArguments
from sandyard.platform.domain.git.model import OperationKind, PreparedCheckout
from sandyard.platform.domain.sandboxes.model import utc_now


def is_newer(checkpoint: Checkpoint | None, row: Session) -> bool:
    """Return whether the checkpoint in Git is newer than the session's snapshot."""
    return checkpoint is not None and (row.checkpoint_at is None or checkpoint.created_at > row.checkpoint_at)


def get_prepared_checkout(preparation: Preparation) -> PreparedCheckout:
    """Return the checkout that the snapshot of a preparation contains."""
    return PreparedCheckout(
        base=preparation.base_branch,
        commit=preparation.base_commit,
        shallow=tuple(preparation.detail.get("shallow", ())),
        warnings=tuple(preparation.detail.get("lacks", ())),
    )


def select_preparation(row: Session, project: Project) -> Select[Preparation]:
    """Return a query of the preparation that one of the session's sandboxes was created from, if it still exists."""
    templates = select(Sandbox.template).where(Sandbox.session_id == row.id)
    query = select(Preparation).where(Preparation.project_id == project.id, Preparation.snapshot.in_(templates))
    return query.where(Preparation.status == PreparationStatus.READY).limit(1)


def select_first_checkout(row: Session) -> Select[OperationArguments]:
    """Return a query of the arguments of the session's first clone."""
    query = select(GitOperation.arguments).where(
        GitOperation.session_id == row.id, GitOperation.kind == OperationKind.CLONE
    )
    return query.order_by(GitOperation.id).limit(1)


def copy_checkout(checkout: Checkout, sandbox: Sandbox) -> Checkout:
    """Return the checkout for a new sandbox that has the files of the checkout's sandbox."""
    columns = {column.key: getattr(checkout, column.key) for column in Checkout.__table__.columns}
    own = {"sandbox_id": sandbox.id, "session_id": sandbox.session_id, "updated_at": utc_now()}
    return Checkout(**{**columns, **own})


def fork_checkout(checkout: Checkout, sandbox: Sandbox) -> Checkout:
    """Return the checkout for a copy of the checkout's sandbox, which continues to exist.

    Its branch does not exist until the copy gets one of its own. If that fails, nothing is pushed to the original's branch.
    """
    copy = copy_checkout(checkout, sandbox)
    copy.branch, copy.pushed = f"session/{sandbox.session_id}", None
    return copy
