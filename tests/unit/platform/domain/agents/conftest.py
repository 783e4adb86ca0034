from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.platform.domain.sandboxes.yard import Yard

from .stage import Stage, staged


@pytest.fixture
async def stage(yard: Yard) -> AsyncIterator[Stage]:
    async with staged(yard) as made:
        yield made
