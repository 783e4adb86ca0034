"""One engine is active on a PostgreSQL database, and writes nothing once it is not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from sandyard.engine.store import postgres as module
from sandyard.engine.store.database import DatabaseUnavailableError
from sandyard.engine.store.postgres import PostgresDatabase
from sandyard.kit.errors import ConflictError, SandyardError
from tests.harness.postgres import Server

DEADLINE = 30
Start = Callable[[str], PostgresDatabase]


async def wait_until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


class Engine:
    """The part of an engine that owns its database."""

    def __init__(self, url: str, name: str) -> None:
        self.database = PostgresDatabase(url, name)
        self.reasons: list[str] = []
        self.acquiring = asyncio.create_task(self._acquire())

    async def _acquire(self) -> None:
        await self.database.acquire(self.reasons.append)
        self.database.open()

    async def wait_until_active(self) -> PostgresDatabase:
        async with asyncio.timeout(DEADLINE):
            await self.acquiring
        return self.database


@pytest.fixture
async def start(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Engine]]:
    for name, value in (("LOOK_S", 0.02), ("BEAT_S", 0.1), ("GRACE_S", 1.0)):
        monkeypatch.setattr(module, name, value)
    started = []

    def launch(name: str) -> Engine:
        started.append(Engine(postgres_url, name))
        return started[-1]

    yield launch
    for engine in started:
        engine.acquiring.cancel()
        await asyncio.wait((engine.acquiring,))
        await asyncio.to_thread(engine.database.close)


@contextlib.asynccontextmanager
async def connect(url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(url, server_settings={"search_path": "sandyard_engine"})
    try:
        yield connection
    finally:
        await connection.close()


async def terminate(database: PostgresDatabase, postgres: Server) -> None:
    """End the connection of an engine on the server."""
    await postgres.execute(f"SELECT pg_terminate_backend({database._connection.get_server_pid()})")


async def test_a_lost_connection_is_replaced_and_nothing_is_lost(
    start: Callable[[str], Engine], postgres: Server
) -> None:
    database = await start("a").wait_until_active()
    database.set_meta("name", "before")
    await terminate(database, postgres)
    await wait_until(database.find_problem)
    with pytest.raises(DatabaseUnavailableError):
        database.set_meta("name", "meanwhile")
    await wait_until(lambda: database.find_problem() is None)
    assert database.get_meta("name") == "before"
    database.set_meta("name", "after")
    assert not database._lost.done()


async def test_a_transaction_is_not_continued_on_another_connection(
    start: Callable[[str], Engine], postgres: Server
) -> None:
    database = await start("a").wait_until_active()
    with pytest.raises(DatabaseUnavailableError), database.transaction():
        database.set_meta("first", "1")
        connection = database._connection
        await terminate(database, postgres)
        await wait_until(lambda: database._connection not in (None, connection) and database.find_problem() is None)
        database.set_meta("second", "2")
    assert (database.get_meta("first"), database.get_meta("second")) == (None, None)


async def test_a_transaction_with_a_failed_statement_does_not_look_committed(start: Callable[[str], Engine]) -> None:
    database = await start("a").wait_until_active()
    with pytest.raises(SandyardError, match="rolled back"), database.transaction():
        database.set_meta("name", "lost")
        with contextlib.suppress(SandyardError):
            database.execute("INSERT INTO missing VALUES (1)")
    assert database.get_meta("name") is None


async def test_an_engine_that_was_replaced_ends_and_writes_nothing(
    start: Callable[[str], Engine], postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REGAIN_S", 3.0)
    first = await start("a").wait_until_active()
    first.set_meta("name", "first")
    second = start("b")
    await wait_until(lambda: "is active" in "".join(second.reasons))
    assert not second.acquiring.done()
    async with connect(postgres.url()) as other:  # until the second one holds the lock
        pid = first._connection.get_server_pid()
        monkeypatch.setattr(PostgresDatabase, "_connect", _fail_for(first))
        await other.execute("SELECT pg_terminate_backend($1)", pid)
    taken = await second.wait_until_active()
    monkeypatch.undo()
    async with asyncio.timeout(DEADLINE):
        assert "has taken over" in await first.wait_until_lost()
    with pytest.raises(DatabaseUnavailableError, match="has taken over"):
        first.set_meta("name", "late")
    first.close()
    assert taken.get_meta("name") == "first"
    assert "unless it returns" in "".join(second.reasons)


def _fail_for(first: PostgresDatabase) -> Callable[[PostgresDatabase], Any]:
    """Return a `_connect` that fails for this engine, like a broken network."""
    connect_really = PostgresDatabase._connect

    async def fail(database: PostgresDatabase) -> Any:
        if database is first:
            raise OSError("no route")
        return await connect_really(database)

    return fail


async def test_an_interrupted_write_ends_the_engine(
    start: Callable[[str], Engine], postgres: Server, postgres_url: str
) -> None:
    database = await start("a").wait_until_active()
    async with connect(postgres_url) as other, other.transaction():
        await other.execute("LOCK TABLE meta")
        writing = asyncio.create_task(asyncio.to_thread(database.set_meta, "name", "unknown"))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        async with asyncio.timeout(DEADLINE):
            while not await other.fetchval(waiting):
                await other.fetchval("SELECT pg_stat_clear_snapshot()")
        await terminate(database, postgres)
        with pytest.raises(DatabaseUnavailableError, match="interrupted"):
            await writing
    assert "interrupted" in await database.wait_until_lost()


async def test_the_standby_takes_over_at_once_from_an_engine_that_stops(
    start: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 1000.0)
    first = await start("a").wait_until_active()
    second = start("b")
    await wait_until(lambda: second.reasons)
    await asyncio.to_thread(first.close)
    await second.wait_until_active()


async def test_the_same_engine_does_not_wait_for_itself(
    start: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 1000.0)
    first = await start("a").wait_until_active()
    assert first._keeping is not None
    first._loop.call_soon_threadsafe(first._keeping.cancel)
    await asyncio.to_thread(first.drop_connections)
    await asyncio.to_thread(first.abandon)  # the process is dead, and its connection with it
    await start("a").wait_until_active()


async def test_a_command_next_to_the_engine_does_not_create_tables(postgres_url: str) -> None:
    database = PostgresDatabase(postgres_url)
    with pytest.raises(ConflictError, match="Start the engine first"):
        database.open()
