from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.platform.domain.sandboxes.conftest import empty_database, engine_process, yard  # noqa: F401 - fixtures
from tests.unit.platform.domain.sandboxes.yard import Yard

from .stage import Stage, staged


@pytest.fixture
async def stage(yard: Yard) -> AsyncIterator[Stage]:  # noqa: F811
    async with staged(yard) as made:
        yield made
