"""The feed: every event, in order, to everybody who may see it, from the row it is stored in.

One task per process reads new rows into a short memory; subscribers walk along it, each at their own pace. Who falls
behind the memory, or comes back after a while, reads rows until caught up. Nothing is kept for a slow reader, and
nothing is lost on one.
"""

from __future__ import annotations

import asyncio
import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, delete, func, select

from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Event, Setting
from sandyard.platform.domain.events import notices
from sandyard.platform.domain.events.model import COLUMNS, EventFilter, EventView
from sandyard.platform.domain.events.visibility import Projects, Sight, changes_projects, visible_to
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
LOOK_SECONDS = 1.0
PAGE = 500
CATCH_UP_PAGE = 100
"""Events that are read for one reader who is behind, and kept until they have taken them. One can have 20 kB."""
TRIM_PAGE = 5000
_TRIMMED = "events_trimmed"
_EVERYTHING = EventFilter()


class Feed:
    """Runs between `open` and `close`. Events of all platforms on the database arrive, also of those elsewhere."""

    def __init__(self, database: Database, *, backlog: int = 5000, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._backlog = backlog
        self._tasks = TaskSet("events")
        self._news = asyncio.Event()
        self._heard: Sequence[Event] | None = None
        self._waiting: set[asyncio.Future[bool]] = set()
        self.projects = Projects(database)
        self.recent: list[EventView] = []
        self.floor = 0  # `recent` has every event above this number, up to `last`
        self.last = 0
        self.closed = False

    async def open(self) -> None:
        self.last = self.floor = await self._newest()
        self._database.listen_committed(self._hear)
        self._database.listen(self._look_for)
        self._tasks.spawn(self._read())
        if not self._database.is_sqlite:
            self._tasks.spawn(notices.listen(self._database, self._news.set))

    def end(self) -> None:
        """End all subscriptions, at once and for good: a server that stops calls this first. Idempotent."""
        self.closed = True
        self._wake()

    async def close(self) -> None:
        self.end()
        await self._tasks.cancel()

    async def subscribe(
        self, principal: Principal, filters: EventFilter = _EVERYTHING, after: int | None = None
    ) -> Subscription:
        """Everything that happened after number `after`, then what happens; None begins now: what is committed after
        this returns will arrive. A number that was never given counts as now."""
        newest = max(await self._newest(), self.last)
        trimmed = await self._trimmed() if after is not None else 0
        return Subscription(self, principal, filters, newest if after is None else min(after, newest), trimmed)

    async def history(
        self, principal: Principal, filters: EventFilter = _EVERYTHING, after: int = 0, limit: int = PAGE
    ) -> list[EventView]:
        """What the caller may see, oldest first, beginning after number `after`."""
        return await self.rows(principal, filters, after, None, limit)

    async def newest(
        self,
        principal: Principal,
        filters: EventFilter = _EVERYTHING,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = PAGE,
    ) -> list[EventView]:
        """The last of what the caller may see between numbers `after` and `before`, newest first."""
        query = select(*COLUMNS).where(Event.seq > after, *filters.clauses()).order_by(Event.seq.desc()).limit(limit)
        if before is not None:
            query = query.where(Event.seq < before)
        return await self._read_views(principal, query)

    async def trim(self, older_than: timedelta) -> int:
        """Forget what is older; how many. In short steps, so that nobody waits long. Whoever asks for what is gone is
        told (`Subscription.trimmed`)."""
        limit = datetime.fromtimestamp(self._clock.now(), UTC) - older_than
        oldest = select(Event.seq).where(Event.at < limit).order_by(Event.seq).limit(TRIM_PAGE)
        total = 0
        while True:
            async with self._database.transaction() as tx:
                last = await tx.session.scalar(select(func.max(oldest.subquery().c.seq)))
                if last is None:
                    break
                gone = delete(Event).where(Event.seq <= last, Event.at < limit).returning(Event.seq)
                count = len((await tx.session.execute(gone)).all())
                mark = await tx.session.get(Setting, _TRIMMED, with_for_update=True)
                if mark is None:
                    tx.add(Setting(name=_TRIMMED, value=str(last)))
                else:
                    mark.value = str(max(last, int(mark.value)))
            total += count
        if total:
            log.info("events_trimmed", count=total)
        return total

    async def rows(
        self, principal: Principal, filters: EventFilter, after: int, upto: int | None, limit: int
    ) -> list[EventView]:
        """From the database, in order."""
        query = select(*COLUMNS).where(Event.seq > after, *filters.clauses()).order_by(Event.seq).limit(limit)
        if upto is not None:
            query = query.where(Event.seq <= upto)
        return await self._read_views(principal, query)

    async def _read_views(self, principal: Principal, query: Select[Any]) -> list[EventView]:
        if (visible := visible_to(principal)) is not None:
            query = query.where(visible)
        async with self._database.reading() as session:
            return [EventView(*row) for row in (await session.execute(query)).all()]

    def since(self, position: int, limit: int) -> Sequence[EventView]:
        """From memory. `position` is not below `floor`."""
        start = bisect_right(self.recent, position, key=lambda event: event.seq)
        return self.recent[start : start + limit]

    async def wait(self, woken: asyncio.Future[bool], timeout: float | None) -> bool:  # noqa: ASYNC109 (no error)
        """Until the next event, the end, or until somebody else resolves `woken`. False when the time passed."""
        # a bare timer: asyncio.timeout costs several times as much, for every reader at every event
        timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, _resolve, woken, False)
        self._waiting.add(woken)
        try:
            return await woken
        finally:
            self._waiting.discard(woken)
            if timer is not None:
                timer.cancel()

    async def _read(self) -> None:
        failing = False
        while True:
            self._news.clear()
            try:
                more = await self._pull()
            except SandyardError as error:
                if not failing:
                    log.warning("events_not_read", reason=error.message)
                failing, more = True, False
            else:
                if failing:
                    log.info("events_read_again")
                failing = False
            if not more:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._news.wait()

    def _hear(self, events: Sequence[Event]) -> None:
        """What this process has just committed need not be read, unless others have told something before it."""
        if [event.seq for event in events] == list(range(self.last + 1, self.last + 1 + len(events))):
            self._take([EventView.of(event) for event in events])
            self._heard = events

    def _look_for(self, events: Sequence[Event]) -> None:
        if events is not self._heard:
            self._news.set()

    async def _pull(self) -> bool:
        """Take in what is new. True when there may be more."""
        query = select(*COLUMNS).where(Event.seq > self.last).order_by(Event.seq).limit(PAGE)
        async with self._database.reading() as session:
            read = [EventView(*row) for row in (await session.execute(query)).all()]
        self._take([event for event in read if event.seq > self.last])  # some may have been heard meanwhile
        return len(read) == PAGE

    def _take(self, found: Sequence[EventView]) -> None:
        if not found:
            return
        if any(changes_projects(event) for event in found):
            self.projects.changed()
        self.recent += found
        self.last = found[-1].seq
        if len(self.recent) > self._backlog + PAGE:
            surplus = len(self.recent) - self._backlog
            self.floor = self.recent[surplus - 1].seq
            del self.recent[:surplus]
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for woken in waiting:
            _resolve(woken, True)

    async def _newest(self) -> int:
        async with self._database.reading() as session:
            return int(await session.scalar(select(func.max(Event.seq))) or 0)

    async def _trimmed(self) -> int:
        async with self._database.reading() as session:
            mark = await session.get(Setting, _TRIMMED)
        return int(mark.value) if mark else 0


class Subscription:
    """One reader's place in the feed. Iterate over it, or take what there is in batches. For one task at a time."""

    def __init__(self, feed: Feed, principal: Principal, filters: EventFilter, position: int, trimmed: int) -> None:
        self._feed = feed
        self._principal = principal
        self._filters = filters
        self._projects: frozenset[str] | None = None
        self._pending: list[EventView] = []
        self._woken: asyncio.Future[bool] | None = None
        self._ended = False
        self.position = position
        """Everything up to this number was given out or is not for this reader."""
        self.trimmed = trimmed if position < trimmed else None
        """When set: events up to this number are forgotten, and this reader has missed some that came after theirs."""

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> EventView:
        while not self._pending:
            self._pending = (await self.batch())[::-1]
            if self.ended and not self._pending:
                raise StopAsyncIteration
        return self._pending.pop()

    @property
    def ended(self) -> bool:
        return self._ended or self._feed.closed

    def end(self) -> None:
        """Whoever waits in `batch` gets nothing, at once. Nothing is interrupted half-way. Idempotent."""
        self._ended = True
        if self._woken is not None:
            _resolve(self._woken, True)

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 (waiting in vain is no error)
        """For something new, or the end. False when `timeout` seconds passed."""
        self._woken = asyncio.get_running_loop().create_future()
        return not self.ended and await self._feed.wait(self._woken, timeout)

    async def batch(self, timeout: float | None = None) -> list[EventView]:  # noqa: ASYNC109 (as in wait)
        """Wait for something this reader may see, and give all there is of it, a page at most. Empty after `timeout`
        seconds or at the end. Raises DatabaseUnavailableError, and then and when cancelled the place is kept."""
        deadline = None if timeout is None else asyncio.get_running_loop().time() + timeout
        while not self.ended:
            while self.position < self._feed.last and not self.ended:
                if found := await self._advance():
                    return found
            left = None if deadline is None else deadline - asyncio.get_running_loop().time()
            if (left is not None and left <= 0) or not await self.wait(left):
                return []
        return []

    async def _advance(self) -> list[EventView]:
        """One step forward; the place changes with the answer and at no other time."""
        feed = self._feed
        if self.position < feed.floor:
            upto = feed.last
            found = await feed.rows(self._principal, self._filters, self.position, upto, CATCH_UP_PAGE)
            self.position = found[-1].seq if len(found) == CATCH_UP_PAGE else upto
            return found
        sight = await self._sight()
        if self.position < feed.floor:  # the feed went on while we looked
            return []
        events = feed.since(self.position, PAGE)
        self.position = events[-1].seq
        return [event for event in events if self._filters.matches(event) and sight.sees(event)]

    async def _sight(self) -> Sight:
        """Good for everything that is in the feed's memory by now."""
        principal = self._principal
        if principal.is_admin:
            return Sight(principal.user_id, everything=True)
        known, before = None, self._projects
        while known is None or known[0] != self._feed.projects.generation:
            generation = self._feed.projects.generation
            known = (generation, await self._feed.projects.of(principal.user_id))
        self._projects = known[1]
        return Sight(principal.user_id, False, known[1], before if before is not None else known[1])


def _resolve(woken: asyncio.Future[bool], happened: bool) -> None:
    if not woken.done():
        woken.set_result(happened)
