from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.db import sqlite


class Slow:
    """A connection whose checkpoint blocks until the test releases it."""

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


async def test_does_not_close_connection_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite would crash the whole process."""
    slow = Slow()
    monkeypatch.setattr(sqlite, "open_connection", lambda path: slow)
    monkeypatch.setattr(sqlite, "CHECKPOINT_S", 0)
    keeping = asyncio.create_task(sqlite.keep_log_short(tmp_path / "x.db"))
    assert await asyncio.to_thread(slow.begun.wait, 10)
    threading.Timer(0.2, slow.may_end.set).start()
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping
    assert slow.done == ["PRAGMA wal_checkpoint(PASSIVE)", "close"]


async def test_creates_new_file_in_wal_mode(tmp_path: Path) -> None:
    """Switching to WAL mode requires that there is no other connection."""
    path = tmp_path / "new" / "platform.db"
    sqlite.create(path)
    held = sqlite3.connect(path, isolation_level=None)
    held.execute("BEGIN IMMEDIATE")
    connection = await sqlite.connect(str(path))
    async with connection.execute("PRAGMA journal_mode") as cursor:
        assert await cursor.fetchone() == ("wal",)
    await connection.close()
    held.close()


COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT {what} FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i + began()) FROM n"
"""Calls a function of the test, `began`, which returns 0."""


class Threads:
    """Records which threads ran queries, and whether one has begun."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def began(self) -> int:
        if not self.seen or self.seen[-1] != threading.get_ident():
            self.seen.append(threading.get_ident())
            if threading.get_ident() != threading.main_thread().ident:
                self._loop.call_soon_threadsafe(self.begun.set)
        return 0


@pytest.fixture
async def connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[sqlite.LoopConnection, Threads]]:
    """A connection on which every query takes too long for the loop as soon as its steps are counted."""
    monkeypatch.setattr(sqlite, "LOOP_S", -1)
    made = await sqlite.connect(str(tmp_path / "x.db"))
    assert isinstance(made, sqlite.LoopConnection)
    threads = Threads()
    await made.create_function("began", 0, threads.began)
    yield made, threads
    await made.close()


async def ask(connection: sqlite.LoopConnection, question: str) -> list[Any]:
    cursor = await connection.cursor()  # as SQLAlchemy does
    try:
        await cursor.execute(question)
        return list(await cursor.fetchall())
    finally:
        await cursor.close()


@pytest.mark.parametrize(
    ("what", "answer"),
    [("count(began())", [(5000,)]), ("i + began()", [(number,) for number in range(1, 5001)])],
    ids=["slow to begin", "slow to read"],
)
async def test_slow_query_is_repeated_in_thread(
    connection: tuple[sqlite.LoopConnection, Threads], what: str, answer: list[Any]
) -> None:
    made, threads = connection
    assert await ask(made, COUNT.format(what=what)) == answer
    loops, others = threading.get_ident(), threads.seen[-1]
    assert threads.seen == [loops, others] and loops != others


async def test_fast_query_runs_in_loop(connection: tuple[sqlite.LoopConnection, Threads]) -> None:
    made, threads = connection
    assert await ask(made, "SELECT began()") == [(0,)]
    assert threads.seen == [threading.get_ident()]


async def test_query_in_transaction_is_not_interrupted(connection: tuple[sqlite.LoopConnection, Threads]) -> None:
    made, threads = connection
    await ask(made, "CREATE TABLE t (i)")
    await ask(made, "BEGIN IMMEDIATE")
    await ask(made, "INSERT INTO t " + COUNT.format(what="i"))
    assert await ask(made, COUNT.format(what="count(began())")) == [(5000,)]
    await made.commit()
    assert threads.seen == [threading.get_ident()]
    assert await ask(made, "SELECT count(*) FROM t") == [(5000,)]


async def test_cancelling_interrupts_query(connection: tuple[sqlite.LoopConnection, Threads]) -> None:
    made, threads = connection
    asking = asyncio.create_task(ask(made, ENDLESS))
    await threads.begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await ask(made, COUNT.format(what="count(*)")) == [(5000,)]


async def test_interrupts_endless_query(
    connection: tuple[sqlite.LoopConnection, Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        await ask(connection[0], ENDLESS)
