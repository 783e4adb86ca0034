from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from . import upstream as scripted
from .upstream import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with scripted.opened() as made:
        yield made
