from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.platform.db.database import Database
from sandyard.platform.settings import PlatformSettings
from tests.unit.platform.domain.tasks.board import Board
from tests.unit.platform.domain.tasks.board_harness import BoardHarness, open_board_harness, open_board_harness_in
from tests.unit.platform.world import World


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BoardHarness]:
    async with open_board_harness_in(tmp_path) as made:
        yield made


@pytest.fixture
async def harness_on_each_database(world: World) -> AsyncIterator[BoardHarness]:
    """A harness on SQLite and on PostgreSQL, for tests of concurrency."""
    async with open_board_harness(world) as made:
        yield made


@pytest.fixture
async def board(database: Database, tmp_path: Path) -> AsyncIterator[Board]:
    settings = PlatformSettings.load({}, data_dir=tmp_path, parallel_attempts=3, parallel_attempts_per_user=3)
    opened = await Board(database, settings).open()
    yield opened
    await opened.close()
