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


COUNT = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 5000) SELECT {what} FROM n"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i + began()) FROM n"
"""It calls a function of the test, `began`, which returns 0."""


class Threads:
    """Which threads have asked, and whether one has begun."""

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
async def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[sqlite.InLoop, Threads]]:
    """Every question takes too long for the loop, if it takes as many steps as are counted at all."""
    monkeypatch.setattr(sqlite, "LOOP_S", -1)
    made = await sqlite.connect(str(tmp_path / "x.db"))
    assert isinstance(made, sqlite.InLoop)
    threads = Threads()
    await made.create_function("began", 0, threads.began)
    yield made, threads
    await made.close()


async def ask(connection: sqlite.InLoop, question: str) -> list[Any]:
    cursor = await connection.cursor()  # as SQLAlchemy does it
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
async def test_a_question_that_takes_long_is_asked_again_in_a_thread(
    connection: tuple[sqlite.InLoop, Threads], what: str, answer: list[Any]
) -> None:
    made, threads = connection
    assert await ask(made, COUNT.format(what=what)) == answer
    loops, others = threading.get_ident(), threads.seen[-1]
    assert threads.seen == [loops, others] and loops != others


async def test_a_quick_question_stays_in_the_loop(connection: tuple[sqlite.InLoop, Threads]) -> None:
    made, threads = connection
    assert await ask(made, "SELECT began()") == [(0,)]
    assert threads.seen == [threading.get_ident()]


async def test_nothing_is_given_up_inside_a_transaction(connection: tuple[sqlite.InLoop, Threads]) -> None:
    made, threads = connection
    await ask(made, "CREATE TABLE t (i)")
    await ask(made, "BEGIN IMMEDIATE")
    await ask(made, "INSERT INTO t " + COUNT.format(what="i"))
    assert await ask(made, COUNT.format(what="count(began())")) == [(5000,)]
    await made.commit()
    assert threads.seen == [threading.get_ident()]
    assert await ask(made, "SELECT count(*) FROM t") == [(5000,)]


async def test_whoever_leaves_ends_the_question(connection: tuple[sqlite.InLoop, Threads]) -> None:
    made, threads = connection
    asking = asyncio.create_task(ask(made, ENDLESS))
    await threads.begun.wait()
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert await ask(made, COUNT.format(what="count(*)")) == [(5000,)]


async def test_a_question_without_end(
    connection: tuple[sqlite.InLoop, Threads], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "THREAD_S", 0)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        await ask(connection[0], ENDLESS)
