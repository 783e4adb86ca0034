"""Download of a file from a volume, limited to its size when it was opened. All methods block: call them in a thread."""

from __future__ import annotations

import os
import threading

from sandyard.engine.volumes.content import Content
from sandyard.kit.errors import ConflictError


class Download:
    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._fd = fd
        self._at = 0
        self._lock = threading.Lock()  # a cancelled reader may still be reading when the file is closed

    @classmethod
    def begin(cls, content: Content, path: str) -> Download:
        """Open the file. Raises NotFoundError, or InvalidInputError if it is not a regular file."""
        return cls(*content.open_file(path))

    def read(self, most: int) -> bytes:
        """Return the next chunk, empty at the end. Data added since the start is left out. Raises ConflictError if the
        file became shorter, because its length was already sent."""
        with self._lock:
            left = self.size - self._at
            if left == 0 or self._fd < 0:
                return b""
            piece = os.pread(self._fd, min(most, left), self._at)
            if not piece:
                raise ConflictError("The file became shorter while it was being read. Try again.")
            self._at += len(piece)
            return piece

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
