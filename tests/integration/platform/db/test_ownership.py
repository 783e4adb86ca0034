"""Test ownership of a PostgreSQL database: one of several platforms owns it, and always knows whether it still does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from sandyard.platform.db import ownership as module
from sandyard.platform.db.database import Database, DatabaseUnavailableError
from sandyard.platform.db.ownership import Ownership
from sandyard.platform.db.retry import retry_while_database_unavailable
from tests.harness.postgres import Server

DEADLINE = 30


class Platform:
    def __init__(self, url: str, name: str) -> None:
        self.database = Database(url)
        self.ownership = Ownership(self.database, name)
        self.reasons: list[str] = []
        self.owns = asyncio.Event()

    async def run(self) -> None:
        await self.ownership.acquire(self.reasons.append)
        await self.ownership.sign()
        self.owns.set()

    async def wait_until_owner(self) -> None:
        async with asyncio.timeout(DEADLINE):
            await self.owns.wait()
            await self.database.check()

    async def wait_until_standby(self, text: str) -> None:
        await until(lambda: any(text in reason for reason in self.reasons))
        assert not self.owns.is_set()


Start = Callable[[str], "asyncio.Future[Platform]"]


@pytest.fixture
async def start(postgres_schema_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Platform]]:
    """Start a platform of that name, which acquires its database in the background."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(module, "GRACE_S", 1.5)
    async with contextlib.AsyncExitStack() as stack:

        def launch(name: str) -> Platform:
            platform = Platform(postgres_schema_url, name)

            async def open_and_run() -> None:
                await platform.database.open()
                await platform.run()

            task = asyncio.create_task(open_and_run())

            async def end() -> None:
                task.cancel()
                await asyncio.wait((task,))
                await platform.ownership.release()
                await platform.database.close()

            stack.push_async_callback(end)
            return platform

        yield launch


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await asyncio.sleep(0.01)


async def terminate_connection(platform: Platform, postgres: Server) -> None:
    """Terminate, on the server, the connection that holds its lock."""
    pid = platform.ownership.connection.get_server_pid()
    await postgres.execute(f"SELECT pg_terminate_backend({pid})")


async def test_a_standby_takes_over_at_once_when_the_owner_stops_cleanly(
    start: Callable[[str], Platform],
) -> None:
    first = start("a")
    await first.wait_until_owner()
    second = start("b")
    await second.wait_until_standby("is using this database")
    began = asyncio.get_running_loop().time()
    await first.ownership.release()
    await second.wait_until_owner()
    assert asyncio.get_running_loop().time() - began < module.GRACE_S


async def test_concurrent_queries_on_the_lock_connection_are_serialized(start: Callable[[str], Platform]) -> None:
    first = start("a")
    await first.wait_until_owner()
    ask = first.ownership.query
    answers = await asyncio.gather(first.ownership.sign(), ask("SELECT 1"), first.ownership.sign(), ask("SELECT 2"))
    assert answers == [None, 1, None, 2]


async def test_the_owner_keeps_the_database_across_server_restarts(
    start: Callable[[str], Platform], postgres: Server
) -> None:
    first = start("a")
    await first.wait_until_owner()
    second = start("b")
    await second.wait_until_standby("is using this database")
    for _ in range(3):
        await asyncio.to_thread(postgres.halt)
        await until(lambda: first.database.withheld is not None)
        with pytest.raises(DatabaseUnavailableError, match="lost its connection"):
            await first.database.check()
        postgres.resume(wait=False)
        await retry_while_database_unavailable(first.database.check, "test")
    assert not first.ownership.lost.done()
    assert not second.owns.is_set()


async def test_a_former_owner_is_blocked_before_another_takes_over(
    start: Callable[[str], Platform], postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start("a")
    await first.wait_until_owner()
    second = start("b")
    await second.wait_until_standby("is using this database")
    reachable = asyncio.Event()
    connect = Ownership.connect

    async def connect_when_reachable(self: Ownership) -> None:
        if self is first.ownership and self.connection is None:
            await reachable.wait()
        await connect(self)

    monkeypatch.setattr(Ownership, "connect", connect_when_reachable)
    await terminate_connection(first, postgres)
    await until(lambda: first.database.withheld is not None)
    assert not second.owns.is_set(), "the owner is blocked before the other one takes over"
    await second.wait_until_standby("unless the other one reconnects")
    await second.wait_until_owner()
    reachable.set()
    async with asyncio.timeout(DEADLINE):
        assert "taken over" in await first.ownership.lost
    with pytest.raises(DatabaseUnavailableError, match="taken over"):
        await first.database.check()
    await first.ownership.release()
    await second.database.check()
    third = start("c")
    await third.wait_until_standby("is using this database")


async def test_a_crashed_platform_acquires_its_database_again_without_waiting(
    start: Callable[[str], Platform], postgres: Server
) -> None:
    first = start("a")
    await first.wait_until_owner()
    assert first.ownership.keeping_task is not None
    first.ownership.keeping_task.cancel()  # the process is dead, and its connection with it
    await terminate_connection(first, postgres)
    again = start("a")
    await again.wait_until_owner()
    assert again.reasons == []
