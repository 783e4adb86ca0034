"""The event feed: every event, in order, to everyone who may see it.

One task per process reads new rows into a short in-memory buffer, and each subscriber moves along it at its own pace. A subscriber that
falls behind the buffer, or resumes later, reads rows until it has caught up. Nothing is buffered for slow readers, and they lose nothing.
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
from sandyard.platform.domain.events import notifications
from sandyard.platform.domain.events.model import COLUMNS, EventFilter, EventView
from sandyard.platform.domain.events.visibility import EventVisibility, UserProjects, changes_projects, is_visible_to
from sandyard.platform.domain.users.model import Principal

log = get_logger(__name__)
POLL_SECONDS = 1.0
PAGE = 500
CATCH_UP_PAGE = 100
"""Events read at once for a reader that is behind, and kept until it has received them. An event can have 20 kB."""
TRIM_PAGE = 5000
_TRIMMED_SETTING = "events_trimmed"
_EVERYTHING = EventFilter()


class Feed:
    """Runs between `open` and `close`. Delivers the events of all platforms on the database."""

    def __init__(self, database: Database, *, backlog: int = 5000, clock: Clock | None = None) -> None:
        self._database = database
        self._clock = clock or SystemClock()
        self._backlog = backlog
        self._tasks = TaskSet("events")
        self._new_events = asyncio.Event()
        self._delivered: Sequence[Event] | None = None
        self.waiters: set[asyncio.Future[bool]] = set()
        self.projects = UserProjects(database)
        self.recent: list[EventView] = []
        self.floor = 0  # `recent` holds every event above this number, up to `last`
        self.last = 0
        self.closed = False

    async def open(self) -> None:
        self.last = self.floor = await self._get_newest()
        self._database.listen_committed(self._deliver_committed)
        self._database.listen(self._request_read)
        self._tasks.spawn(self._follow())
        if not self._database.is_sqlite:
            self._tasks.spawn(notifications.listen(self._database, self._new_events.set))

    def end(self) -> None:
        """End all subscriptions immediately and permanently. A server that stops calls this first. Idempotent."""
        self.closed = True
        self._wake()

    async def close(self) -> None:
        self.end()
        await self._tasks.cancel()

    async def subscribe(
        self, principal: Principal, filters: EventFilter = _EVERYTHING, after: int | None = None
    ) -> Subscription:
        """Subscribe to events after number `after`, then to new events.

        None starts now: everything committed after this returns is delivered. A number that does not exist yet counts as now.
        """
        newest = max(await self._get_newest(), self.last)
        trimmed = await self._get_trimmed_position() if after is not None else 0
        return Subscription(self, principal, filters, newest if after is None else min(after, newest), trimmed)

    async def list_after(
        self, principal: Principal, filters: EventFilter = _EVERYTHING, after: int = 0, limit: int = PAGE
    ) -> list[EventView]:
        """Return events the caller may see after number `after`, oldest first."""
        return await self.read_rows(principal, filters, after, None, limit)

    async def list_newest(
        self,
        principal: Principal,
        filters: EventFilter = _EVERYTHING,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = PAGE,
    ) -> list[EventView]:
        """Return the last events the caller may see between numbers `after` and `before`, newest first."""
        query = (
            select(*COLUMNS).where(Event.seq > after, *filters.make_clauses()).order_by(Event.seq.desc()).limit(limit)
        )
        if before is not None:
            query = query.where(Event.seq < before)
        return await self._read_views(principal, query)

    async def trim(self, older_than: timedelta) -> int:
        """Delete older events and return how many. Works in short transactions.

        Readers that ask for deleted events are told so (`Subscription.trimmed`).
        """
        limit = datetime.fromtimestamp(self._clock.now(), UTC) - older_than
        oldest = select(Event.seq).where(Event.at < limit).order_by(Event.seq).limit(TRIM_PAGE)
        total = 0
        while True:
            async with self._database.transaction() as tx:
                last = await tx.session.scalar(select(func.max(oldest.subquery().c.seq)))
                if last is None:
                    break
                statement = delete(Event).where(Event.seq <= last, Event.at < limit).returning(Event.seq)
                count = len((await tx.session.execute(statement)).all())
                setting = await tx.session.get(Setting, _TRIMMED_SETTING, with_for_update=True)
                if setting is None:
                    tx.add(Setting(name=_TRIMMED_SETTING, value=str(last)))
                else:
                    setting.value = str(max(last, int(setting.value)))
            total += count
        if total:
            log.info("events_trimmed", count=total)
        return total

    async def read_rows(
        self, principal: Principal, filters: EventFilter, after: int, upto: int | None, limit: int
    ) -> list[EventView]:
        """Read events from the database, in order."""
        query = select(*COLUMNS).where(Event.seq > after, *filters.make_clauses()).order_by(Event.seq).limit(limit)
        if upto is not None:
            query = query.where(Event.seq <= upto)
        return await self._read_views(principal, query)

    async def _read_views(self, principal: Principal, query: Select[Any]) -> list[EventView]:
        if (visible := is_visible_to(principal)) is not None:
            query = query.where(visible)
        async with self._database.reading() as session:
            return [EventView(*row) for row in (await session.execute(query)).all()]

    def read_recent(self, position: int, limit: int) -> Sequence[EventView]:
        """Return events from memory. `position` must not be below `floor`."""
        start = bisect_right(self.recent, position, key=lambda event: event.seq)
        return self.recent[start : start + limit]

    async def wait(self, woken: asyncio.Future[bool], timeout: float | None) -> bool:  # noqa: ASYNC109 (no error)
        """Wait for the next event, the end, or until `woken` is resolved elsewhere. Returns False on timeout."""
        # a bare timer: asyncio.timeout costs several times as much, for every reader and event
        timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, _resolve, woken, False)
        self.waiters.add(woken)
        try:
            return await woken
        finally:
            self.waiters.discard(woken)
            if timer is not None:
                timer.cancel()

    async def _follow(self) -> None:
        failing = False
        while True:
            self._new_events.clear()
            try:
                more = await self._read_new()
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
                    async with asyncio.timeout(POLL_SECONDS):
                        await self._new_events.wait()

    def _deliver_committed(self, events: Sequence[Event]) -> None:
        """Deliver events that this process just committed without reading them, unless other events came before them."""
        if [event.seq for event in events] == list(range(self.last + 1, self.last + 1 + len(events))):
            self.append([EventView.from_row(event) for event in events])
            self._delivered = events

    def _request_read(self, events: Sequence[Event]) -> None:
        if events is not self._delivered:
            self._new_events.set()

    async def _read_new(self) -> bool:
        """Read new events. Returns True if there may be more."""
        query = select(*COLUMNS).where(Event.seq > self.last).order_by(Event.seq).limit(PAGE)
        async with self._database.reading() as session:
            read = [EventView(*row) for row in (await session.execute(query)).all()]
        # `_deliver_committed` may have appended some of them meanwhile
        self.append([event for event in read if event.seq > self.last])
        return len(read) == PAGE

    def append(self, found: Sequence[EventView]) -> None:
        if not found:
            return
        if any(changes_projects(event) for event in found):
            self.projects.invalidate()
        self.recent += found
        self.last = found[-1].seq
        if len(self.recent) > self._backlog + PAGE:
            surplus = len(self.recent) - self._backlog
            self.floor = self.recent[surplus - 1].seq
            del self.recent[:surplus]
        self._wake()

    def _wake(self) -> None:
        waiters, self.waiters = self.waiters, set()
        for woken in waiters:
            _resolve(woken, True)

    async def _get_newest(self) -> int:
        async with self._database.reading() as session:
            return int(await session.scalar(select(func.max(Event.seq))) or 0)

    async def _get_trimmed_position(self) -> int:
        async with self._database.reading() as session:
            setting = await session.get(Setting, _TRIMMED_SETTING)
        return int(setting.value) if setting else 0


class Subscription:
    """One reader's position in the feed. Iterate over it or read batches. Not for concurrent use."""

    def __init__(self, feed: Feed, principal: Principal, filters: EventFilter, position: int, trimmed: int) -> None:
        self._feed = feed
        self._principal = principal
        self._filters = filters
        self._projects: frozenset[str] | None = None
        self._pending: list[EventView] = []
        self._woken: asyncio.Future[bool] | None = None
        self._ended = False
        self.position = position
        """Everything up to this number was delivered or is not visible to this reader."""
        self.trimmed = trimmed if position < trimmed else None
        """If set: events up to this number are deleted, and this reader has missed some of them."""

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> EventView:
        while not self._pending:
            self._pending = (await self.wait_for_batch())[::-1]
            if self.ended and not self._pending:
                raise StopAsyncIteration
        return self._pending.pop()

    @property
    def ended(self) -> bool:
        return self._ended or self._feed.closed

    def end(self) -> None:
        """End the subscription: a waiting `wait_for_batch` returns nothing immediately. Interrupts no query. Idempotent."""
        self._ended = True
        if self._woken is not None:
            _resolve(self._woken, True)

    async def wait(self, timeout: float | None) -> bool:  # noqa: ASYNC109 (waiting in vain is no error)
        """Wait for something new or the end. Returns False after `timeout` seconds."""
        self._woken = asyncio.get_running_loop().create_future()
        return not self.ended and await self._feed.wait(self._woken, timeout)

    async def wait_for_batch(self, timeout: float | None = None) -> list[EventView]:  # noqa: ASYNC109 (as in wait)
        """Wait for events this reader may see and return them, one page at most.

        Returns an empty list after `timeout` seconds or at the end. Raises DatabaseUnavailableError. On an error or cancellation the
        position is kept.
        """
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
        """Advance one step. The position changes only together with the result."""
        feed = self._feed
        if self.position < feed.floor:
            upto = feed.last
            found = await feed.read_rows(self._principal, self._filters, self.position, upto, CATCH_UP_PAGE)
            self.position = found[-1].seq if len(found) == CATCH_UP_PAGE else upto
            return found
        visibility = await self._get_visibility()
        if self.position < feed.floor:  # the feed advanced while we looked
            return []
        events = feed.read_recent(self.position, PAGE)
        self.position = events[-1].seq
        return [event for event in events if self._filters.matches(event) and visibility.includes(event)]

    async def _get_visibility(self) -> EventVisibility:
        """Return what the reader may see, valid for everything currently in memory."""
        principal = self._principal
        if principal.is_admin:
            return EventVisibility(principal.user_id, everything=True)
        current, before = None, self._projects
        while current is None or current[0] != self._feed.projects.generation:
            generation = self._feed.projects.generation
            current = (generation, await self._feed.projects.list_for(principal.user_id))
        self._projects = current[1]
        return EventVisibility(principal.user_id, False, current[1], before if before is not None else current[1])


def _resolve(woken: asyncio.Future[bool], happened: bool) -> None:
    if not woken.done():
        woken.set_result(happened)
