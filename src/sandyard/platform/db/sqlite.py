"""SQLite for an event loop: queries run in the loop's own thread, because most take less time than a switch to another
thread.

A query that exceeds LOOP_S is interrupted and repeated in a thread, so that nobody else waits for it. Inside a
transaction nothing is interrupted.

Writers wait for each other in the loop (`Database.transaction`), never inside SQLite. Slow work, which is moving the
log into the database file and waiting for the disk, is done by a separate thread every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite

from sandyard.kit.logging import get_logger

log = get_logger(__name__)

BUSY_S = 10.0
CHECKPOINT_S = 1.0
LOOP_S = 0.02
"""How long a query may block the loop."""
THREAD_S = 30.0
"""How long a query may take in a thread before it fails with SQLITE_INTERRUPT."""
CHECK_EVERY = 500
"""Number of steps of SQLite's virtual machine, some microseconds, between two checks of the time."""
_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "wal_autocheckpoint=20000")


_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sqlite")


class LoopConnection(aiosqlite.Connection):
    """Runs at once what aiosqlite would pass to its thread, except for slow queries."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, 64)
        self._question: Callable[[], Any] | None = None
        """The SELECT that is being read outside a transaction, which can be repeated."""
        self._in_thread = False
        self._deadline = math.inf
        self._given_up = False

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        work = partial(fn, *args, **kwargs)
        if not isinstance(getattr(fn, "__self__", None), sqlite3.Cursor) or self._conn.in_transaction:
            return work()
        if fn.__name__ == "execute":
            self._question = work if args[0].lstrip()[:6].upper().startswith(("SELECT", "WITH")) else None
            self._in_thread = False
        elif fn.__name__ != "fetchall":  # a partially read result cannot be queried again
            self._question = None
        if self._question is None:
            return work()
        if self._in_thread:
            return await self._do_in_thread(work)
        self._deadline = time.monotonic() + LOOP_S
        try:
            return work()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise
        finally:
            self._deadline = math.inf
        self._in_thread = True
        question = self._question
        return await self._do_in_thread(work if fn.__name__ == "execute" else lambda: (question(), work())[1])

    async def _do_in_thread(self, work: Callable[[], Any]) -> Any:
        """Run in a thread. The work has ended when this returns, also if cancelled, so that nobody else uses the
        connection meanwhile."""

        def run_with_deadline() -> Any:
            self._deadline = time.monotonic() + THREAD_S
            return work()

        job: Future[Any] = _threads.submit(run_with_deadline)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            self._given_up = True
            wait([job])
            raise
        finally:
            self._given_up, self._deadline = False, math.inf

    def _should_interrupt(self) -> bool:
        return self._given_up or time.monotonic() > self._deadline

    async def _connect(self) -> aiosqlite.Connection:
        if self._connection is None:
            self._connection = self._connector()
            self._connection.set_progress_handler(self._should_interrupt, CHECK_EVERY)
        return self

    def __await__(self) -> Generator[Any, None, aiosqlite.Connection]:
        return self._connect().__await__()

    def stop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    async def close(self) -> None:
        self.stop()


def create(path: Path) -> None:
    """Create the file if it does not exist.

    The first connection changes the journal mode; of two concurrent ones, one would fail.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(sqlite3.Error):  # the next query raises the error
        open_connection(str(path)).close()


async def connect(path: str) -> aiosqlite.Connection:
    """Connect. Transactions start explicitly (`isolation_level` None)."""
    return await LoopConnection(lambda: open_connection(path))


def open_connection(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    connection.create_function("lower", 1, _lower, deterministic=True)
    return connection


def _lower(value: Any) -> Any:
    """Lower-case text for searches. SQLite's own function supports only ASCII."""
    return value.lower() if isinstance(value, str) else value


async def keep_log_short(path: Path) -> None:
    """Move the log to the database file periodically until cancelled, so that commits soon survive a power failure."""
    connection = await asyncio.to_thread(open_connection, str(path))
    # the thread keeps running if we are cancelled, and its connection must not be closed meanwhile
    using = threading.Lock()

    def checkpoint() -> None:
        with using:
            connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()

    try:
        while True:
            await asyncio.sleep(CHECKPOINT_S)
            try:
                await asyncio.to_thread(checkpoint)
            except sqlite3.Error as error:
                log.warning("database_checkpoint_failed", path=str(path), reason=str(error))
    finally:
        with using:
            connection.close()
