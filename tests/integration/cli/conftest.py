"""One `sandyard up` for all tests of a worker."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.harness.up import Installation, run_json
from tests.unit.cli.conftest import config_dir, server

__all__ = ["config_dir", "server"]


@pytest.fixture(scope="session")
def installation() -> Iterator[Installation]:
    """A real `sandyard up` for all tests that do not disturb each other. Any of them may kill a process of it."""
    if os.geteuid() != 0:
        pytest.skip("sandboxes with all features need root")
    running = Installation(settings={"SANDYARD_LOGINS_PER_MINUTE": "1000"})
    yield running
    running.stop()


@pytest.fixture(scope="session")
def sandbox(installation: Installation) -> str:
    """A running sandbox."""
    made = run_json(installation, "sandbox", "create")
    assert made["status"] == "running"
    return str(made["id"])
