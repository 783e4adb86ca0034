"""A directory that stands for a machine's root, and a template folder."""

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
    """Return a function that writes a file below the machine's root."""

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
