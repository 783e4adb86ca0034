from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.platform.domain.repositories.mirrored import MirrorHarness, open_mirror_harness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[MirrorHarness]:
    with open_mirror_harness(tmp_path) as opened:
        yield opened
