"""Disk space reserved for the database. On a full disk it must still be possible to pause and kill sandboxes, or nobody
could free any space."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

RESERVE_BYTES = 16 << 20
LOW_BYTES = 4 << 20  # below this much free space, the reserve is released for the database
ENOUGH_BYTES = 8 * RESERVE_BYTES  # above this much free space, the reserve is allocated again


class DiskReserve:
    """A file of reserved blocks next to the database. Never raises: failing to reserve space is not an error."""

    def __init__(self, database: Path) -> None:
        self._file = database.with_name(f"{database.name}-reserve")

    def reserve(self) -> None:
        """Reserve the space if the disk has enough."""
        with contextlib.suppress(OSError):
            if self._get_free_bytes() < ENOUGH_BYTES or self._file.exists():
                return
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, RESERVE_BYTES)
            finally:
                os.close(fd)

    def release(self) -> None:
        """Release the space if the disk is nearly full. Cheap enough to call before every write."""
        with contextlib.suppress(OSError):
            if self._get_free_bytes() < LOW_BYTES:
                self._file.unlink()

    def _get_free_bytes(self) -> int:
        stat = os.statvfs(self._file.parent)
        return stat.f_bavail * stat.f_frsize
