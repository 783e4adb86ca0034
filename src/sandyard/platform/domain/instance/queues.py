"""Count waiting and running work in the database, for the status page and for metrics."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import func, null, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from sandyard.platform.db.models import Ask, Attempt, Command, GitOperation, Preparation, Sandbox, Turn


class QueueName(StrEnum):
    ATTEMPTS = "attempts"
    TURNS = "turns"
    QUESTIONS = "questions"
    GIT = "git"
    PREPARATIONS = "preparations"
    SANDBOXES = "sandboxes"
    COMMANDS = "commands"


@dataclass(frozen=True, slots=True)
class Queue:
    """How many items of one kind of work wait and run. `waiting_since`: when the oldest waiting item was queued."""

    name: QueueName
    waiting: int
    running: int
    waiting_since: datetime | None = None
    limit: int | None = None  # how many may run at once


@dataclass(frozen=True, slots=True)
class _Source:
    """The columns that hold a queue's work: the status column, when an item was queued, and the statuses that mean waiting and running."""

    name: QueueName
    status: InstrumentedAttribute[str]
    since: InstrumentedAttribute[datetime] | InstrumentedAttribute[datetime | None] | None
    waiting: tuple[str, ...]
    running: tuple[str, ...]


_SOURCES = (
    _Source(QueueName.ATTEMPTS, Attempt.status, Attempt.queued_at, ("queued",), ("running",)),
    _Source(QueueName.TURNS, Turn.status, Turn.queued_at, ("queued",), ("running", "waiting")),
    _Source(QueueName.QUESTIONS, Ask.status, Ask.created_at, ("pending",), ()),
    _Source(QueueName.GIT, GitOperation.status, GitOperation.created_at, ("queued",), ("running",)),
    _Source(QueueName.PREPARATIONS, Preparation.status, None, (), ("preparing",)),
    _Source(QueueName.SANDBOXES, Sandbox.status, Sandbox.created_at, ("provisioning",), ("running",)),
    _Source(QueueName.COMMANDS, Command.status, None, ("starting",), ("running",)),
)


async def read_queues(session: AsyncSession, *, parallel_attempts: int) -> list[Queue]:
    """Count the work of each kind."""
    limits = {QueueName.ATTEMPTS: parallel_attempts}
    return [await _read_queue(session, source, limits.get(source.name)) for source in _SOURCES]


async def _read_queue(session: AsyncSession, source: _Source, limit: int | None) -> Queue:
    oldest = null() if source.since is None else func.min(source.since)
    query = select(source.status, func.count(), oldest).where(source.status.in_((*source.waiting, *source.running)))
    rows = (await session.execute(query.group_by(source.status))).all()
    counts = {status: count for status, count, _ in rows}
    since = [first for status, _, first in rows if status in source.waiting and first is not None]
    return Queue(
        source.name,
        sum(counts.get(status, 0) for status in source.waiting),
        sum(counts.get(status, 0) for status in source.running),
        min(since, default=None),
        limit,
    )
