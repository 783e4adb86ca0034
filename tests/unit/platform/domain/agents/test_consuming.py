"""What an agent says, taken."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sandyard.platform.db.database import Database, DatabaseUnavailableError, Transaction
from sandyard.platform.domain.agents import measure
from sandyard.platform.domain.agents.consuming import Consumer
from sandyard.platform.domain.agents.ports import Desk
from tests.unit.platform.domain.agents.test_rows import drawn


class Shaky:
    """A desk whose database is away, for a few times after all was written."""

    def __init__(self, database: Database, times: int) -> None:
        self.database = self
        self._real = database
        self._times = times

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        async with self._real.transaction() as tx:
            yield tx
            self._times -= 1
            if self._times >= 0:
                raise DatabaseUnavailableError


async def test_what_has_to_be_taken_again_counts_once(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "REQUESTS", 2)
    await drawn(database)
    consumer = Consumer(cast(Desk, Shaky(database, 5)), "r")
    line = b'{"jsonrpc": "2.0", "id": 1, "method": "fs/read_text_file", "params": {}}'
    lines: Any = [(len(line), line)]
    for _ in range(5):
        with pytest.raises(DatabaseUnavailableError):
            await consumer.take(lines, len(line))
    assert await consumer.take(lines, len(line)) > 0
