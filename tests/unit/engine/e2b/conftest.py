from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.engine.e2b.support import GatewayHarness, start_gateway


@pytest.fixture
async def harness() -> AsyncIterator[GatewayHarness]:
    async with start_gateway() as running:
        yield running
