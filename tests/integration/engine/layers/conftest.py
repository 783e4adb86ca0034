from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conformance import tiny


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a layer store."""
    path = tmp_path / "layer-store"
    path.mkdir()
    return path


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A template of a few megabytes, in a folder of templates."""
    if os.geteuid() != 0:
        pytest.skip("real sandboxes with the copy-on-write store need root")
    root = tmp_path_factory.mktemp("templates") / "tiny/1/rootfs"
    root.parent.mkdir(parents=True)
    tiny.build(root)
    return root
