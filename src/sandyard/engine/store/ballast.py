"""Space kept for the database: on a full disk sandboxes must still be paused and ended, or nobody could free any."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SIZE = 16 << 20
LOW = 4 << 20  # with less than this free, the ballast is given to the database
ENOUGH = 8 * SIZE  # with more than this free, it is taken back


class Ballast:
    """A file of reserved blocks beside the database. Never raises: without it, a full disk is a full disk."""

    def __init__(self, database: Path) -> None:
        self._file = database.with_name(f"{database.name}-reserve")

    def keep(self) -> None:
        """Reserve the space, where there is enough."""
        with contextlib.suppress(OSError):
            if self._free() < ENOUGH or self._file.exists():
                return
            fd = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.posix_fallocate(fd, 0, SIZE)
            finally:
                os.close(fd)

    def give(self) -> None:
        """Free the space, where the disk is full. Costs microseconds otherwise."""
        with contextlib.suppress(OSError):
            if self._free() < LOW:
                self._file.unlink()

    def _free(self) -> int:
        stat = os.statvfs(self._file.parent)
        return stat.f_bavail * stat.f_frsize
