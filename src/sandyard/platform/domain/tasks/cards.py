"""Collect everything shown of tasks, in a fixed number of queries."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Protocol

from sqlalchemy import BindParameter, Select, bindparam, func, inspect, or_, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import defer
from sqlalchemy.orm.attributes import set_committed_value

from sandyard.kit.clock import Clock, get_time
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, ModelCall, PullRequest, Session, Step, Task
from sandyard.platform.domain.models.ledger import USAGE_SUMS, to_totals
from sandyard.platform.domain.models.model import UsageTotals
from sandyard.platform.domain.tasks.dependencies import list_needs
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.positions import select_index


class Queue(Protocol):
    async def get_queue_positions(self) -> dict[str, int]: ...


@dataclass(frozen=True, slots=True)
class AttemptCard:
    """An attempt as shown on the board.

    `session_id`: None until its session exists, whose id is chosen before, and after it was deleted.
    `queue_position`: 1 is next. `seconds`: working time, without waiting before and between rounds. `working_since`: while it is working,
    a time that is `seconds` ago, to show a running clock. `steps`: None if they were not requested.
    """

    attempt: Attempt
    session_id: str | None
    sandbox_id: str | None
    queue_position: int | None
    spent: UsageTotals
    seconds: float | None
    working_since: datetime | None
    pull_request: PullRequest | None
    steps: Sequence[Step] | None


@dataclass(frozen=True, slots=True)
class Card:
    """A task as shown on the board. `position`: in its column, starting at 0. `blocked_by`: its needs that are not done."""

    task: Task
    position: int
    needs: Sequence[str]
    blocked_by: Sequence[str]
    attempts: Sequence[AttemptCard]
    pull_request: PullRequest | None

    @property
    def queue_position(self) -> int | None:
        return min(
            (attempt.queue_position for attempt in self.attempts if attempt.queue_position is not None), default=None
        )


class Cards:
    def __init__(self, database: Database, queue: Queue, clock: Clock) -> None:
        self._database = database
        self._queue = queue
        self._clock = clock

    async def get_card(self, task: Task) -> Card:
        """Return one task, with the steps of its attempts."""
        return (await self.list_cards([task], steps=True))[0]

    async def list_cards(self, tasks: Sequence[Task], *, steps: bool = False) -> list[Card]:
        """Return the tasks' current state, in the same order.

        A task and its attempts change together and are read together. Descriptions are taken from the given rows. The caller must already be
        authorized to see the tasks.
        """
        ids = [task.id for task in tasks]
        async with self._database.reading() as session:
            needs = await list_needs(session, ids)
            rows = (await session.execute(_select_tasks_and_attempts(), {"tasks": ids})).all()
            now = {task.id: task for task, _, _ in rows}
            for task in tasks:
                if task.id in now and "description" not in inspect(task).unloaded:
                    set_committed_value(now[task.id], "description", task.description)
            positions = {task.id: position for task, _, position in rows}
            attempts = [attempt for _, attempt, _ in rows if attempt is not None]
            by_task, by_session = await _load_pull_requests(session, ids, attempts)
            gathered = await self._build_attempt_cards(session, attempts, by_session, steps=steps)
        by_id: dict[str, list[AttemptCard]] = {}
        for card in gathered:
            by_id.setdefault(card.attempt.task_id, []).append(card)
        return [
            Card(
                task=task,
                position=positions.get(task.id, 0),
                needs=[needed.id for needed in needs.get(task.id, [])],
                blocked_by=[needed.id for needed in needs.get(task.id, []) if needed.status != Column.DONE],
                attempts=by_id.get(task.id, []),
                pull_request=by_task.get(task.id),
            )
            for task in (now.get(task.id, task) for task in tasks)  # the given row, if it was deleted meanwhile
        ]

    async def get_titles(self, task_ids: Sequence[str]) -> dict[str, str]:
        async with self._database.reading() as session:
            rows = (await session.execute(select(Task.id, Task.title).where(Task.id.in_(task_ids)))).all()
        return {row[0]: row[1] for row in rows}

    async def _build_attempt_cards(
        self, session: AsyncSession, rows: Sequence[Attempt], pulls: Mapping[str, PullRequest], *, steps: bool
    ) -> list[AttemptCard]:
        """Build the cards. `pulls`: by session."""
        sessions = [row.session_id for row in rows]
        sandboxes = await _load_sandbox_ids(session, sessions)
        spent = await _load_usage(session, sessions)
        done = await _load_steps(session, [row.id for row in rows]) if steps else None
        rounds = await _load_rounds(session, [row.id for row in rows])
        is_any_queued = any(row.status == AttemptStatus.QUEUED for row in rows)
        queue = await self._queue.get_queue_positions() if is_any_queued else {}
        now = get_time(self._clock)
        times = [compute_working_time(row, rounds.get(row.id, ()), now) for row in rows]
        return [
            AttemptCard(
                attempt=row,
                session_id=row.session_id if row.session_id in sandboxes else None,
                sandbox_id=sandboxes.get(row.session_id),
                queue_position=queue.get(row.id),
                spent=spent.get(row.session_id, UsageTotals()),
                seconds=seconds,
                working_since=since,
                pull_request=pulls.get(row.session_id),
                steps=None if done is None else done.get(row.id, []),
            )
            for row, (seconds, since) in zip(rows, times, strict=True)
        ]


Round = tuple[int, datetime, datetime | None, bool]
"""Its number, when its first step started, when its last finished step ended, and whether a step has not ended."""


def compute_working_time(row: Attempt, rounds: Sequence[Round], now: datetime) -> tuple[float | None, datetime | None]:
    """Return `seconds` and `working_since` of a card."""
    if row.started_at is None:
        return None, None
    before, current = timedelta(), None
    for number, began, ended, is_open in rounds:
        if number == row.round and row.status == AttemptStatus.RUNNING:
            current = began
        elif number == row.round and is_open:  # it was cancelled, and its step ends soon
            before += max(timedelta(), (row.finished_at or now) - began)
        else:
            before += max(timedelta(), (ended or began) - began)
    if current is None:
        return before.total_seconds(), None
    return max(0.0, (now - current + before).total_seconds()), current - before


# Statements are built once: that takes SQLAlchemy longer than it takes SQLite to execute them.

_TASK_IDS: BindParameter[str] = bindparam("tasks", expanding=True)
_ATTEMPT_IDS: BindParameter[str] = bindparam("attempts", expanding=True)
_SESSION_IDS: BindParameter[str] = bindparam("sessions", expanding=True)
_ROUNDS = (
    select(
        Step.attempt_id,
        Step.round,
        func.min(Step.started_at),
        func.max(Step.finished_at),
        func.count() > func.count(Step.finished_at),
    )
    .where(Step.attempt_id.in_(_ATTEMPT_IDS))
    .group_by(Step.attempt_id, Step.round)
)
_STEPS = select(Step).where(Step.attempt_id.in_(_ATTEMPT_IDS)).order_by(Step.attempt_id, Step.round, Step.number)
_SANDBOXES = select(Session.id, Session.sandbox_id).where(Session.id.in_(_SESSION_IDS))
_SPENT = (
    select(ModelCall.session_id, *USAGE_SUMS)
    .where(ModelCall.session_id.in_(_SESSION_IDS))
    .group_by(ModelCall.session_id)
)


@functools.cache
def _select_tasks_and_attempts() -> Select[Task, Attempt, int]:
    """Include the position of each task in its column. Long texts are left out, because a task appears once per attempt."""
    both = select(Task, Attempt, select_index()).outerjoin(Attempt, Attempt.task_id == Task.id)
    both = both.options(defer(Task.description), defer(Attempt.work))
    return both.where(Task.id.in_(_TASK_IDS)).order_by(Attempt.task_id, Attempt.number)


@functools.cache
def _select_pull_requests() -> Select[PullRequest]:
    is_requested = or_(PullRequest.task_id.in_(_TASK_IDS), PullRequest.session_id.in_(_SESSION_IDS))
    query = select(PullRequest).options(defer(PullRequest.detail), defer(PullRequest.told))  # these can be large
    return query.where(is_requested).order_by(PullRequest.id)


async def _load_rounds(session: AsyncSession, attempts: Sequence[str]) -> Mapping[str, list[Round]]:
    found: dict[str, list[Round]] = {}
    rows = (await session.execute(_ROUNDS, {"attempts": attempts})).all()
    for attempt_id, number, began, ended, is_open in rows:
        found.setdefault(attempt_id, []).append((number, began, ended, bool(is_open)))
    return found


async def _load_sandbox_ids(session: AsyncSession, sessions: Sequence[str]) -> Mapping[str, str | None]:
    return {row[0]: row[1] for row in (await session.execute(_SANDBOXES, {"sessions": sessions})).all()}


async def _load_steps(session: AsyncSession, attempts: Sequence[str]) -> Mapping[str, list[Step]]:
    found: dict[str, list[Step]] = {}
    for row in await session.scalars(_STEPS, {"attempts": attempts}):
        found.setdefault(row.attempt_id, []).append(row)
    return found


async def _load_usage(session: AsyncSession, sessions: Sequence[str]) -> Mapping[str, UsageTotals]:
    """Return usage by session, as counted by the proxy."""
    return {row[0]: to_totals(*row[1:]) for row in (await session.execute(_SPENT, {"sessions": sessions})).all()}


async def _load_pull_requests(
    session: AsyncSession, tasks: Sequence[str], attempts: Sequence[Attempt]
) -> tuple[Mapping[str, PullRequest], Mapping[str, PullRequest]]:
    """Return the newest pull request by task, and by session of an attempt."""
    parameters = {"tasks": tasks, "sessions": [row.session_id for row in attempts]}
    rows = list(await session.scalars(_select_pull_requests(), parameters))
    return (
        {row.task_id: row for row in rows if row.task_id is not None},
        {row.session_id: row for row in rows if row.session_id is not None},
    )
