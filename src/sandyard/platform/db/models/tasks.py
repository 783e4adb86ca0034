"""Tasks, their attempts, the preparation of their sandboxes, and schedules."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Boolean, Index, Integer, String, Text
from sqlalchemy.orm import Mapped, mapped_column

from sandyard.platform.db.base import Base, Id, LongText, Name, ShortText, belongs_to, may_refer_to
from sandyard.platform.db.models.task_details import (
    AttemptDetail,
    PreparationDetail,
    RequestedAttempt,
    RoundWork,
    StepDetail,
    TaskBudget,
    TaskSource,
)
from sandyard.platform.db.types import Json


class Task(Base):
    """A task on the board."""

    __tablename__ = "tasks"
    __table_args__ = (Index("ix_tasks_project_id_status_position", "project_id", "status", "position"),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    created_by: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    title: Mapped[str] = mapped_column(String(300))
    description: Mapped[LongText]
    status: Mapped[ShortText]  # backlog, in_progress, in_review, done, cancelled
    position: Mapped[int] = mapped_column(Integer)  # within its column
    priority: Mapped[int] = mapped_column(Integer)
    base_branch: Mapped[str | None] = mapped_column(String(250))
    # attempts start from copies of its sandbox; it may have been deleted
    from_session_id: Mapped[str | None] = mapped_column(String(40))
    agent: Mapped[str | None] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    attempts: Mapped[list[RequestedAttempt]] = mapped_column(Json, default=list)
    budget: Mapped[TaskBudget] = mapped_column(Json, default=dict)
    source: Mapped[TaskSource] = mapped_column(Json, default=dict)
    # makes sure that the source creates only one task
    source_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    error: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]


class TaskNeed(Base):
    """A dependency: the task does not start before the other one is done."""

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
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)  # on whose behalf it works
    number: Mapped[int] = mapped_column(Integer)
    session_id: Mapped[str] = mapped_column(String(40), index=True)  # chosen before the session exists
    agent: Mapped[str] = mapped_column(String(100))
    model: Mapped[str | None] = mapped_column(String(200))
    status: Mapped[ShortText]  # queued, running, ready, in_review, failed, cancelled, merged, archived
    step: Mapped[str | None] = mapped_column(String(40))  # of the current round
    round: Mapped[int] = mapped_column(Integer)
    work: Mapped[RoundWork] = mapped_column(Json, default=dict)
    detail: Mapped[AttemptDetail] = mapped_column(Json, default=dict)
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    cancel_at: Mapped[datetime | None]  # when cancellation was requested
    queued_at: Mapped[datetime]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    updated_at: Mapped[datetime]


class Step(Base):
    """A workflow step as shown to people. The workflow engine stores its own steps."""

    __tablename__ = "steps"

    attempt_id: Mapped[str] = mapped_column(belongs_to("attempts.id"), primary_key=True)
    round: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[ShortText]  # setup, provision, checkout, agent, verify, commit, push, pull_request
    status: Mapped[ShortText]  # running, completed, failed
    tries: Mapped[int] = mapped_column(Integer, default=1)  # more than one: it was restarted after a crash
    detail: Mapped[StepDetail] = mapped_column(Json, default=dict)
    error: Mapped[str | None] = mapped_column(Text)
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]


class PreparationStatus(StrEnum):
    PREPARING = "preparing"
    READY = "ready"
    FAILED = "failed"


class Preparation(Base):
    """A snapshot of a checkout in which the project's setup has run and the agent is installed."""

    __tablename__ = "preparations"
    __table_args__ = (Index("uq_preparations_project_id_key", "project_id", "key", unique=True),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"))
    key: Mapped[str] = mapped_column(String(64))  # digest of everything it depends on
    owner_id: Mapped[str | None] = mapped_column(may_refer_to("users.id"), index=True)
    agent: Mapped[str | None] = mapped_column(String(100))
    template: Mapped[str] = mapped_column(String(256))
    base_branch: Mapped[str] = mapped_column(String(250))
    base_commit: Mapped[str] = mapped_column(String(64))
    status: Mapped[ShortText]  # a PreparationStatus
    sandbox_id: Mapped[str | None] = mapped_column(String(40))  # where it is being prepared
    snapshot: Mapped[str | None] = mapped_column(String(256))
    detail: Mapped[PreparationDetail] = mapped_column(Json, default=dict)
    error: Mapped[str | None] = mapped_column(Text)
    error_code: Mapped[str | None] = mapped_column(String(40))
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    used_at: Mapped[datetime | None]


class AgentSnapshot(Base):
    """A snapshot of a template in which an agent is installed."""

    __tablename__ = "agent_snapshots"

    id: Mapped[Id]
    key: Mapped[str] = mapped_column(String(64), unique=True)  # digest of everything it depends on
    agent: Mapped[str] = mapped_column(String(100))
    template: Mapped[str] = mapped_column(String(256))
    snapshot: Mapped[str | None] = mapped_column(String(256))  # None: not ready, or lost
    engine_id: Mapped[str | None] = mapped_column(String(100))  # of the sandbox that the snapshot was taken of
    sandbox_id: Mapped[str | None] = mapped_column(String(40))  # where it is being created
    created_at: Mapped[datetime]
    used_at: Mapped[datetime]


class Schedule(Base):
    """Creates a task repeatedly."""

    __tablename__ = "schedules"
    __table_args__ = (Index("ix_schedules_next_at", "next_at"),)

    id: Mapped[Id]
    project_id: Mapped[str] = mapped_column(belongs_to("projects.id"), index=True)
    owner_id: Mapped[str] = mapped_column(belongs_to("users.id"), index=True)
    name: Mapped[Name]
    cron: Mapped[str] = mapped_column(String(100))
    timezone: Mapped[str] = mapped_column(String(60))
    # only `tasks.schedules.ScheduledTask`, a pydantic model, writes and reads its keys
    task: Mapped[dict[str, Any]] = mapped_column(Json)
    enabled: Mapped[bool] = mapped_column(Boolean)
    next_at: Mapped[datetime | None]
    last_at: Mapped[datetime | None]
    last_task_id: Mapped[str | None] = mapped_column(may_refer_to("tasks.id"))
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]
