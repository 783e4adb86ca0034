"""Events, the audit log, secrets and settings."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Index, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, belongs_to
from sandyard.platform.db.types import BigInt, Json


class Event(Base):
    """Something that happened. References are not foreign keys, because events outlive what they refer to."""

    __tablename__ = "events"
    __table_args__ = (
        Index("ix_events_session_id_seq", "session_id", "seq"),
        Index("ix_events_project_id_seq", "project_id", "seq"),
        Index("ix_events_owner_id_seq", "owner_id", "seq"),
        {"sqlite_autoincrement": True},  # a number is never used twice
    )

    seq: Mapped[int] = mapped_column(BigInt, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    kind: Mapped[str] = mapped_column(String(60))
    owner_id: Mapped[str | None] = mapped_column(String(40))
    project_id: Mapped[str | None] = mapped_column(String(40))
    task_id: Mapped[str | None] = mapped_column(String(40))
    session_id: Mapped[str | None] = mapped_column(String(40))
    sandbox_id: Mapped[str | None] = mapped_column(String(40))
    data: Mapped[dict[str, Any]] = mapped_column(Json)


class Audit(Base):
    """Append-only audit log. The database itself rejects changes."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_user_id_seq", "user_id", "seq"), {"sqlite_autoincrement": True})

    seq: Mapped[int] = mapped_column(BigInt, primary_key=True, autoincrement=True)
    at: Mapped[datetime] = mapped_column(index=True)
    user_id: Mapped[str | None] = mapped_column(String(40))
    user_name: Mapped[str | None] = mapped_column(String(200))
    means: Mapped[str | None] = mapped_column(String(60))  # which token or cookie was used
    action: Mapped[str] = mapped_column(String(60), index=True)
    target: Mapped[str | None] = mapped_column(String(300), index=True)
    outcome: Mapped[str] = mapped_column(String(40))  # ok, or an error code
    request_id: Mapped[str | None] = mapped_column(String(40))
    address: Mapped[str | None] = mapped_column(String(60))
    detail: Mapped[dict[str, Any]] = mapped_column(Json)


class StoredSecret(Base):
    __tablename__ = "secrets"
    __table_args__ = (Index("uq_secrets_owner_id_project_key_name", "owner_id", "project_key", "name", unique=True),)

    id: Mapped[Id]
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"))
    project_id: Mapped[str | None] = mapped_column(belongs_to("projects.id"), index=True)
    project_key: Mapped[str] = mapped_column(String(40))  # the project's id, or "" (NULLs are never equal)
    name: Mapped[str] = mapped_column(String(200))
    value: Mapped[bytes] = mapped_column(LargeBinary)  # encrypted
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class Setting(Base):
    """Small values about this installation."""

    __tablename__ = "settings"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    value: Mapped[str] = mapped_column(String(2000))
