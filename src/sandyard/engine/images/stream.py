"""A layer as a stream of bytes: cut out of its file, decompressed, hashed on both sides, and never longer than allowed.

Everything here is hostile. `tarfile` reads from `Stream`, which goes forward only, gives no more than a header can need at once and
does not answer for ever at its end: whatever a header claims, there is neither an endless loop nor a full memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from typing import Any, Protocol, cast

from sandyard.engine.images.zstd import MAGIC as ZSTD
from sandyard.engine.images.zstd import ZstdError, ZstdReader

CHUNK = 1 << 20
_GZIP = b"\x1f\x8b"
_OTHERS = {b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class LayerError(Exception):
    """Why a layer can't be used: a sentence's second half ("The layer … <this>.")."""


class NoRoomError(LayerError):
    """The same, because the disk is full."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Slice(io.RawIOBase):
    """Part of an open file, hashed as it is read."""

    def __init__(self, fd: int, offset: int, size: int) -> None:
        self._fd, self._at, self._end = fd, offset, offset + size
        self._sha = hashlib.sha256()

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        left = self._end - self._at
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._at)
        self._at += len(data)
        self._sha.update(data)
        return data

    def start(self, size: int) -> bytes:
        """Without reading it."""
        return os.pread(self._fd, min(size, self._end - self._at), self._at)

    def finish(self) -> str:
        """The digest of all of it."""
        while self.read(CHUNK):
            pass
        return f"sha256:{self._sha.hexdigest()}"


class Stream:
    """What a tar reader needs of a file. `most`: bytes there may be."""

    def __init__(self, source: Slice, most: int) -> None:
        self._source = _decompressed(source)
        self._most = most
        self._at = 0
        self._ends = 0
        self._sha = hashlib.sha256()

    def tell(self) -> int:
        return self._at

    def seek(self, place: int, whence: int = 0) -> int:
        if whence or place < self._at:
            raise LayerError("has a header that leads backwards")
        while self._at < place:
            if not self.read(min(place - self._at, CHUNK)):
                raise LayerError("ends in the middle")
        return self._at

    def read(self, size: int = -1) -> bytes:
        """As many bytes as asked for, less only at the end."""
        if not 0 <= size <= 4 * CHUNK:
            raise LayerError("has a header of more than 4 MiB")
        parts = []
        while size > 0 and (part := self._take(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _take(self, size: int) -> bytes:
        try:
            data = self._source.read(size)
        except (zlib.error, EOFError, gzip.BadGzipFile) as error:
            raise LayerError(f"is not valid gzip data ({error})") from None
        except ZstdError as error:
            raise LayerError(str(error)) from None
        if not data:
            self._ends += 1
            if self._ends > 8:
                raise LayerError("ends in the middle")
        self._at += len(data)
        if self._at > self._most:
            raise LayerError(
                f"is larger than the {self._most >> 20} MiB that are left for the image (setting images_max_mb)"
            )
        self._sha.update(data)
        return data

    def finish(self) -> str:
        """The digest of all of it, without compression."""
        self._ends = 0
        while self._take(CHUNK):
            pass
        return f"sha256:{self._sha.hexdigest()}"


def forget_members(tar: tarfile.TarFile) -> None:
    """Those it has read, of which it would keep a list."""
    cast("Any", tar).members = []


def _decompressed(source: Slice) -> _Readable:
    """By what it begins with: what is said about a layer elsewhere may be wrong."""
    start = source.start(6)
    if start.startswith(_GZIP):
        return cast("_Readable", gzip.GzipFile(fileobj=source, mode="rb"))
    if start.startswith(ZSTD) or (len(start) > 3 and start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5):
        try:
            return ZstdReader(source)
        except ZstdError as error:
            raise LayerError(str(error)) from None
    for magic, name in _OTHERS.items():
        if start.startswith(magic):
            raise LayerError(f"is compressed with {name}; gzip, Zstandard or none can be read")
    return source
