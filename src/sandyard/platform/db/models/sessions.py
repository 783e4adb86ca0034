"""Sessions, their turns and their messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypedDict

from sqlalchemy import Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, ShortText, belongs_to, may_refer_to
from sandyard.platform.db.models.message_parts import MessagePart
from sandyard.platform.db.types import Json

UNTITLED = "Untitled session"
"""The title of a session without a title, until its first message."""


class Session(Base):
    __tablename__ = "sessions"

    id: Mapped[Id]
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    project_id: Mapped[str | None] = mapped_column(may_refer_to("projects.id"), index=True)
    deleted_project_id: Mapped[str | None] = mapped_column(String(40))  # whose settings still apply
    task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"), index=True)
    title: Mapped[str] = mapped_column(String(300))
    agent: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    mode: Mapped[str | None] = mapped_column(String(100))
    template: Mapped[str] = mapped_column(String(256))
    sandbox_id: Mapped[str | None] = mapped_column(String(40), index=True)  # its newest sandbox
    forked_from_id: Mapped[str | None] = mapped_column(String(40))  # may have been deleted since
    checkpoint: Mapped[str | None] = mapped_column(String(256))  # snapshot to provision it from
    checkpoint_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    archived_at: Mapped[datetime | None]


class TurnUsage(TypedDict, total=False):
    """`Turn.usage`."""

    models: dict[str, Any]
    """Counted by the platform: `models.model.Spent`."""
    agent: dict[str, Any] | str
    """Reported by the agent at the end of the turn, as JSON text if it is too long."""
    context: dict[str, Any]
    """Reported by the agent during the turn: how much of its context is used, and the cost so far."""


class Turn(Base):
    """One prompt and everything that followed."""

    __tablename__ = "turns"
    __table_args__ = (
        Index("uq_turns_session_id_number", "session_id", "number", unique=True),
        Index("ix_turns_status", "status"),
    )

    id: Mapped[Id]
    session_id: Mapped[str] = mapped_column(belongs_to("sessions.id"))
    number: Mapped[int] = mapped_column(Integer)
    key: Mapped[str | None] = mapped_column(String(200), unique=True)  # idempotency key
    origin: Mapped[ShortText]  # person, task, verify, feedback, test
    user_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    prompt_id: Mapped[str | None] = mapped_column(String(40))  # the message that it responds to
    model: Mapped[str | None] = mapped_column(String(200))
    mode: Mapped[str | None] = mapped_column(String(100))
    run_id: Mapped[str | None] = mapped_column(may_refer_to("agent_runs.id"), index=True)
    request: Mapped[int | None] = mapped_column(Integer)  # number of the request whose response ends the turn
    status: Mapped[ShortText]  # queued, running, waiting, completed, cancelled, failed, over_budget
    stop_reason: Mapped[str | None] = mapped_column(String(100))
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    usage: Mapped[TurnUsage] = mapped_column(Json, default=dict)
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    active_at: Mapped[datetime | None]  # last observed activity of the agent
    stuck_at: Mapped[datetime | None]  # when the agent began to look stuck
    cancel_at: Mapped[datetime | None]  # when cancellation was requested
    finished_at: Mapped[datetime | None]


class Message(Base):
    __tablename__ = "messages"
    __table_args__ = (Index("ix_messages_session_id_id", "session_id", "id"),)

    id: Mapped[Id]
    session_id: Mapped[str] = mapped_column(belongs_to("sessions.id"))
    turn_id: Mapped[str | None] = mapped_column(may_refer_to("turns.id"), index=True)
    author_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    role: Mapped[ShortText]  # user, agent or system
    parts: Mapped[list[MessagePart]] = mapped_column(Json)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime | None]  # when it was last extended
