"""One `sandyard up` for all tests of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.integration.cli.real import Yard, read
from tests.unit.cli.conftest import nobody, server

__all__ = ["nobody", "server"]


@pytest.fixture(scope="session")
def yard() -> Iterator[Yard]:
    """The real thing, for all tests that change nothing of each other's. Any of them may kill a part of it."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes with all their means need root")
    running = Yard(settings={"SANDYARD_LOGINS_PER_MINUTE": "1000"})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def box(yard: Yard) -> str:
    """A sandbox that runs."""
    made = read(yard, "sandbox", "create")
    assert made["status"] == "running"
    return str(made["id"])
