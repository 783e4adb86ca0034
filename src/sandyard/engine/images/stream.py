"""A layer as a stream of bytes: cut out of its file, decompressed, and then read from a pipe.

All input is hostile. `tarfile` reads from `Stream`, which only moves forward, returns no more at once than a header can
need, and stops answering at some point after its end: even with a hostile header, there is no endless loop and no memory
exhaustion.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Iterator
from typing import Any, Protocol, cast

from sandyard.engine.images.zstd import MAGIC as ZSTD_MAGIC
from sandyard.engine.images.zstd import ZstdError, ZstdReader

CHUNK = 1 << 20
MAX_EMPTY_READS = 8  # reads at the end of the data before it counts as truncated
_GZIP_MAGIC = b"\x1f\x8b"
_UNSUPPORTED = {b"BZh": "bzip2", b"\xfd7zXZ": "xz"}


class LayerError(Exception):
    """The reason why a layer cannot be used, as the second half of a sentence ("The layer … <this>.")."""


class NoRoomError(LayerError):
    """A layer cannot be stored: the disk is full."""


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class Slice(io.RawIOBase):
    """A part of an open file, hashed as it is read."""

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

    def peek(self, size: int) -> bytes:
        """Return the first bytes without consuming them."""
        return os.pread(self._fd, min(size, self._end - self._at), self._at)

    def finish(self) -> str:
        """Return the digest of the whole part."""
        while self.read(CHUNK):
            pass
        return f"sha256:{self._sha.hexdigest()}"


def decompress(source: Slice) -> Iterator[bytes]:
    """Yield the decompressed data in chunks of at most CHUNK bytes. Raises LayerError."""
    plain = _open_decompressed(source)
    while True:
        try:
            data = plain.read(CHUNK)
        except (zlib.error, EOFError, gzip.BadGzipFile) as error:
            raise LayerError(f"is not valid gzip data ({error})") from None
        except ZstdError as error:
            raise LayerError(str(error)) from None
        except (ValueError, MemoryError, OverflowError) as error:
            raise LayerError(f"is not valid compressed data ({type(error).__name__})") from None
        if not data:
            return
        yield data


class Stream:
    """A file-like object for a tar reader that reads from a pipe."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._at = 0
        self._empty_reads = 0

    def tell(self) -> int:
        return self._at

    def seek(self, position: int, whence: int = 0) -> int:
        if whence or position < self._at:
            raise LayerError("has a header that points backwards")
        while self._at < position:
            if not self.read(min(position - self._at, CHUNK)):
                raise LayerError("is truncated")
        return self._at

    def read(self, size: int = -1) -> bytes:
        """Return exactly `size` bytes, or fewer at the end."""
        if not 0 <= size <= 4 * CHUNK:
            raise LayerError("has a header larger than 4 MiB")
        parts = []
        while size > 0 and (part := self._read_some(size)):
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _read_some(self, size: int) -> bytes:
        data = os.read(self._pipe, size)
        if not data:
            self._empty_reads += 1
            if self._empty_reads > MAX_EMPTY_READS:
                raise LayerError("is truncated")
        self._at += len(data)
        return data

    def finish(self) -> None:
        """Read the data after the end of the tar."""
        while os.read(self._pipe, CHUNK):
            pass


def forget_members(tar: tarfile.TarFile) -> None:
    """Drop the list of members that tarfile has read."""
    cast("Any", tar).members = []


def _open_decompressed(source: Slice) -> _Readable:
    """Detect the compression from the first bytes, because other information about a layer may be wrong."""
    start = source.peek(6)
    if start.startswith(_GZIP_MAGIC):
        return cast("_Readable", gzip.GzipFile(fileobj=source, mode="rb"))
    if start.startswith(ZSTD_MAGIC) or (len(start) > 3 and start[1:4] == b"\x2a\x4d\x18" and start[0] >> 4 == 5):
        try:
            return ZstdReader(source)
        except ZstdError as error:
            raise LayerError(str(error)) from None
    for magic, name in _UNSUPPORTED.items():
        if start.startswith(magic):
            raise LayerError(f"is compressed with {name}; only gzip, Zstandard or no compression is supported")
    return source
