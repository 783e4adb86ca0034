from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.db import sqlite


class Slow:
    """A connection whose checkpoint takes as long as the test wants."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.done: list[str] = []

    def execute(self, statement: str) -> Any:
        self.begun.set()
        assert self.may_end.wait(10)
        self.done.append(statement)
        return self

    def fetchone(self) -> None: ...

    def close(self) -> None:
        self.done.append("close")


async def test_a_connection_is_not_closed_under_the_thread_that_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite would take the whole process with it."""
    slow = Slow()
    monkeypatch.setattr(sqlite, "_open", lambda path: slow)
    monkeypatch.setattr(sqlite, "CHECKPOINT_S", 0)
    keeping = asyncio.create_task(sqlite.keep_log_short(tmp_path / "x.db"))
    assert await asyncio.to_thread(slow.begun.wait, 10)
    threading.Timer(0.2, slow.may_end.set).start()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert slow.done == ["PRAGMA wal_checkpoint(PASSIVE)", "close"]


async def test_a_new_file_has_its_log_before_anybody_connects(tmp_path: Path) -> None:
    """To change to it, a connection has to be the only one."""
    path = tmp_path / "new" / "platform.db"
    sqlite.create(path)
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    connection = await sqlite.connect(str(path))
    async with connection.execute("PRAGMA journal_mode") as cursor:
        assert await cursor.fetchone() == ("wal",)
    await connection.close()
    held.close()
