"""The free memory and disk of this machine."""

from __future__ import annotations

import os
from pathlib import Path

from sandyard.engine.contract import Room

MEMINFO = Path("/proc/meminfo")


def read_memory(meminfo: Path = MEMINFO) -> tuple[int, int]:
    """Return the bytes of memory in total, and those available without swapping. Raises OSError or ValueError."""
    text = meminfo.read_bytes()
    return _read_field(text, b"MemTotal:"), _read_field(text, b"MemAvailable:")


def _read_field(text: bytes, name: bytes) -> int:
    return int(text[text.index(name) + len(name) :].split(b"kB", 1)[0]) << 10


def read_room(folder: Path, full: str | None = None) -> Room:
    """Return the room on this machine for sandboxes whose files are in `folder`. Blocks for microseconds."""
    return Room(_read_available_memory(), _read_free_disk(folder), str(folder), full)


def _read_available_memory() -> int | None:
    try:
        return read_memory()[1]
    except (OSError, ValueError):
        return None


def _read_free_disk(folder: Path) -> int | None:
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize
