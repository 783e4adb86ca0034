"""Concurrent changes of turns."""

from __future__ import annotations

import asyncio

from sandyard.platform.db.database import Database
from sandyard.platform.domain.agents.repository import lock_turn
from tests.unit.platform.domain.agents.turn_rows import create_turn


async def test_lock_turn_returns_run_of_turn_started_meanwhile(database: Database) -> None:
    """Whoever cancels the turn must notify the agent."""
    await create_turn(database)

    async def lock_and_read() -> tuple[str | None, str | None, int | None]:
        async with database.transaction() as tx:
            found = await lock_turn(tx, "t")
            assert found is not None
            return found.run and found.run.id, found.turn.run_id, found.turn.request

    async with database.transaction() as tx:
        found = await lock_turn(tx, "t")
        assert found is not None
        locking = asyncio.create_task(lock_and_read())
        await asyncio.wait((locking,), timeout=0.3)  # until it waits for our lock
        found.turn.run_id, found.turn.request = "r", 7
    async with asyncio.timeout(20):
        assert await locking == ("r", "r", 7)
