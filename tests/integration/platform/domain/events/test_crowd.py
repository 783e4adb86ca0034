"""Many writers and many readers, some of whom reconnect: each reader sees every event once, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from sandyard.platform.db.database import Database
from sandyard.platform.domain.events import Feed
from sandyard.platform.domain.users.model import Principal

ADMIN = Principal("usr_admin", "admin", "admin", "token:tok_1")
WRITERS, READERS = 50, 20
BACKLOG = 300  # so small that readers fall behind it
DEADLINE = 110
event_counts = pytest.mark.parametrize("events", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])


async def write(databases: Sequence[Database], events: int) -> list[int]:
    """Emit all events from `WRITERS` tasks, in small and large transactions. Return their sequence numbers."""
    numbers: list[int] = []

    async def write_share(writer: int) -> None:
        database, remaining = databases[writer % len(databases)], events // WRITERS
        while remaining:
            count = min(remaining, random.choice((1, 2, 5, 20)))
            remaining -= count
            async with database.transaction() as tx:
                for _ in range(count):
                    tx.emit("command.output", owner_id="usr_ada", writer=writer)
            numbers.extend(event.seq for event in tx.events)

    await asyncio.gather(*(write_share(writer) for writer in range(WRITERS)))
    return sorted(numbers)


async def read(feeds: Sequence[Feed], reader: int, events: int) -> list[int]:
    """Read all events. Every third reader stays; the others reconnect now and then after their last number, maybe to another feed."""
    seen: list[int] = []
    while len(seen) < events:
        feed = random.choice(feeds) if reader % 3 else feeds[reader % len(feeds)]
        subscription = await feed.subscribe(ADMIN, after=seen[-1] if seen else 0)
        remaining = random.randrange(1, events // 5) if reader % 3 else events
        async for event in subscription:
            seen.append(event.seq)
            remaining -= 1
            if not remaining or len(seen) == events:
                break
    return seen


async def run_writers_and_readers(databases: Sequence[Database], events: int) -> None:
    feeds = [Feed(database, backlog=BACKLOG) for database in databases]
    for feed in feeds:
        await feed.open()
    try:
        async with asyncio.timeout(DEADLINE):
            readers = [asyncio.create_task(read(feeds, reader, events)) for reader in range(READERS)]
            sent = await write(databases, events)
            assert len(set(sent)) == events
            for seen in await asyncio.gather(*readers):
                assert seen == sent
    finally:
        for feed in feeds:
            await feed.close()


@event_counts
async def test_every_reader_sees_each_event_once(database: Database, events: int) -> None:
    await run_writers_and_readers([database], events)


@pytest.mark.slow
@event_counts
async def test_readers_of_two_platforms_on_one_postgresql_see_each_event_once(
    postgres_schema_url: str, events: int
) -> None:
    databases = [Database(postgres_schema_url) for _ in range(2)]
    for database in databases:
        await database.open()
    await run_writers_and_readers(databases, events)
    for database in databases:
        await database.close()
