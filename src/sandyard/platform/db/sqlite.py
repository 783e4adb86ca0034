"""SQLite for an event loop: in the loop's own thread, because a question takes less time than asking another thread does.

A question that takes longer than LOOP_S after all is given up and asked again in a thread, so that nobody else waits for it. Inside
a transaction nothing is given up.

Writers wait for each other in the loop (`Database.transaction`), never inside SQLite. What does take long, moving the log into the
database file and waiting for the disk, is done by a thread of its own, every second.
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
"""How long a question may keep the loop."""
THREAD_S = 30.0
"""How long it may take in a thread; then it fails with SQLITE_INTERRUPT."""
CHECK_EVERY = 500
"""Steps of SQLite's virtual machine, some microseconds, after which it looks at the time."""
_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "wal_autocheckpoint=20000")


_threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="sqlite")


class InLoop(aiosqlite.Connection):
    """What aiosqlite hands to its thread is done at once, but for questions that take long."""

    def __init__(self, connector: Callable[[], sqlite3.Connection]) -> None:
        super().__init__(connector, 64)
        self._question: Callable[[], Any] | None = None
        """The SELECT that is being read, outside a transaction: it can be asked again."""
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
        elif fn.__name__ != "fetchall":  # what has been read in part cannot be asked again
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
        """Has ended when this returns, also when it is cancelled: nobody else uses the connection meanwhile."""

        def timed() -> Any:
            self._deadline = time.monotonic() + THREAD_S
            return work()

        job: Future[Any] = _threads.submit(timed)
        try:
            return await asyncio.wrap_future(job)
        except asyncio.CancelledError:
            self._given_up = True
            wait([job])
            raise
        finally:
            self._given_up, self._deadline = False, math.inf

    def _is_over(self) -> bool:
        return self._given_up or time.monotonic() > self._deadline

    async def _connect(self) -> aiosqlite.Connection:
        if self._connection is None:
            self._connection = self._connector()
            self._connection.set_progress_handler(self._is_over, CHECK_EVERY)
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
    """Make the file, unless it is there. Its first connection changes how it is written: of two at once, one would be refused."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(sqlite3.Error):  # whoever uses it says what is wrong with it
        _open(str(path)).close()


async def connect(path: str) -> aiosqlite.Connection:
    """Transactions begin where we say so (`isolation_level` None)."""
    return await InLoop(lambda: _open(path))


def _open(path: str) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    for pragma in _PRAGMAS:
        connection.execute(f"PRAGMA {pragma}")
    connection.create_function("lower", 1, _lower, deterministic=True)
    return connection


def _lower(value: Any) -> Any:
    """For searches: SQLite's own knows the letters of English alone."""
    return value.lower() if isinstance(value, str) else value


async def keep_log_short(path: Path) -> None:
    """Until cancelled. What was committed more than a moment ago survives a power cut."""
    connection = await asyncio.to_thread(_open, str(path))
    # the thread works on when we are cancelled, and what it works with must not be closed under it
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
