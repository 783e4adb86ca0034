"""Of several platforms on one PostgreSQL database one owns it, and knows at every moment whether it still does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from sandyard.platform.db import ownership as module
from sandyard.platform.db.database import Database, DatabaseUnavailableError
from sandyard.platform.db.ownership import Ownership
from sandyard.platform.db.retry import retry_while_database_unavailable
from tests.postgres import Server

LATE = 30


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

    async def becomes_owner(self) -> None:
        async with asyncio.timeout(LATE):
            await self.owns.wait()
            await self.database.check()

    async def stands_by(self, words: str) -> None:
        await until(lambda: any(words in reason for reason in self.reasons))
        assert not self.owns.is_set()


Start = Callable[[str], "asyncio.Future[Platform]"]


@pytest.fixture
async def start(postgres_schema_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], Platform]]:
    """A platform of that name, which acquires its database in the background."""
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    monkeypatch.setattr(module, "BEAT_S", 0.1)
    monkeypatch.setattr(module, "GRACE_S", 1.5)
    async with contextlib.AsyncExitStack() as stack:

        def launch(name: str) -> Platform:
            made = Platform(postgres_schema_url, name)

            async def go() -> None:
                await made.database.open()
                await made.run()

            task = asyncio.create_task(go())

            async def end() -> None:
                task.cancel()
                await asyncio.wait((task,))
                await made.ownership.release()
                await made.database.close()

            stack.push_async_callback(end)
            return made

        yield launch


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LATE):
        while not condition():
            await asyncio.sleep(0.01)


async def cut(platform: Platform, postgres: Server) -> None:
    """End its connection that holds the lock, on the server's side."""
    pid = platform.ownership._connection.get_server_pid()
    await postgres.execute(f"SELECT pg_terminate_backend({pid})")


async def test_the_second_stands_by_and_takes_over_at_once_when_the_first_ends_in_order(
    start: Callable[[str], Platform],
) -> None:
    first = start("a")
    await first.becomes_owner()
    second = start("b")
    await second.stands_by("is using this database")
    began = asyncio.get_running_loop().time()
    await first.ownership.release()
    await second.becomes_owner()
    assert asyncio.get_running_loop().time() - began < module.GRACE_S


async def test_questions_that_meet_on_its_connection_wait_for_each_other(start: Callable[[str], Platform]) -> None:
    first = start("a")
    await first.becomes_owner()
    ask = first.ownership._ask
    answers = await asyncio.gather(first.ownership.sign(), ask("SELECT 1"), first.ownership.sign(), ask("SELECT 2"))
    assert answers == [None, 1, None, 2]


async def test_a_restart_of_the_server_leaves_it_with_its_owner(
    start: Callable[[str], Platform], postgres: Server
) -> None:
    first = start("a")
    await first.becomes_owner()
    second = start("b")
    await second.stands_by("is using this database")
    for _ in range(3):
        await asyncio.to_thread(postgres.halt)
        await until(lambda: first.database._withheld is not None)
        with pytest.raises(DatabaseUnavailableError, match="lost its connection"):
            await first.database.check()
        postgres.resume(wait=False)
        await retry_while_database_unavailable(first.database.check, "test")
    assert not first.ownership.lost.done()
    assert not second.owns.is_set()


async def test_one_that_has_lost_it_can_do_nothing_before_another_has_it(
    start: Callable[[str], Platform], postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start("a")
    await first.becomes_owner()
    second = start("b")
    await second.stands_by("is using this database")
    back = asyncio.Event()
    connect = Ownership._connect

    async def unreachable(self: Ownership) -> None:
        if self is first.ownership and self._connection is None:
            await back.wait()
        await connect(self)

    monkeypatch.setattr(Ownership, "_connect", unreachable)
    await cut(first, postgres)
    await until(lambda: first.database._withheld is not None)
    assert not second.owns.is_set(), "the owner is withheld before the other one has it"
    await second.stands_by("unless the other one reconnects")
    await second.becomes_owner()
    back.set()
    async with asyncio.timeout(LATE):
        assert "taken over" in await first.ownership.lost
    with pytest.raises(DatabaseUnavailableError, match="taken over"):
        await first.database.check()
    await first.ownership.release()
    await second.database.check()
    third = start("c")
    await third.stands_by("is using this database")


async def test_the_same_platform_after_a_crash_waits_for_nobody(
    start: Callable[[str], Platform], postgres: Server
) -> None:
    first = start("a")
    await first.becomes_owner()
    assert first.ownership._keeping is not None
    first.ownership._keeping.cancel()  # it is dead, and its connection with it
    await cut(first, postgres)
    again = start("a")
    await again.becomes_owner()
    assert again.reasons == []
