"""Sandboxes, their commands and their terminals."""

from __future__ import annotations

from datetime import datetime
from typing import TypedDict

from sqlalchemy import Boolean, Float, Index, Integer, LargeBinary, String, Text, false
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, LongText, ShortText, belongs_to, may_refer_to
from sandyard.platform.db.types import BigInt, Json


class UsageSample(TypedDict):
    """`Sandbox.usage`: an `sandboxes.e2b.Usage`."""

    cpu_percent: float
    cpu_count: int
    memory_bytes: int
    memory_total_bytes: int
    disk_bytes: int
    disk_total_bytes: int
    at: str


class Sandbox(Base):
    """A sandbox, stored before the engine is called. `version` increases with every change, to detect concurrent
    changes."""

    __tablename__ = "sandboxes"
    __table_args__ = (Index("ix_sandboxes_owner_id_id", "owner_id", "id"), Index("ix_sandboxes_status", "status"))

    id: Mapped[Id]
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"))
    session_id: Mapped[str | None] = mapped_column(may_refer_to("sessions.id"), index=True)
    project_id: Mapped[str | None] = mapped_column(may_refer_to("projects.id"), index=True)
    deleted_project_id: Mapped[str | None] = mapped_column(String(40))  # whose settings still apply
    task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"), index=True)
    agent_id: Mapped[str | None] = mapped_column(String(100))
    internal: Mapped[bool] = mapped_column(default=False, server_default=false())
    """Used to build something that several people share. Only the platform and administrators may see or enter it."""
    template: Mapped[str] = mapped_column(String(256))
    engine_id: Mapped[str | None] = mapped_column(String(100), unique=True)
    idempotency_key: Mapped[str] = mapped_column(String(100), unique=True)
    status: Mapped[ShortText]  # provisioning, running, paused, error, destroyed
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    idle_seconds: Mapped[int] = mapped_column(Integer)
    command_count: Mapped[int] = mapped_column(Integer, default=0)
    pause_count: Mapped[int] = mapped_column(Integer, default=0)
    envs: Mapped[bytes | None] = mapped_column(LargeBinary)  # encrypted, in case it has to be created again
    usage: Mapped[UsageSample | None] = mapped_column(Json)  # the last sample
    # what it may connect to, as set on the engine; None: everything
    network: Mapped[list[str] | None] = mapped_column(Json)
    isolation: Mapped[str | None] = mapped_column(String(40))  # as reported by the engine; None: not reported
    # as reported by the engine; while it is provisioned, those of an earlier sandbox of its template
    cpu_count: Mapped[int | None] = mapped_column(Integer)
    memory_mb: Mapped[int | None] = mapped_column(Integer)
    created_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]
    paused_at: Mapped[datetime | None]
    seen_at: Mapped[datetime | None]  # when the engine last reported it
    destroy_requested_at: Mapped[datetime | None]  # its deletion is then carried out in any case
    destroyed_at: Mapped[datetime | None]
    version: Mapped[int] = mapped_column(Integer, default=1)

    __mapper_args__ = {"version_id_col": version}  # noqa: RUF012 - SQLAlchemy reads it from the class


class Command(Base):
    """A command. Its output is in files next to the database; the row has the sizes."""

    __tablename__ = "commands"
    __table_args__ = (Index("ix_commands_sandbox_id_id", "sandbox_id", "id"), Index("ix_commands_status", "status"))

    id: Mapped[Id]
    sandbox_id: Mapped[str] = mapped_column(belongs_to("sandboxes.id"))
    user_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    command: Mapped[LongText]
    cwd: Mapped[str | None] = mapped_column(Text)
    background: Mapped[bool] = mapped_column(Boolean)
    timeout_s: Mapped[float] = mapped_column(Float)
    status: Mapped[ShortText]  # starting, running, exited, timed_out, killed, lost, not_started
    exit_code: Mapped[int | None] = mapped_column(Integer)
    signal: Mapped[int | None] = mapped_column(Integer)
    error: Mapped[str | None] = mapped_column(Text)
    stdout_bytes: Mapped[int] = mapped_column(BigInt, default=0)
    stderr_bytes: Mapped[int] = mapped_column(BigInt, default=0)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]  # when its exit was observed
    duration_s: Mapped[float | None] = mapped_column(Float)  # as measured in the sandbox


class Terminal(Base):
    """A shell that people can return to."""

    __tablename__ = "terminals"

    id: Mapped[Id]
    sandbox_id: Mapped[str] = mapped_column(belongs_to("sandboxes.id"), index=True)
    user_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    pid: Mapped[int] = mapped_column(Integer)
    created_at: Mapped[datetime]
    closed_at: Mapped[datetime | None]
