"""Record requests to models and their usage: one row per request, written before it is sent and completed at its end."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import ColumnElement, Double, and_, case, cast, extract, func, literal_column, or_, select, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.pacing import take_turn
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import ModelCall, Project, Session, Task
from sandyard.platform.domain.models.model import MAX_TOKENS, MICROS, DailyUsage, Tokens, UsageTotals
from sandyard.platform.domain.projects.service import is_visible_to
from sandyard.platform.domain.sandboxes.repository import is_session_visible_to
from sandyard.platform.domain.users.model import Principal

MAX_ERROR_LENGTH = 1000
MODELS_SHOWN = 100
DAYS_SHOWN = 10_000
MODELS_PER_DAY = 50
"""Maximum number of different model names that are recorded per project and day (UTC), because agents choose them freely."""
OTHER_MODELS = "other models"
"""Recorded in place of all further names."""
_ROWS_PER_TURN = 100
"""Rows converted before other tasks get a turn."""
UNFINISHED = "The platform stopped before the response was complete."
_STARTED_EPOCH = extract("epoch", ModelCall.started_at)
_DAY: ColumnElement[Any] = _STARTED_EPOCH - _STARTED_EPOCH % literal_column("86400")
"""Midnight in UTC, on any database. SQLite rounds to milliseconds."""
_UNPRICED = and_(ModelCall.cost_micros.is_(None), ModelCall.status >= 200, ModelCall.status < 300)
_ESTIMATED = and_(ModelCall.cost_micros > 0, ModelCall.error.is_not(None))
"""Requests that have a cost although they were stopped, broke off or are in progress, or whose usage was not reported."""


class Ledger:
    """Records requests and adds up their usage."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._open: set[str] = set()
        self._names_day: date | None = None
        self._names: dict[str, set[str]] = {}
        """By project, or by owner for sessions without one: the model names of the day."""

    async def open(
        self,
        provider_id: str,
        session: Session,
        turn_id: str | None,
        model: str | None,
        *,
        tokens: Tokens | None = None,
        cost_micros: int | None = None,
        configured: bool = False,
    ) -> str:
        """Record a request that is about to be sent, with its minimum usage, and return its id.

        If the platform dies before the end, the row keeps that usage. The name of a model that is `configured` for the provider is always
        recorded; others only up to MODELS_PER_DAY.
        """
        minimum = tokens or Tokens()
        now = get_time(self._clock)
        name = None if model is None else make_storable(model[:200])
        if name is not None and not configured:
            name = await self._limit_name(name, session, now)
        row = ModelCall(
            id=make_ordered_id("mcl_"),
            provider_id=provider_id,
            owner_id=session.owner_id,
            project_id=session.project_id,
            task_id=session.task_id,
            session_id=session.id,
            turn_id=turn_id,
            model=name,
            status=0,
            input_tokens=minimum.input,
            output_tokens=minimum.output,
            cost_micros=cost_micros,
            error=UNFINISHED,
            started_at=now,
            duration_ms=0,
        )
        async with self._database.transaction() as tx:
            tx.add(row)
        self._open.add(row.id)
        return row.id

    async def _limit_name(self, name: str, session: Session, now: datetime) -> str:
        """Return the name, or OTHER_MODELS if there are MODELS_PER_DAY others. Each replica counts its own names and those stored before."""
        if self._names_day != now.date():
            self._names_day, self._names = now.date(), {}
        group = session.project_id or session.owner_id
        if group not in self._names:
            stored = await self._load_names(session, now)
            self._names.setdefault(group, stored)
        names = self._names[group]
        if name not in names and len(names) >= MODELS_PER_DAY:
            return OTHER_MODELS
        names.add(name)
        return name

    async def _load_names(self, session: Session, now: datetime) -> set[str]:
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
        query = select(ModelCall.model).where(ModelCall.started_at >= midnight, ModelCall.model.is_not(None))
        if session.project_id is not None:
            query = query.where(ModelCall.project_id == session.project_id)
        else:
            sessions = select(Session.id).where(Session.owner_id == session.owner_id)
            query = query.where(ModelCall.project_id.is_(None), ModelCall.session_id.in_(sessions))
        async with self._database.reading() as reading:
            return set(await reading.scalars(query.distinct().limit(MODELS_PER_DAY)))

    def make_settled_condition(self) -> list[ColumnElement[bool]]:
        """Return the condition that excludes requests in progress here, whose usage is an estimate and mostly too high."""
        return [ModelCall.id.not_in(self._open)] if self._open else []

    async def record_usage(self, call_id: str, tokens: Tokens, cost_micros: int | None) -> None:
        """Record the usage so far of a request in progress."""
        statement = update(ModelCall).where(ModelCall.id == call_id)
        async with self._database.transaction() as tx:
            await tx.session.execute(
                statement.values(input_tokens=tokens.input, output_tokens=tokens.output, cost_micros=cost_micros)
            )

    async def close(
        self,
        call_id: str,
        *,
        status: int,
        tokens: Tokens,
        cost_micros: int | None,
        error: str | None,
        duration_ms: int,
    ) -> None:
        statement = update(ModelCall).where(ModelCall.id == call_id)
        self._open.discard(call_id)
        async with self._database.transaction() as tx:
            await tx.session.execute(
                statement.values(
                    status=status,
                    input_tokens=tokens.input,
                    output_tokens=tokens.output,
                    cache_read_tokens=tokens.cache_read,
                    cache_write_tokens=tokens.cache_write,
                    cost_micros=cost_micros,
                    error=None if error is None else make_storable(error[:MAX_ERROR_LENGTH]),
                    duration_ms=duration_ms,
                )
            )

    async def get_largest_input(self, session_id: str) -> int:
        """Return the input tokens of the session's largest request."""
        query = select(func.max(ModelCall.input_tokens)).where(ModelCall.session_id == session_id)
        async with self._database.reading() as session:
            return min(await session.scalar(query) or 0, MAX_TOKENS)

    async def get_totals(self, *conditions: ColumnElement[bool]) -> UsageTotals:
        """Return the totals of all matching requests."""
        async with self._database.reading() as session:
            return to_totals(*(await session.execute(select(*USAGE_SUMS).where(*conditions))).one())

    async def list_by_model(self, *conditions: ColumnElement[bool]) -> list[tuple[str | None, UsageTotals]]:
        """Return the totals by model, those with most tokens first."""
        total = func.coalesce(sum_column(ModelCall.input_tokens), 0) + func.coalesce(
            sum_column(ModelCall.output_tokens), 0
        )
        query = select(ModelCall.model, *USAGE_SUMS).where(*conditions).group_by(ModelCall.model)
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(total.desc(), ModelCall.model).limit(MODELS_SHOWN))
            return [(row[0], to_totals(*row[1:])) for row in rows]

    async def list_by_day(
        self, *conditions: ColumnElement[bool], limit: int = DAYS_SHOWN
    ) -> tuple[list[DailyUsage], bool]:
        """Return the totals by day (UTC), project and model, newest day first, and whether there are more than `limit`."""
        keys = (ModelCall.project_id, ModelCall.model)
        query = select(_DAY, *keys, *USAGE_SUMS).where(*conditions).group_by(_DAY, *keys)
        days: list[DailyUsage] = []
        async with self._database.reading() as session:
            rows = await session.execute(query.order_by(_DAY.desc(), *keys).limit(limit + 1))
        for batch in rows.partitions(_ROWS_PER_TURN):
            await take_turn()
            days += [DailyUsage(_to_date(row[0]), row[1], row[2], to_totals(*row[3:])) for row in batch]
        return days[:limit], len(days) > limit


def select_calls(
    *,
    turn_id: str | None = None,
    session_id: str | None = None,
    task_id: str | None = None,
    project_id: str | None = None,
    owner_id: str | None = None,
    since: datetime | None = None,
) -> list[ColumnElement[bool]]:
    """Return the conditions for requests. None means any."""
    wanted = {
        ModelCall.turn_id: turn_id,
        ModelCall.session_id: session_id,
        ModelCall.task_id: task_id,
        ModelCall.project_id: project_id,
        ModelCall.owner_id: owner_id,
    }
    conditions = [column == value for column, value in wanted.items() if value is not None]
    return conditions if since is None else [*conditions, ModelCall.started_at >= since]


def sum_column(column: InstrumentedAttribute[int | None]) -> ColumnElement[float | None]:
    """Return the sum of a column, exact up to 2**53. Added as integers, the numbers of a provider could overflow."""
    return func.sum(cast(column, Double))


USAGE_SUMS: tuple[ColumnElement[Any], ...] = (
    func.count(ModelCall.id),
    func.coalesce(sum_column(ModelCall.input_tokens), 0),
    func.coalesce(sum_column(ModelCall.output_tokens), 0),
    func.coalesce(sum_column(ModelCall.cache_read_tokens), 0),
    func.coalesce(sum_column(ModelCall.cache_write_tokens), 0),
    sum_column(ModelCall.cost_micros),
    func.coalesce(func.sum(case((_UNPRICED, 1), else_=0)), 0),
    func.coalesce(func.sum(case((_ESTIMATED, 1), else_=0)), 0),
)
"""The columns that `to_totals` takes."""


def _to_date(midnight: Any) -> date:
    return datetime.fromtimestamp(int(midnight), UTC).date()


def to_totals(*sums: Any) -> UsageTotals:
    calls, input_tokens, output_tokens, read, written, micros, unpriced, estimated = sums
    cost = None if micros is None and unpriced else int(micros or 0) / MICROS
    return UsageTotals(
        int(calls),
        int(input_tokens),
        int(output_tokens),
        int(read),
        int(written),
        cost,
        int(unpriced),
        int(estimated),
    )


def select_visible_calls(caller: Principal) -> list[ColumnElement[bool]]:
    if caller.is_admin:
        return []
    projects = select(Project.id).where(is_visible_to(caller))
    sessions = select(Session.id).where(is_session_visible_to(caller))
    return [or_(ModelCall.project_id.in_(projects), ModelCall.session_id.in_(sessions))]


async def require_visible(
    reading: AsyncSession,
    caller: Principal,
    *,
    session_id: str | None,
    task_id: str | None,
    project_id: str | None,
) -> None:
    """Raise NotFoundError if one of these does not exist or the caller may not see it."""
    projects = select(Project.id).where(is_visible_to(caller))
    for noun, item_id, query in (
        ("session", session_id, select(Session.id).where(Session.id == session_id, is_session_visible_to(caller))),
        ("task", task_id, select(Task.id).where(Task.id == task_id, Task.project_id.in_(projects))),
        ("project", project_id, projects.where(Project.id == project_id)),
    ):
        if item_id is not None and await reading.scalar(query) is None:
            raise NotFoundError(f"There is no {noun} {item_id[:60]!r}.")
