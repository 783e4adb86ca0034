from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.platform.world import World, open_world


@pytest.fixture
async def world(tmp_path: Path, database_url: str) -> AsyncIterator[World]:
    """A world on SQLite and on PostgreSQL."""
    async with open_world(tmp_path, database_url=database_url) as made:
        yield made
