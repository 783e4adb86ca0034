from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sandyard.engine.drivers.gvisor import child


def test_a_volume_is_mounted_where_links_of_the_image_lead(tmp_path: Path) -> None:
    (tmp_path / "srv").mkdir()
    (tmp_path / "data").symlink_to("/srv")
    spec = {"mounts": [{"destination": "/data/new"}]}
    child._resolve_target(spec, tmp_path, "/data/new")
    assert spec == {"mounts": [{"destination": "/srv/new"}]}


@pytest.mark.parametrize("target", ["/", "/proc", "/dev/shm"])
def test_a_volume_cannot_hide_the_root_or_the_system_directories(tmp_path: Path, target: str) -> None:
    for name in ("proc", "dev/shm"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data").symlink_to(target)
    with pytest.raises(OSError, match="link") as raised:
        child._resolve_target({"mounts": [{"destination": "/data"}]}, tmp_path, "/data")
    assert raised.value.errno == errno.EXDEV
