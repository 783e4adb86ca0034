"""A directory that stands for a machine, and a folder of templates of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sandyard.engine.templates.folder import TemplateFolder

Put = Callable[..., Path]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    root = tmp_path / "machine"
    (root / "etc").mkdir(parents=True)
    return root


@pytest.fixture
def put(machine: Path) -> Put:
    """Write a file of the machine."""

    def write(path: str, text: str = "", mode: int = 0o644) -> Path:
        target = machine / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    return write


@pytest.fixture
def folder(tmp_path: Path) -> TemplateFolder:
    return TemplateFolder(tmp_path / "templates")
