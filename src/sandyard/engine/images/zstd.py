"""Zstandard decompression with bounded memory, because Python 3.11 has none."""

from __future__ import annotations

from typing import Protocol

import zstandard

MAGIC = b"\x28\xb5\x2f\xfd"
_IN_BYTES = 1 << 12  # decompresses to at most 128 MiB: the smallest block of 4 bytes to the largest of 128 KiB


class ZstdError(Exception):
    """The reason why data cannot be decompressed, as the second half of a sentence."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class ZstdReader:
    """Reads consecutive frames. The library itself rejects windows larger than 128 MiB."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._decompressor = zstandard.ZstdDecompressor()
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._input = b""
        self._ready = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, or none at the end."""
        while not self._ready:
            if not self._input:
                self._input = self._source.read(_IN_BYTES)
            if not self._input:
                if self._frame is not None:
                    raise ZstdError("is truncated")
                return b""
            self._ready = memoryview(self._decompress_input())
        data, self._ready = bytes(self._ready[:size]), self._ready[size:]
        return data

    def _decompress_input(self) -> bytes:
        if self._frame is None:
            self._frame = self._decompressor.decompressobj()
        try:
            data = self._frame.decompress(self._input)
        except zstandard.ZstdError as error:
            raise ZstdError(f"is not valid Zstandard data ({error})") from None
        if self._frame.eof:
            self._input, self._frame = self._frame.unused_data, None
        else:
            self._input = b""
        return data
