"""Fill a file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path

DISK = 8 << 30


def fill(path: Path) -> None:
    """Fill the file system to the last block."""
    with path.open("wb") as file:
        size = DISK
        while size >= 4096:
            try:
                os.posix_fallocate(file.fileno(), file.seek(0, os.SEEK_END), size)
            except OSError as error:
                assert error.errno == errno.ENOSPC
                size //= 2
