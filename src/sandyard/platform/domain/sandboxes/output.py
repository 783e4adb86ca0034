"""Output of commands in files of the platform: two per command, written and read by offset.

The database stores how much of a file is valid. After a crash a file may be longer; the rest is truncated and fetched
again from the journal in the sandbox, which has every byte.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

STDOUT, STDERR = "stdout", "stderr"
STREAMS = (STDOUT, STDERR)
_VECTOR = 256  # the kernel accepts 1024 at once
_OPEN = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC


class OutputFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, command_id: str, stream: str) -> Path:
        assert stream in STREAMS
        # two characters of the random part, so that no directory has to hold them all
        return self._folder / command_id[-2:] / command_id / stream

    async def begin(self, command_id: str, sizes: Mapping[str, int]) -> None:
        """Create the files, or truncate them to the valid sizes."""
        await asyncio.to_thread(self._begin, command_id, sizes)

    def _begin(self, command_id: str, sizes: Mapping[str, int]) -> None:
        for stream in STREAMS:
            path = self._path(command_id, stream)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, _OPEN, 0o600)
            try:
                if os.fstat(fd).st_size > sizes.get(stream, 0):
                    os.ftruncate(fd, sizes.get(stream, 0))
            finally:
                os.close(fd)

    async def write(self, command_id: str, stream: str, offset: int, *pieces: bytes | bytearray) -> None:
        """Write the pieces one after another at that offset.

        Writing the same bytes twice is harmless, which matters if it is unknown whether they were recorded.
        """
        await asyncio.to_thread(self._write, command_id, stream, offset, pieces)

    def _write(self, command_id: str, stream: str, offset: int, pieces: Sequence[bytes | bytearray]) -> None:
        fd = os.open(self._path(command_id, stream), _OPEN, 0o600)
        try:
            views = [memoryview(piece) for piece in pieces]
            while views:
                written = os.pwritev(fd, views[:_VECTOR], offset)
                offset += written
                while views and written >= len(views[0]):
                    written -= len(views.pop(0))
                if written:
                    views[0] = views[0][written:]
        finally:
            os.close(fd)

    async def read(self, command_id: str, stream: str, offset: int, limit: int) -> bytes:
        """Return at most `limit` bytes from the offset, or fewer at the end."""
        return await asyncio.to_thread(self._read, command_id, stream, offset, limit)

    def _read(self, command_id: str, stream: str, offset: int, limit: int) -> bytes:
        if limit <= 0:
            return b""
        with contextlib.suppress(FileNotFoundError), self._path(command_id, stream).open("rb") as file:
            file.seek(offset)
            return file.read(limit)
        return b""

    async def size(self, command_id: str, stream: str) -> int:
        """Return the size of the stored output."""
        return await asyncio.to_thread(self._size, command_id, stream)

    def _size(self, command_id: str, stream: str) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self._path(command_id, stream).stat().st_size
        return 0

    async def ids(self, prefix: str) -> list[str]:
        """Return the ids with this prefix that have files."""
        return await asyncio.to_thread(lambda: [path.name for path in self._folder.glob(f"??/{prefix}*")])

    async def remove(self, command_id: str) -> None:
        folder = self._path(command_id, STDOUT).parent
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
