"""One engine for all tests of a worker that need it, and a platform on it for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.databases import with_schema
from tests.integration.platform.domain.sandboxes import yard as yards
from tests.protocol.engine import Engine
from tests.unit.platform.conftest import world

__all__ = ["world"]


@pytest.fixture(scope="session")
def engine_process() -> Iterator[Engine]:
    engine = Engine({"POOL_SIZE": "2", "METRICS_INTERVAL_S": "0.2", "DEFAULT_DISK_MB": "256"})
    engine.start()
    yield engine
    left = engine.stop()
    assert not left, f"the engine left behind: {left}"


@pytest.fixture
async def yard(tmp_path: Path, engine_process: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[yards.Yard]:
    async with yards.opened(with_schema(tmp_path), engine_process, monkeypatch) as made:
        yield made
        await yards.cleared(made)
