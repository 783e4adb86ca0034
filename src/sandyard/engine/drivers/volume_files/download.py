"""Download of a file from a volume, limited to its size when it was opened. All methods block."""

from __future__ import annotations

import os
import threading

from sandyard.engine.drivers.volume_files.content import Content
from sandyard.kit.errors import ConflictError


class Download:
    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._fd = fd
        self._offset = 0
        self._lock = threading.Lock()  # a cancelled reader may still be reading when the file is closed

    @classmethod
    def begin(cls, content: Content, path: str) -> Download:
        """Open the file. Raises NotFoundError, or InvalidInputError if it is not a regular file."""
        return cls(*content.open_file(path))

    def read(self, max_bytes: int) -> bytes:
        """Return the next chunk, empty at the end. Data added since the start is left out. Raises ConflictError if the
        file became shorter, because its length was already sent."""
        with self._lock:
            remaining = self.size - self._offset
            if remaining == 0 or self._fd < 0:
                return b""
            chunk = os.pread(self._fd, min(max_bytes, remaining), self._offset)
            if not chunk:
                raise ConflictError("The file became shorter while it was being read. Try again.")
            self._offset += len(chunk)
            return chunk

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
