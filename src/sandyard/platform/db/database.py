"""One database, SQLite or PostgreSQL, with two ways to use it: reading, and transactions that may emit events.

    async with database.transaction() as tx:
        tx.add(Session(…))
        tx.emit("session.created", owner_id=…, session_id=…, title=…)

An event is stored if and only if its change is committed. Events of different transactions become visible in the order
of their numbers, so that a reader who has seen number n never misses a lower one that was committed later.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import Connection, event, make_url, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    EmulatedDBAPIException,
    InterfaceError,
    InternalError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from sandyard.kit.errors import BusyError, InvalidInputError, NoSpaceError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import make_json_storable
from sandyard.platform.db import sqlite
from sandyard.platform.db.models import Event

log = get_logger(__name__)

CLOSE_S = 10.0
SEARCH_S = 5.0
"""Time limit of one search."""
SEARCHES_AT_ONCE = 2
"""Maximum number of concurrent searches of all users; each user has one at a time."""
_EVENTS_LOCK = 0x5359_4556  # the same number for all platforms on one PostgreSQL database
CHANNEL = "sandyard_events"


class DatabaseUnavailableError(SandyardError):
    """The database is not responding. Try again."""

    code, status = "database_unavailable", 503


class DatabaseBusyError(BusyError):
    """The database is busy. Try again."""


class SearchTooSlowError(InvalidInputError):
    """The search took too long. Search for fewer or longer words, or in a single project."""

    code = "search_too_slow"


class DatabaseFullError(NoSpaceError):
    """The platform's database has no space left on its disk."""


class DatabaseClosedError(SandyardError):
    """The platform is stopping. Try again in a moment."""

    code, status = "stopping", 503


def parse_url(url: str) -> URL:
    """Parse a database URL and set our own driver. Raises InvalidInputError with an example if it is not valid."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidInputError(
            "SANDYARD_DATABASE_URL is not a valid URL. Use sqlite:///PATH or postgresql://…"
        ) from None
    kind = parsed.get_backend_name()
    if kind == "sqlite":
        return parsed.set(drivername="sqlite+aiosqlite")
    if kind in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+asyncpg")
    raise InvalidInputError(f"SANDYARD_DATABASE_URL: {kind} is not supported. Use sqlite:///PATH or postgresql://…")


@dataclass
class Transaction:
    """A transaction in progress. Emitted events are committed with it."""

    session: AsyncSession
    events: list[Event] = field(default_factory=list)

    def add(self, *rows: Any) -> None:
        self.session.add_all(rows)

    def emit(
        self,
        kind: str,
        *,
        owner_id: str | None = None,
        project_id: str | None = None,
        task_id: str | None = None,
        session_id: str | None = None,
        sandbox_id: str | None = None,
        **data: Any,
    ) -> None:
        """Emit an event to everybody who may see it. `data` is JSON and contains no secrets."""
        self.events.append(
            Event(
                at=datetime.now(UTC),
                kind=kind,
                owner_id=owner_id,
                project_id=project_id,
                task_id=task_id,
                session_id=session_id,
                sandbox_id=sandbox_id,
                data=make_json_storable(data),
            )
        )


class Database:
    """A database that is usable between `open` and `close`.

    All methods raise DatabaseUnavailableError if it does not respond or is withheld, and DatabaseClosedError if it is
    not open.
    """

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._engine: AsyncEngine | None = None
        self.read_engine: AsyncEngine | None = None
        self._writes: AsyncEngine | None = None
        self._writing = asyncio.Lock()  # SQLite has one writer: waiting here is cheaper than polling there
        self._searching = asyncio.Semaphore(SEARCHES_AT_ONCE)
        self._searchers: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._tasks = TaskSet("database")
        self._listeners: list[Callable[[Sequence[Event]], None]] = []
        self._commit_listeners: list[Callable[[Sequence[Event]], None]] = []
        self.withheld: str | None = None

    async def open(self) -> None:
        if self.is_sqlite:
            path = self.url.database
            if path:
                await asyncio.to_thread(sqlite.create, Path(path))
            engine = create_async_engine(
                self.url,
                pool_size=8,
                max_overflow=24,
                connect_args={"async_creator_fn": lambda *_, **__: sqlite.connect(path or ":memory:")},
            )
            event.listen(engine.sync_engine, "begin", _begin_sqlite)
            if path:
                self._tasks.spawn(sqlite.keep_log_short(Path(path)))
            self.read_engine = engine
        else:
            engine = create_async_engine(
                self.url, pool_size=4, max_overflow=6, pool_pre_ping=True, connect_args={"timeout": 10}
            )
            # its own connections, because the time limit is part of a connection and must not stop writes and migrations;
            # no transaction around a single query, because that would cost two more round trips
            self.read_engine = create_async_engine(
                self.url,
                pool_size=6,
                max_overflow=14,
                pool_pre_ping=True,
                isolation_level="AUTOCOMMIT",
                connect_args={"timeout": 10},
            )
            event.listen(self.read_engine.sync_engine, "connect", _limit_query_time)
        self._engine = engine
        self._writes = engine.execution_options(write=True)

    async def close(self) -> None:
        await self._tasks.cancel()
        if self._engine is not None and self.read_engine is not None:
            await self._engine.dispose()
            await self.read_engine.dispose()  # on SQLite the same
            self._engine = self.read_engine = self._writes = None

    @property
    def engine(self) -> AsyncEngine:
        if self._engine is None:
            raise DatabaseClosedError
        return self._engine

    def withhold(self, reason: str | None) -> None:
        """Block all reads and writes: every method raises the reason until this is called with None."""
        self.withheld = reason

    @contextlib.asynccontextmanager
    async def dedicated_connection(self) -> AsyncIterator[Any]:
        """Yield an asyncpg connection outside the pool (PostgreSQL only), for state that belongs to a connection, such as locks."""
        with translate_driver_errors():
            pooled = await self.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()
        assert isinstance(connection, asyncpg.Connection)
        try:
            yield connection
        finally:
            with contextlib.suppress(
                OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError
            ):
                await connection.close(timeout=CLOSE_S)

    def listen(self, listener: Callable[[Sequence[Event]], None]) -> None:
        """Call `listener` in the event loop after every commit of this process that had events, and after some that failed."""
        self._listeners.append(listener)

    def listen_committed(self, listener: Callable[[Sequence[Event]], None]) -> None:
        """Like `listen`, but only after commits that are known to have succeeded, and before the callbacks of `listen`."""
        self._commit_listeners.append(listener)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncSession]:
        """Open a session for queries. Each query sees what was committed when it started. Changes are not saved.

        Raises DatabaseBusyError if a query takes longer than `sqlite.THREAD_S`, on either database.
        """
        self._require_open()
        with translate_driver_errors():
            async with self._session(self.read_engine) as session:
                yield session

    @contextlib.asynccontextmanager
    async def searching(self, user_id: str) -> AsyncIterator[AsyncSession]:
        """Like `reading`, for queries that scan large amounts of text.

        Each user can run one at a time, so do not nest it. Raises SearchTooSlowError after SEARCH_S.
        """
        lock = self._searchers.setdefault(user_id, asyncio.Lock())
        async with lock, self._searching:
            try:
                async with asyncio.timeout(SEARCH_S), self.reading() as session:
                    yield session
            except TimeoutError:
                raise SearchTooSlowError from None

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Run an atomic transaction, committed at the end of the block. Do not wait for anything but the database
        inside."""
        events: Sequence[Event] = ()
        self._require_open()
        try:
            async with self._writing if self.is_sqlite else contextlib.nullcontext():
                with translate_driver_errors():
                    async with self._session(self._writes) as session:
                        async with session.begin():
                            tx = Transaction(session)
                            yield tx
                            self._require_open()  # it may have been withheld meanwhile
                            if tx.events:
                                await self._assign_numbers(session, tx.events)
                                events = tx.events
                        if events:
                            for listener in self._commit_listeners:
                                listener(events)
        finally:  # also if the caller is cancelled after the commit: an unnecessary notification is harmless
            if events:
                for listener in self._listeners:
                    listener(events)

    @contextlib.asynccontextmanager
    async def _session(self, engine: AsyncEngine | None) -> AsyncIterator[AsyncSession]:
        session = AsyncSession(engine, expire_on_commit=False)
        if not self.is_sqlite:
            async with session:
                yield session
            return
        try:
            yield session
        finally:
            await session.close()  # SQLite never waits, so this cannot be cancelled and needs no task of its own
            await asyncio.sleep(0)

    def _require_open(self) -> None:
        if self._engine is None:
            raise DatabaseClosedError
        if self.withheld is not None:
            raise DatabaseUnavailableError(self.withheld)

    async def _assign_numbers(self, session: AsyncSession, events: list[Event]) -> None:
        """Assign numbers to the events, in the order of commits."""
        if not self.is_sqlite:
            await session.flush()  # before the lock, which all others wait for
            await session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _EVENTS_LOCK})
            await session.execute(text("SELECT pg_notify(:channel, '')"), {"channel": CHANNEL})
        session.add_all(events)
        await session.flush()

    async def check(self) -> None:
        """Raise an error if the database cannot be used."""
        async with self.reading() as session:
            await session.execute(text("SELECT 1"))


def _limit_query_time(connection: Any, _record: object) -> None:
    """Stop long queries of a PostgreSQL connection. As a statement, because poolers such as PgBouncer refuse it as a startup parameter."""
    statement = f"SET statement_timeout = {round(sqlite.THREAD_S * 1000)}"
    connection.run_async(lambda driver: driver.execute(statement))


def _begin_sqlite(connection: Connection) -> None:
    if connection.get_execution_options().get("write", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextlib.contextmanager
def translate_driver_errors() -> Iterator[None]:
    """Translate the driver's exceptions to our errors."""
    try:
        yield
    except DBAPIError as error:
        raise _translate_error(error) from error
    except PoolTimeoutError as error:
        raise DatabaseBusyError from error
    except (
        EmulatedDBAPIException,
        asyncpg.PostgresError,
    ) as error:  # SQLAlchemy does not wrap the exceptions of its pool
        state = str(getattr(error, "sqlstate", None) or "")
        known = _to_server_error(state, error) if state else DatabaseUnavailableError()
        if known is None:
            raise
        raise known from error
    except (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise DatabaseUnavailableError from error


def _translate_error(error: DBAPIError) -> Exception:
    """Return our error, or the same error if it concerns the statement and not the database."""
    if isinstance(error.orig, sqlite3.Error):
        primary = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        return _SQLITE.get(primary, lambda: error)()
    state = str(getattr(error.orig, "sqlstate", None) or "")
    known = _to_server_error(state, error.orig)
    if known is not None:
        return known
    gone = isinstance(error, OperationalError | InterfaceError) or error.connection_invalidated
    # asyncpg's own error, not one of the server: a connection broke at a bad moment
    gone = gone or (isinstance(error, InternalError) and not state)
    return DatabaseUnavailableError() if gone else error


def _to_server_error(state: str, error: object) -> SandyardError | None:
    """Return our error if the SQLSTATE concerns the server.

    Base classes do not help: asyncpg's "the database system is shutting down" is neither an OperationalError nor an
    InterfaceError.
    """
    if state == "53100":
        return DatabaseFullError()
    if state == "57014":  # the server's time limit
        return _query_too_slow()
    if state.startswith(_BUSY):
        return DatabaseBusyError()
    if state.startswith(("28", "3D")):  # authentication, or the name of the database
        message = str(error).rpartition(": ")[2]
        return DatabaseUnavailableError(
            f"The database rejected the connection: {message}. Check SANDYARD_DATABASE_URL."
        )
    return DatabaseUnavailableError() if state.startswith(_GONE) else None


def _query_too_slow() -> DatabaseBusyError:
    return DatabaseBusyError(
        f"The database query was stopped after {sqlite.THREAD_S:.0f} seconds. Request less, e.g. one project or fewer days."
    )


_BUSY = (
    "40001",  # serialization failure
    "40P01",  # deadlock
    "53",  # out of memory or connections
    "55P03",  # lock not available
)
_GONE = (
    "08",  # the connection
    "57P",  # shutting down, crashed, starting up
    "58",  # the server's own disk
    "25006",  # read-only: it was the primary before a failover, or is not the primary yet
    "25P03",  # idle in a transaction for too long
)
_SQLITE: dict[int, Callable[[], Exception]] = {
    sqlite3.SQLITE_BUSY: DatabaseBusyError,
    sqlite3.SQLITE_LOCKED: DatabaseBusyError,
    sqlite3.SQLITE_FULL: DatabaseFullError,
    sqlite3.SQLITE_INTERRUPT: _query_too_slow,
    sqlite3.SQLITE_IOERR: DatabaseUnavailableError,
    sqlite3.SQLITE_CANTOPEN: lambda: DatabaseUnavailableError("The platform's database cannot be opened."),
    sqlite3.SQLITE_READONLY: lambda: DatabaseUnavailableError("The platform's database is read-only."),
    sqlite3.SQLITE_CORRUPT: lambda: DatabaseUnavailableError("The platform's database is damaged."),
    sqlite3.SQLITE_NOTADB: lambda: DatabaseUnavailableError("The platform's database file is not an SQLite database."),
}
