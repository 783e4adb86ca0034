"""A world without an engine for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.platform import world as worlds


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[worlds.World]:
    async with worlds.open_world(tmp_path) as made:
        yield made
