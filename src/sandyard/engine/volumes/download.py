"""A file on its way out of a volume, as long as it was when it was opened. Blocks: call every verb in a thread."""

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
        self._lock = threading.Lock()  # a reader that was given up on may still be at it when the file is closed

    @classmethod
    def begin(cls, content: Content, path: str) -> Download:
        """NotFoundError, InvalidInputError when it is no regular file."""
        return cls(*content.open_file(path))

    def read(self, most: int) -> bytes:
        """The next piece, empty at the end. What was added since is left out; ConflictError when it became shorter, for
        the length was told already."""
        with self._lock:
            left = self.size - self._at
            if left == 0 or self._fd < 0:
                return b""
            piece = os.pread(self._fd, min(most, left), self._at)
            if not piece:
                raise ConflictError("The file became shorter while it was read.")
            self._at += len(piece)
            return piece

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
