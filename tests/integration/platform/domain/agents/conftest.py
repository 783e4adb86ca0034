from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.platform.domain.agents.harness import AgentHarness, open_harness
from tests.integration.platform.domain.sandboxes.platform_harness import PlatformHarness


@pytest.fixture
async def harness(platform: PlatformHarness) -> AsyncIterator[AgentHarness]:
    async with open_harness(platform) as opened:
        yield opened
