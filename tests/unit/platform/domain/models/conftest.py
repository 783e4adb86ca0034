from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.platform.domain.models import upstream as scripted
from tests.unit.platform.domain.models.upstream import Upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with scripted.open_upstream() as made:
        yield made
