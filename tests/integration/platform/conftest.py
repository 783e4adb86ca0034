"""One engine per worker for all tests that need it, and a platform on it for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.harness.databases import with_schema
from tests.harness.engine import Engine, started
from tests.integration.platform.domain.sandboxes import platform_harness
from tests.unit.platform.conftest import world

__all__ = ["world"]


@pytest.fixture(scope="session")
def engine_process() -> Iterator[Engine]:
    with started(POOL_SIZE="2", METRICS_INTERVAL_S="0.2", DEFAULT_DISK_MB="256") as engine:
        yield engine


@pytest.fixture
async def platform(
    tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[platform_harness.PlatformHarness]:
    async with platform_harness.open_platform(with_schema(tmp_path), engine_process, monkeypatch) as opened:
        yield opened
        await platform_harness.kill_sandboxes(opened)
