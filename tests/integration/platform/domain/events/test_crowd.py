"""Many writers, many readers, some of whom come and go: each sees every event once, in order."""

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
BACKLOG = 300  # so small that readers fall out of it
DEADLINE = 110
of_many = pytest.mark.parametrize("events", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])


async def write(databases: Sequence[Database], events: int) -> list[int]:
    """Everything from `WRITERS` tasks, some transactions with one event and some with many; the numbers given."""
    numbers: list[int] = []

    async def some(writer: int) -> None:
        database, left = databases[writer % len(databases)], events // WRITERS
        while left:
            count = min(left, random.choice((1, 2, 5, 20)))
            left -= count
            async with database.transaction() as tx:
                for _ in range(count):
                    tx.emit("command.output", owner_id="usr_ada", writer=writer)
            numbers.extend(event.seq for event in tx.events)

    await asyncio.gather(*(some(writer) for writer in range(WRITERS)))
    return sorted(numbers)


async def read(feeds: Sequence[Feed], reader: int, events: int) -> list[int]:
    """Every third one stays, the others leave now and then, and come back with the last number, maybe elsewhere."""
    seen: list[int] = []
    while len(seen) < events:
        feed = random.choice(feeds) if reader % 3 else feeds[reader % len(feeds)]
        subscription = await feed.subscribe(ADMIN, after=seen[-1] if seen else 0)
        patience = random.randrange(1, events // 5) if reader % 3 else events
        async for event in subscription:
            seen.append(event.seq)
            patience -= 1
            if not patience or len(seen) == events:
                break
    return seen


async def crowd(databases: Sequence[Database], events: int) -> None:
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


@of_many
async def test_nobody_misses_or_doubles_one(database: Database, events: int) -> None:
    await crowd([database], events)


@pytest.mark.slow
@of_many
async def test_two_platforms_on_one_postgresql(postgres_schema_url: str, events: int) -> None:
    databases = [Database(postgres_schema_url) for _ in range(2)]
    for database in databases:
        await database.open()
    await crowd(databases, events)
    for database in databases:
        await database.close()
