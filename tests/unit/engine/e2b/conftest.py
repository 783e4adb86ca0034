from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.e2b.support import Bench, bench


@pytest.fixture
async def gate() -> AsyncIterator[Bench]:
    async with bench() as made:
        yield made
