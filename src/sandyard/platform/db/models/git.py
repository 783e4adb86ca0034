"""Checkouts, their operations and checkpoints, and pull requests."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Boolean, Index, Integer, LargeBinary, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, ShortText, belongs_to, may_refer_to
from sandyard.platform.db.models.git_details import (
    OperationArguments,
    OperationDetail,
    PullRequestDetail,
    ReportedNews,
)
from sandyard.platform.db.types import Json

Commit = String(64)


class Credential(Base):
    """Credentials of a project's remote and its forge. `hint` is the part that may be shown."""

    __tablename__ = "credentials"

    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), primary_key=True)
    kind: Mapped[str] = mapped_column(String(40), primary_key=True)  # token, app, ssh_key, webhook_secret
    value: Mapped[bytes] = mapped_column(LargeBinary)  # encrypted
    hint: Mapped[str] = mapped_column(String(100))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Checkout(Base):
    """A repository in a sandbox, on its own branch."""

    __tablename__ = "checkouts"

    sandbox_id: Mapped[str] = mapped_column(belongs_to("sandboxes.id"), primary_key=True)
    session_id: Mapped[str | None] = mapped_column(may_refer_to("sessions.id"), index=True)
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), index=True)
    folder: Mapped[str] = mapped_column(String(1000))
    branch: Mapped[str] = mapped_column(String(250), index=True)
    base_branch: Mapped[str] = mapped_column(String(250))
    base_commit: Mapped[str] = mapped_column(Commit)
    # commits of the base branch that the platform put into it, oldest first; its sandbox has no influence on them
    bases: Mapped[list[str]] = mapped_column(Json, default=list, server_default="[]")
    head: Mapped[str] = mapped_column(Commit)  # its newest commit in the mirror
    shallow: Mapped[list[str]] = mapped_column(Json, default=list)  # commits where its history is cut off
    pushed: Mapped[str | None] = mapped_column(Commit)  # the remote's branch after our last push
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class GitOperation(Base):
    """A git operation, stored before it starts. `arguments` contain everything needed to restart it after a crash."""

    __tablename__ = "git_operations"
    __table_args__ = (
        Index("ix_git_operations_status", "status"),
        Index("ix_git_operations_sandbox_id_id", "sandbox_id", "id"),
    )

    id: Mapped[Id]
    project_id: Mapped[str | None] = mapped_column(belongs_to("projects.id"), index=True)
    session_id: Mapped[str | None] = mapped_column(belongs_to("sessions.id"), index=True)
    sandbox_id: Mapped[str | None] = mapped_column(belongs_to("sandboxes.id"))
    user_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    kind: Mapped[ShortText]
    status: Mapped[ShortText]  # queued, running, completed, failed
    arguments: Mapped[OperationArguments] = mapped_column(Json)
    detail: Mapped[OperationDetail] = mapped_column(Json, default=dict)
    attempts: Mapped[int] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class Checkpoint(Base):
    """A whole work tree, stored as a commit in the mirror under a private ref."""

    __tablename__ = "checkpoints"
    __table_args__ = (
        Index("ix_checkpoints_session_id_id", "session_id", "id"),
        Index("ix_checkpoints_sandbox_id_id", "sandbox_id", "id"),
    )

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), index=True)
    session_id: Mapped[str | None] = mapped_column(belongs_to("sessions.id"))
    sandbox_id: Mapped[str] = mapped_column(String(40))
    reason: Mapped[ShortText]  # asked, pause, destroy, push, turn, restore
    commit: Mapped[str] = mapped_column(Commit)
    head: Mapped[str] = mapped_column(Commit)
    branch: Mapped[str] = mapped_column(String(250))
    base_branch: Mapped[str] = mapped_column(String(250))
    base_commit: Mapped[str] = mapped_column(Commit)
    changed: Mapped[int] = mapped_column(Integer)  # number of uncommitted files
    created_at: Mapped[datetime]


class PullRequest(Base):
    """A pull request as last reported by the forge. On a plain remote it has no number, only a branch to compare."""

    __tablename__ = "pull_requests"
    __table_args__ = (Index("uq_pull_requests_project_id_number", "project_id", "number", unique=True),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    session_id: Mapped[str | None] = mapped_column(may_refer_to("sessions.id"), index=True)
    task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"), index=True)
    sandbox_id: Mapped[str | None] = mapped_column(String(40))
    forge: Mapped[ShortText]  # github, plain
    number: Mapped[int | None] = mapped_column(Integer)
    url: Mapped[str] = mapped_column(String(2000))
    title: Mapped[str] = mapped_column(String(300))
    state: Mapped[str] = mapped_column(String(40), index=True)  # open, closed, merged, pushed
    draft: Mapped[bool] = mapped_column(Boolean)
    head_branch: Mapped[str] = mapped_column(String(250), index=True)
    base_branch: Mapped[str] = mapped_column(String(250))
    head_commit: Mapped[str | None] = mapped_column(Commit)
    mergeable: Mapped[bool | None] = mapped_column(Boolean)
    review: Mapped[ShortText]  # none, commented, approved, changes_requested
    checks: Mapped[ShortText]  # none, pending, passing, failing
    detail: Mapped[PullRequestDetail] = mapped_column(Json, default=dict)
    told: Mapped[ReportedNews] = mapped_column(Json, default=dict)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    looked_at: Mapped[datetime | None]  # when the forge was last queried
    merged_at: Mapped[datetime | None]
    closed_at: Mapped[datetime | None]
    branch_deleted_at: Mapped[datetime | None]


class Delivery(Base):
    """A webhook delivery that was processed, so that it is not processed twice."""

    __tablename__ = "webhook_deliveries"

    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), primary_key=True)
    delivery: Mapped[str] = mapped_column(String(100), primary_key=True)
    event: Mapped[str] = mapped_column(String(60))
    received_at: Mapped[datetime] = mapped_column(index=True)
