"""One engine for all tests here, and a platform for each."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandyard.platform.db import migrate
from sandyard.platform.db.database import Database
from tests.protocol.engine import Engine

from .yard import Yard, cleared, opened


@pytest.fixture(scope="session")
def engine_process() -> Iterator[Engine]:
    engine = Engine({"POOL_SIZE": "2", "METRICS_INTERVAL_S": "0.2", "DEFAULT_DISK_MB": "256"})
    engine.start()
    yield engine
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the schema of this version: to copy it is faster than to make it for each test."""
    path = tmp_path_factory.mktemp("schema") / "platform.db"

    async def make() -> None:
        database = Database(f"sqlite:///{path}")
        await database.open()
        await migrate.upgrade(database)
        await database.close()

    asyncio.run(make())
    return path


@pytest.fixture
async def yard(
    tmp_path: Path, empty_database: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Yard]:
    shutil.copy(empty_database, tmp_path / "platform.db")
    async with opened(tmp_path, engine_process, monkeypatch) as made:
        yield made
        await cleared(made)
