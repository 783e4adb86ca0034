"""Cards, the attempts at them, what prepares their sandboxes, and what makes new ones by itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Boolean, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, LongText, Name, Word, belongs_to, may_refer_to
from sandyard.platform.db.types import Json


class Task(Base):
    """A card."""

    __tablename__ = "tasks"
    __table_args__ = (Index("ix_tasks_project_id_status_position", "project_id", "status", "position"),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    created_by: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    title: Mapped[str] = mapped_column(String(300))
    description: Mapped[LongText]
    status: Mapped[Word]  # backlog, in_progress, in_review, done, cancelled
    position: Mapped[int] = mapped_column(Integer)  # within its column
    priority: Mapped[int] = mapped_column(Integer)
    base_branch: Mapped[str | None] = mapped_column(String(250))
    agent: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    attempts: Mapped[list[dict[str, Any]]] = mapped_column(Json, default=list)  # agent and model of each that is wanted
    budget: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # usd, tokens
    source: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # what made it: a person, an issue, a schedule
    source_key: Mapped[str | None] = mapped_column(String(200), unique=True)  # what must not make a second one
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class TaskNeed(Base):
    """A task that is not begun before another one is done."""

    __tablename__ = "task_needs"

    task_id: Mapped[str] = mapped_column(belongs_to("tasks.id"), primary_key=True)
    needs_id: Mapped[str] = mapped_column(belongs_to("tasks.id"), primary_key=True, index=True)


class Attempt(Base):
    """One session's work on a task. Its rounds are durable workflows: `{id}-{round}`."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index("uq_attempts_task_id_number", "task_id", "number", unique=True),
        Index("ix_attempts_status", "status"),
    )

    id: Mapped[Id]
    task_id: Mapped[str] = mapped_column(belongs_to("tasks.id"))
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), index=True)
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)  # for whom it works
    number: Mapped[int] = mapped_column(Integer)
    session_id: Mapped[str] = mapped_column(String(40), index=True)  # chosen before the session is there
    agent: Mapped[str] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[Word]  # queued, running, ready, in_review, failed, cancelled, merged, archived
    step: Mapped[str | None] = mapped_column(String(40))  # of the round under way
    round: Mapped[int] = mapped_column(Integer)
    work: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # what the round is to do: its kind and its words
    detail: Mapped[dict[str, Any]] = mapped_column(
        Json, default=dict
    )  # what is known of it: verified, diff, pull request …
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    cancel_at: Mapped[datetime | None]  # when somebody asked for its end
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    updated_at: Mapped[datetime]


class Step(Base):
    """What people see of a workflow's step; the workflow itself remembers its own."""

    __tablename__ = "steps"

    attempt_id: Mapped[str] = mapped_column(belongs_to("attempts.id"), primary_key=True)
    round: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[Word]  # setup, provision, checkout, agent, verify, commit, push, pull_request
    status: Mapped[Word]  # running, completed, failed
    tries: Mapped[int] = mapped_column(Integer, default=1)  # more than one: it was begun again after a crash
    detail: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)
    error: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class Preparation(Base):
    """A checkout in which the project's setup has run and the agent is installed, kept as a snapshot."""

    __tablename__ = "preparations"
    __table_args__ = (Index("uq_preparations_project_id_key", "project_id", "key", unique=True),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    key: Mapped[str] = mapped_column(String(64))  # a digest of all it depends on
    owner_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    agent: Mapped[str | None] = mapped_column(String(100))
    template: Mapped[str] = mapped_column(String(256))
    base_branch: Mapped[str] = mapped_column(String(250))
    base_commit: Mapped[str] = mapped_column(String(64))
    status: Mapped[Word]  # preparing, ready, failed
    sandbox_id: Mapped[str | None] = mapped_column(String(40))  # in which it is being prepared
    snapshot: Mapped[str | None] = mapped_column(String(256))
    detail: Mapped[dict[str, Any]] = mapped_column(Json, default=dict)  # what ran: commands, sources, shallow, warnings
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]


class AgentSnapshot(Base):
    """A template in which an agent is installed, kept as a snapshot."""

    __tablename__ = "agent_snapshots"

    id: Mapped[Id]
    key: Mapped[str] = mapped_column(String(64), unique=True)  # a digest of all it depends on
    agent: Mapped[str] = mapped_column(String(100))
    template: Mapped[str] = mapped_column(String(256))
    snapshot: Mapped[str | None] = mapped_column(String(256))  # None: not ready, or lost
    engine_id: Mapped[str | None] = mapped_column(String(100))  # of the sandbox that the snapshot is of
    sandbox_id: Mapped[str | None] = mapped_column(String(40))  # in which it is being made
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]


class Schedule(Base):
    """What makes a task again and again."""

    __tablename__ = "schedules"
    __table_args__ = (Index("ix_schedules_next_at", "next_at"),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), index=True)
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    name: Mapped[Name]
    cron: Mapped[str] = mapped_column(String(100))
    timezone: Mapped[str] = mapped_column(String(60))
    task: Mapped[dict[str, Any]] = mapped_column(Json)  # title, description, agent …
    enabled: Mapped[bool] = mapped_column(Boolean)
    next_at: Mapped[datetime | None]
    last_at: Mapped[datetime | None]
    last_task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
