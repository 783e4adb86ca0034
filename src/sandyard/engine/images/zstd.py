"""Zstandard decompression with the system's libzstd (part of every Debian and Ubuntu, because dpkg needs it), because
Python 3.11 has none."""

from __future__ import annotations

import ctypes
import functools
from typing import Protocol

MAGIC = b"\x28\xb5\x2f\xfd"
_IN_BYTES, _OUT_BYTES = 1 << 17, 1 << 17


class ZstdError(Exception):
    """Why data cannot be decompressed, as the second half of a sentence."""


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Buffer(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("pos", ctypes.c_size_t))


class ZstdReader:
    """Reads consecutive frames. The library itself rejects windows larger than 128 MiB."""

    def __init__(self, source: Readable) -> None:
        self._source = source
        self._lib = load()
        self._stream = self._lib.ZSTD_createDStream()
        if not self._stream:
            raise MemoryError
        self._in = ctypes.create_string_buffer(_IN_BYTES)
        self._out = ctypes.create_string_buffer(_OUT_BYTES)
        self._input = _Buffer(ctypes.addressof(self._in), 0, 0)
        self._ready = b""
        self._between_frames = True
        self._pending = False  # the output buffer was full, so there may be more

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes, or none at the end."""
        while not self._ready:
            if self._input.pos == self._input.size and not self._pending:
                chunk = self._source.read(_IN_BYTES)
                if not chunk:
                    if not self._between_frames:
                        raise ZstdError("is truncated")
                    return b""
                ctypes.memmove(self._in, chunk, len(chunk))
                self._input.size, self._input.pos = len(chunk), 0
            output = _Buffer(ctypes.addressof(self._out), _OUT_BYTES, 0)
            left = self._lib.ZSTD_decompressStream(self._stream, ctypes.byref(output), ctypes.byref(self._input))
            if self._lib.ZSTD_isError(left):
                raise ZstdError(f"is not valid Zstandard data ({self._lib.ZSTD_getErrorName(left).decode()})")
            self._between_frames, self._pending = left == 0, output.pos == _OUT_BYTES
            self._ready = self._out.raw[: output.pos]
        data, self._ready = self._ready[:size], self._ready[size:]
        return data

    def close(self) -> None:
        self._lib.ZSTD_freeDStream(self._stream)


@functools.cache
def load() -> ctypes.CDLL:
    """Load the library. Raises ZstdError. Call it before the process loses the ability to open files."""
    try:
        lib = ctypes.CDLL("libzstd.so.1")
    except OSError:
        raise ZstdError(
            "is compressed with Zstandard, but libzstd is missing on this machine. Install libzstd1"
        ) from None
    lib.ZSTD_createDStream.restype = ctypes.c_void_p
    lib.ZSTD_freeDStream.argtypes = (ctypes.c_void_p,)
    lib.ZSTD_decompressStream.argtypes = (ctypes.c_void_p, ctypes.POINTER(_Buffer), ctypes.POINTER(_Buffer))
    lib.ZSTD_decompressStream.restype = ctypes.c_size_t
    lib.ZSTD_isError.argtypes = (ctypes.c_size_t,)
    lib.ZSTD_getErrorName.argtypes = (ctypes.c_size_t,)
    lib.ZSTD_getErrorName.restype = ctypes.c_char_p
    return lib
