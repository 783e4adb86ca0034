"""Parse multipart/form-data in one fixed buffer, from which data is written without a copy."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote_to_bytes

from sandyard.engine.guest.files.encoding import Source
from sandyard.engine.guest.wire.http1 import HttpError

BUFFER_SIZE = 1 << 20
_HEADER_LIMIT = 16 << 10
_PARAMETER = re.compile(r';\s*([^\s=;]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^;]*))')
_ESCAPE = re.compile(r'\\([()<>@,;:\\"/\[\]?=])')


def parse_boundary(content_type: str) -> str | None:
    return _parse_parameters(content_type).get("boundary")


def _parse_parameters(header: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for match in _PARAMETER.finditer(header):
        name, quoted, plain = match.groups()
        # A backslash only escapes characters that must be quoted: some clients send Windows paths unescaped.
        found[name.lower()] = _ESCAPE.sub(r"\1", quoted) if quoted is not None else plain.strip()
    return found


class Part:
    """The head of a part. `name` is the form field's; `filename` keeps its directories."""

    __slots__ = ("filename", "name")

    def __init__(self, headers: str) -> None:
        disposition = ""
        for line in headers.split("\r\n"):
            key, _, value = line.partition(":")
            if key.strip().lower() == "content-disposition":
                disposition = value.strip()
        parameters = _parse_parameters(";" + disposition.partition(";")[2]) if ";" in disposition else {}
        self.name = parameters.get("name", "")
        self.filename: str | None = None
        if "filename" in parameters:
            self.filename = parameters["filename"].encode("latin-1", "replace").decode("utf-8", "surrogateescape")
        extended = parameters.get("filename*", "")
        if extended.lower().startswith("utf-8'"):
            self.filename = unquote_to_bytes(extended.split("'", 2)[-1]).decode("utf-8", "replace")


class MultipartReader:
    """Call `next_part`, then either `read_part` or `next_part` again, which skips unread data."""

    def __init__(self, source: Source, boundary: str) -> None:
        self._source = source
        self._mark = b"\r\n--" + boundary.encode("latin-1", "replace")
        self._buffer = bytearray(BUFFER_SIZE)
        self._view = memoryview(self._buffer)
        # The first boundary has no line break before it; adding one makes all boundaries look the same.
        self._buffer[:2] = b"\r\n"
        self._start, self._end = 0, 2
        self._in_part = True  # data before the first boundary is treated as a part that is skipped

    async def next_part(self) -> Part | None:
        """Return the next part's head, or None after the last."""
        if self._in_part:
            await self.read_part(_ignore)
        await self._receive_at_least(2)
        if self._buffer[self._start : self._start + 2] == b"--":
            return None
        line = await self._take_until(b"\r\n")
        if line.strip():
            raise HttpError(400, "error reading form: malformed boundary")
        self._in_part = True
        if self._buffer.startswith(b"\r\n", self._start, self._end):
            self._start += 2
            return Part("")
        return Part((await self._take_until(b"\r\n\r\n")).decode("latin-1"))

    async def read_part(self, sink: Callable[[memoryview], None]) -> None:
        """Pass the rest of the part to `sink` in pieces. A piece is valid only during the call of `sink`."""
        mark = self._mark
        while True:
            found = -1
            # There is nearly always no boundary, and rfind determines that twice as fast as find.
            if self._buffer.rfind(mark, self._start, self._end) >= 0:
                found = self._buffer.find(mark, self._start, self._end)
            if found >= 0:
                if found > self._start:
                    sink(self._view[self._start : found])
                self._start = found + len(mark)
                self._in_part = False
                return
            safe = self._end - len(mark) + 1  # a boundary may start after this position
            if safe > self._start:
                sink(self._view[self._start : safe])
                self._start = safe
            await self._receive()

    async def _receive(self) -> None:
        size = self._end - self._start
        self._view[:size] = self._view[self._start : self._end]
        self._start, self._end = 0, size
        count = await self._source.read_into(self._view[size:])
        if not count:
            raise HttpError(400, "error reading form: multipart: NextPart: EOF")
        self._end += count

    async def _receive_at_least(self, count: int) -> None:
        while self._end - self._start < count:
            await self._receive()

    async def _take_until(self, mark: bytes) -> bytes:
        while True:
            found = self._buffer.find(mark, self._start, self._end)
            if found >= 0:
                data = bytes(self._view[self._start : found])
                self._start = found + len(mark)
                return data
            if self._end - self._start > _HEADER_LIMIT:
                raise HttpError(400, "error reading form: the head of a part is too long")
            await self._receive()


def _ignore(_piece: memoryview) -> None:
    pass
