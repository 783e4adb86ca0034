"""All that is shown of tasks, gathered in a few questions however many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer

from sandyard.kit.clock import Clock
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, ModelCall, PullRequest, Session, Step, Task
from sandyard.platform.domain.models.model import MICROS, Spent
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.needs import needs_of
from sandyard.platform.domain.tasks.placing import index_in_column
from sandyard.platform.domain.users.tokens import instant


class Queue(Protocol):
    async def positions(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class AttemptCard:
    """`queue_position`: 1 is the next. `steps`: None when they were not asked for."""

    attempt: Attempt
    sandbox_id: str | None
    queue_position: int | None
    spent: Spent
    seconds: float | None
    pull_request: PullRequest | None
    steps: Sequence[Step] | None


@dataclass(frozen=True, slots=True)
class Card:
    """`position`: its place in its column, from 0. `blocked_by`: those of its needs that are not done."""

    task: Task
    position: int
    needs: Sequence[str]
    blocked_by: Sequence[str]
    attempts: Sequence[AttemptCard]
    pull_request: PullRequest | None

    @property
    def queue_position(self) -> int | None:
        return min((one.queue_position for one in self.attempts if one.queue_position is not None), default=None)


class Cards:
    def __init__(self, database: Database, queue: Queue, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock

    async def one(self, task: Task) -> Card:
        """With the steps of its attempts."""
        return (await self.of([task], steps=True))[0]

    async def of(self, tasks: Sequence[Task], *, steps: bool = False) -> list[Card]:
        """In the same order, as they are now: a task and its attempts change together, and are read together. Who may see the
        tasks was checked before."""
        ids = [task.id for task in tasks]
        async with self._database.reading() as session:
            places = select(Task.id, index_in_column()).where(Task.id.in_(ids))
            positions = {row[0]: row[1] for row in (await session.execute(places)).all()}
            needs = await needs_of(session, ids)
            both = select(Task, Attempt).outerjoin(Attempt, Attempt.task_id == Task.id).where(Task.id.in_(ids))
            rows = (await session.execute(both.order_by(Attempt.task_id, Attempt.number))).all()
            now = {task.id: task for task, _ in rows}
            attempts = [attempt for _, attempt in rows if attempt is not None]
            gathered = await self._gather(session, attempts, steps=steps)
            by_task, _ = await _pull_requests(session, ids, [])
        by_id: dict[str, list[AttemptCard]] = {}
        for one in gathered:
            by_id.setdefault(one.attempt.task_id, []).append(one)
        return [
            Card(
                task=task,
                position=positions.get(task.id, 0),
                needs=[needed.id for needed in needs.get(task.id, [])],
                blocked_by=[needed.id for needed in needs.get(task.id, []) if needed.status != Column.DONE],
                attempts=by_id.get(task.id, []),
                pull_request=by_task.get(task.id),
            )
            for task in (now.get(task.id, task) for task in tasks)  # or it was deleted meanwhile
        ]

    async def attempts(self, rows: Sequence[Attempt]) -> list[AttemptCard]:
        """With their steps."""
        async with self._database.reading() as session:
            return await self._gather(session, rows, steps=True)

    async def titles(self, task_ids: Sequence[str]) -> dict[str, str]:
        async with self._database.reading() as session:
            rows = (await session.execute(select(Task.id, Task.title).where(Task.id.in_(task_ids)))).all()
        return {row[0]: row[1] for row in rows}

    async def _gather(self, session: AsyncSession, rows: Sequence[Attempt], *, steps: bool) -> list[AttemptCard]:
        sessions = [row.session_id for row in rows]
        sandboxes = await _sandboxes(session, sessions)
        spent = await _spent(session, sessions)
        _, pulls = await _pull_requests(session, [], sessions)
        done = await _steps(session, [row.id for row in rows]) if steps else None
        waits = any(row.status == AttemptStatus.QUEUED for row in rows)
        queue = await self._queue.positions() if waits else {}
        now = instant(self._clock)
        return [
            AttemptCard(
                attempt=row,
                sandbox_id=sandboxes.get(row.session_id),
                queue_position=queue.get(row.id),
                spent=spent.get(row.session_id, Spent()),
                seconds=_seconds(row, now),
                pull_request=pulls.get(row.session_id),
                steps=None if done is None else done.get(row.id, []),
            )
            for row in rows
        ]


def _seconds(row: Attempt, now: datetime) -> float | None:
    """From its beginning to its end, or until now."""
    if row.started_at is None:
        return None
    return max(0.0, ((row.finished_at or now) - row.started_at).total_seconds())


async def _sandboxes(session: AsyncSession, sessions: Sequence[str]) -> Mapping[str, str | None]:
    rows = (await session.execute(select(Session.id, Session.sandbox_id).where(Session.id.in_(sessions)))).all()
    return {row[0]: row[1] for row in rows}


async def _steps(session: AsyncSession, attempts: Sequence[str]) -> Mapping[str, list[Step]]:
    query = select(Step).where(Step.attempt_id.in_(attempts)).order_by(Step.attempt_id, Step.round, Step.number)
    found: dict[str, list[Step]] = {}
    for row in await session.scalars(query):
        found.setdefault(row.attempt_id, []).append(row)
    return found


async def _spent(session: AsyncSession, sessions: Sequence[str]) -> Mapping[str, Spent]:
    """By session, as they were counted at the proxy."""
    call, total = ModelCall, func.coalesce
    unpriced = case((and_(call.cost_micros.is_(None), call.status.between(200, 299)), 1), else_=0)
    query = select(
        call.session_id,
        func.count(),
        total(func.sum(call.input_tokens), 0),
        total(func.sum(call.output_tokens), 0),
        total(func.sum(call.cache_read_tokens), 0),
        total(func.sum(call.cache_write_tokens), 0),
        func.sum(call.cost_micros),
        func.sum(unpriced),
    ).where(call.session_id.in_(sessions))
    found: dict[str, Spent] = {}
    for row in (await session.execute(query.group_by(call.session_id))).all():
        missing = int(row[7])
        cost = None if row[6] is None and missing else int(row[6] or 0) / MICROS
        found[row[0]] = Spent(int(row[1]), int(row[2]), int(row[3]), int(row[4]), int(row[5]), cost, missing)
    return found


async def _pull_requests(
    session: AsyncSession, tasks: Sequence[str], sessions: Sequence[str]
) -> tuple[Mapping[str, PullRequest], Mapping[str, PullRequest]]:
    """The newest by task, and by session."""
    by_task, by_session = PullRequest.task_id.in_(tasks), PullRequest.session_id.in_(sessions)
    query = select(PullRequest).options(defer(PullRequest.detail), defer(PullRequest.told))  # they can be large
    rows = list(await session.scalars(query.where(or_(by_task, by_session)).order_by(PullRequest.id)))
    return (
        {row.task_id: row for row in rows if row.task_id is not None},
        {row.session_id: row for row in rows if row.session_id is not None},
    )
