from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.integration.platform.domain.agents.stage import Stage, staged
from tests.integration.platform.domain.sandboxes.yard import Yard


@pytest.fixture
async def stage(yard: Yard) -> AsyncIterator[Stage]:
    async with staged(yard) as made:
        yield made
