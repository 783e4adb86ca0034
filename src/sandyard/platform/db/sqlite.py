"""SQLite for an event loop: in the loop's own thread, because a question takes less time than asking another thread does.

Writers wait for each other in the loop (`Database.transaction`), never inside SQLite. What does take long, moving the log into the
database file and waiting for the disk, is done by a thread of its own, every second.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import aiosqlite

from sandyard.kit.logging import get_logger

log = get_logger(__name__)

BUSY_S = 10.0
CHECKPOINT_S = 1.0
_PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "wal_autocheckpoint=20000")


class InLoop(aiosqlite.Connection):
    """What aiosqlite hands to its thread is done at once."""

    async def _execute(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    async def _connect(self) -> aiosqlite.Connection:
        if self._connection is None:
            self._connection = self._connector()
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
    return await InLoop(lambda: _open(path), 64)


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
