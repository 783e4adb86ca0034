from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.platform.db.database import Database
from sandyard.platform.settings import PlatformSettings
from tests.unit.platform.domain.tasks.desk import Desk, desk_in, opened_desk
from tests.unit.platform.domain.tasks.yard import Board
from tests.unit.platform.world import World


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk_in(tmp_path) as made:
        yield made


@pytest.fixture
async def desk_anywhere(world: World) -> AsyncIterator[Desk]:
    """A desk on SQLite and on PostgreSQL, for tests of concurrency."""
    async with opened_desk(world) as made:
        yield made


@pytest.fixture
async def board(database: Database, tmp_path: Path) -> AsyncIterator[Board]:
    settings = PlatformSettings.load({}, data_dir=tmp_path, parallel_attempts=3, parallel_attempts_per_user=3)
    opened = await Board(database, settings).open()
    yield opened
    await opened.close()
