from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.engine.drivers.room import read_memory, read_room


def test_the_room_of_this_machine_is_read(tmp_path: Path) -> None:
    room = read_room(tmp_path, "full")
    assert room.memory_available and room.memory_available > 1 << 20
    assert room.disk_free and room.disk_free > 1 << 20
    assert (room.disk, room.full) == (str(tmp_path), "full")
    assert read_room(tmp_path / "nowhere").disk_free is None


def test_memory_is_read_from_a_file(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       2048 kB\nMemFree:    1 kB\nMemAvailable:    1024 kB\nBuffers: 5 kB\n")
    assert read_memory(meminfo) == (2 << 20, 1 << 20)
    meminfo.write_text("MemTotal: 1 kB\n")
    with pytest.raises(ValueError, match="not found"):
        read_memory(meminfo)
