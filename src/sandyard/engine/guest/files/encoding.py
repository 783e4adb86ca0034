"""Content encodings of uploads and downloads: gzip or none."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Mapping
from typing import Protocol

from sandyard.engine.guest.wire.http1 import Body, HttpError

GZIP, IDENTITY = "gzip", "identity"
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class Source(Protocol):
    """A source of bytes."""

    async def read_into(self, view: memoryview) -> int:
        """Read some bytes into `view`. Return 0 at the end."""
        ...


class GzipDecoder:
    """Decompresses a gzip source in pieces no larger than requested."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._inflate = zlib.decompressobj(_GZIP_WINDOW)
        self._input = b""
        self._scratch: memoryview | None = None
        self._finished = False

    async def read_into(self, view: memoryview) -> int:
        while not self._finished:
            if self._inflate.eof:
                self._input = self._inflate.unused_data  # what follows this gzip member
                if not self._input and not await self._refill():
                    self._finished = True
                    break
                self._inflate = zlib.decompressobj(_GZIP_WINDOW)  # for the next gzip member
            elif not self._input and not await self._refill():
                raise HttpError(400, "error decompressing request body: unexpected end")
            try:
                data = self._inflate.decompress(self._input, len(view))
            except zlib.error as error:
                raise HttpError(400, f"error decompressing request body: {error}") from None
            self._input = self._inflate.unconsumed_tail
            if data:
                view[: len(data)] = data
                return len(data)
        return 0

    async def _refill(self) -> bool:
        if self._scratch is None:
            self._scratch = memoryview(bytearray(128 << 10))
        count = await self._source.read_into(self._scratch)
        self._input = bytes(self._scratch[:count])
        return bool(count)


def decode_body(body: Body, headers: Mapping[str, str]) -> Source:
    """Return the decoded body. Raises HttpError 400 for an unknown encoding."""
    header = headers.get("content-encoding", "")
    coding = header.partition(";")[0].strip().lower()
    if coding in ("", IDENTITY):
        return body
    if coding == GZIP:
        return GzipDecoder(body)
    reason = f"unsupported Content-Encoding: {header}, supported: [{GZIP}]"
    raise HttpError(400, f"error decompressing request body: {reason}")


def choose_encoding(headers: Mapping[str, str], *, whole: bool = True) -> str:
    """Return the encoding of a response: gzip only for a whole file, and only if the client accepts nothing else or prefers
    it to an uncompressed response. Other clients list gzip because their library supports it; compressing would only slow
    them down. Raises HttpError 406 if no encoding is acceptable."""
    qualities = _parse_qualities(headers.get("accept-encoding", ""))
    others = qualities.get("*")
    gzip = qualities.get(GZIP, others or 0.0)
    identity = qualities.get(IDENTITY, others)
    if whole and gzip > 0 and (list(qualities) == [GZIP] or (identity is not None and identity < gzip)):
        return GZIP
    if identity == 0:
        raise HttpError(406, "error parsing Accept-Encoding: no acceptable encoding found, supported: [identity, gzip]")
    return IDENTITY


def _parse_qualities(header: str) -> dict[str, float]:
    qualities: dict[str, float] = {}
    for item in header.split(","):
        name, _, parameters = item.partition(";")
        quality = 1.0
        for parameter in parameters.split(";"):
            key, _, value = parameter.strip().partition("=")
            if key.lower() == "q":
                with contextlib.suppress(ValueError):
                    quality = float(value)
        if name.strip():
            qualities[name.strip().lower()] = quality
    return qualities
