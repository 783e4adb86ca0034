from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.platform.domain.sandboxes.conftest import empty_database, engine_process, yard

from . import upstream as scripted
from .upstream import Upstream

__all__ = ["empty_database", "engine_process", "yard"]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with scripted.opened() as made:
        yield made
