"""Temporary storage for an upload that replaces an existing file, until it is complete."""

from __future__ import annotations

import ctypes
import os
import posixpath
import secrets
from collections.abc import Callable, Iterator

from sandyard.engine.guest.sandbox import Sandbox

MEMORY_BYTES = 256 << 10
_STEP = 1 << 20
_PUNCH_HOLE_KEEP_SIZE = 3
_libc = ctypes.CDLL(None, use_errno=True)


class Spool:
    """Keeps up to MEMORY_BYTES in memory, so that small files work on a full disk, and the rest in a file without a name in
    `directory` (a host path)."""

    def __init__(self, sandbox: Sandbox, directory: str) -> None:
        self._sandbox = sandbox
        self._directory = directory
        self._memory = bytearray()
        self._fd: int | None = None

    def write(self, data: memoryview) -> None:
        """Add data. Raises OSError if not all of it could be stored: compare `size` before and after."""
        if self._fd is None:
            if len(self._memory) + len(data) <= MEMORY_BYTES:
                self._memory += data
                return
            self._fd = self._open()
        while data:
            data = data[os.write(self._fd, data) :]

    @property
    def size(self) -> int:
        return len(self._memory) + (0 if self._fd is None else os.fstat(self._fd).st_size)

    def move(self, append: Callable[[memoryview], None], copy: Callable[[int, int], int]) -> Iterator[None]:
        """Move everything to another file, in steps. `append(data)` adds data to it; `copy(fd, count)` adds the next bytes of
        an open file and returns their number.

        Each step frees what it has copied, so that the disk never needs space for both.
        """
        append(memoryview(bytes(self._memory)))
        self._memory.clear()
        if self._fd is not None:
            offset = os.lseek(self._fd, 0, os.SEEK_SET)
            while count := copy(self._fd, _STEP):
                # Errors are ignored, because not every file system supports it.
                _libc.fallocate(self._fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(count))
                offset += count
                yield

    def close(self) -> None:
        self._memory.clear()
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int:
        try:
            return self._sandbox.open_file(self._directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        except OSError:  # not supported by the file system
            path = posixpath.join(self._directory, f".upload-{secrets.token_hex(8)}.tmp")
            fd = self._sandbox.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.unlink(path)
            return fd
