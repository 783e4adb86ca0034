from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.engine.sandboxes.harness import SandboxesHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    yield harness
    await harness.stop()
