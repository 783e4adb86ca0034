from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.platform.domain.repositories.mirrored import Mirrored, mirrored


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Mirrored]:
    with mirrored(tmp_path) as made:
        yield made
