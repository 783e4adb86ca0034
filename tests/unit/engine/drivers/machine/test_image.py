from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.store import image


def test_a_failed_creation_leaves_no_reserved_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "MIN_SIZE", 1 << 20)
    monkeypatch.setattr(image, "get_reserve", lambda _: 0)
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="no btrfs")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(image.ImageError, match="no btrfs"):
        image.create(tmp_path / "store.img", "label")
    assert list(tmp_path.iterdir()) == []
