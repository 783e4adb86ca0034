from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.engine.building.yard import Workyard


@pytest.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Workyard]:
    yard = Workyard(tmp_path, build_concurrency=2)
    await yard.start()
    yield yard
    await yard.stop()
