from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.engine.builds.harness import BuildsHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[BuildsHarness]:
    harness = BuildsHarness(tmp_path, build_concurrency=2)
    await harness.start()
    yield harness
    await harness.stop()
