"""Measure files and directories."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

BLOCK_BYTES = 512  # the unit of st_blocks, on every file system


def measure(path: Path, *, without: Collection[str] = ()) -> int:
    """Return the bytes on the disk of a file, or of a directory with its contents, without other file systems and the
    paths in `without`. A file with several names is counted once. What disappears meanwhile does not count."""
    total, seen = 0, set[tuple[int, int]]()
    with contextlib.suppress(OSError):
        device = path.lstat().st_dev
        for status in _walk(str(path), device, frozenset(without)):
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * BLOCK_BYTES
    return total


def _walk(path: str, device: int, without: Collection[str]) -> Iterator[os.stat_result]:
    pending = [path]
    while pending:
        current = pending.pop()
        if current in without:
            continue
        try:
            status = os.lstat(current)
        except OSError:
            continue
        if status.st_dev != device:
            continue
        yield status
        if stat.S_ISDIR(status.st_mode):
            with contextlib.suppress(OSError), os.scandir(current) as entries:
                pending += [entry.path for entry in entries]
