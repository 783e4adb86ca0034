from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from .support import Bench, bench


@pytest.fixture
async def gate() -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made
