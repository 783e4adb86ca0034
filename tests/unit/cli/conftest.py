"""Fixtures of the CLI tests. No test sees the login of the user who runs it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.server import Server, serving


@pytest.fixture(autouse=True)
def config_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nobody is logged in. The directory in which the login would be stored."""
    for name in [*os.environ]:
        if name.startswith(("SANDYARD_", "E2B_")) and name != "SANDYARD_TEST_DIR":
            monkeypatch.delenv(name)
    folder = tmp_path / "config"
    monkeypatch.setenv("XDG_CONFIG_HOME", str(folder))
    return folder


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server with scripted replies, and a CLI that is logged in to it."""
    with serving() as running:
        monkeypatch.setenv("SANDYARD_URL", running.url)
        monkeypatch.setenv("SANDYARD_TOKEN", "sy_test")
        yield running
