from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.platform.domain.agents.harness import AgentHarness, open_harness
from tests.integration.platform.domain.sandboxes.yard import Yard


@pytest.fixture
async def harness(yard: Yard) -> AsyncIterator[AgentHarness]:
    async with open_harness(yard) as opened:
        yield opened
