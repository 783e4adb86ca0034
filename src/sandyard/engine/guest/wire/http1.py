"""HTTP/1.1, server side: request heads, bodies (by length or chunked) and responses, with keep-alive."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from sandyard.engine.guest.wire.connection import Connection, PeerGoneError

HEAD_LIMIT = 64 << 10
IDLE_TIMEOUT = 640.0  # longer than any proxy in front keeps an idle connection; same as envd
BODY_TIMEOUT = 300.0
SETTLE_TIMEOUT = 3600.0  # for a slow client to receive the end of a response
RECEIPTS = "x-delivery-receipts"
_RECEIPT = struct.Struct(">Q")
_DRAIN_LIMIT = 1 << 30

REASONS = {
    100: "Continue", 200: "OK", 204: "No Content", 206: "Partial Content", 304: "Not Modified", 400: "Bad Request",
    401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 406: "Not Acceptable",
    409: "Conflict", 412: "Precondition Failed", 413: "Content Too Large", 415: "Unsupported Media Type",
    416: "Range Not Satisfiable", 429: "Too Many Requests", 431: "Request Header Fields Too Large",
    499: "Client Closed Request", 500: "Internal Server Error", 501: "Not Implemented", 502: "Bad Gateway",
    503: "Service Unavailable", 504: "Gateway Timeout", 505: "HTTP Version Not Supported", 507: "Insufficient Storage",
}  # fmt: skip

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")


class HttpError(Exception):
    """An error that is sent as a status and envd's error body `{"code", "message"}`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class BodyError(Exception):
    """The body's framing does not match its headers, so the start of the next request is unknown."""


class Body:
    """A request's body, to be read once. `read_into` returns 0 when it is complete, and raises if it cannot be
    completed."""

    __slots__ = ("_chunked", "_conn", "_expect", "_first", "_left", "complete", "length")

    def __init__(self, conn: Connection, length: int | None, *, expect: bool) -> None:
        self._conn = conn
        self._chunked = length is None
        self._left = length or 0
        self._first = True
        self._expect = expect
        self.length = length
        self.complete = length == 0

    async def read_into(self, view: memoryview) -> int:
        if self.complete:
            return 0
        if self._expect:
            self._expect = False
            await self._conn.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self._chunked:
            return await self._read_chunks(view)
        count = await self._conn.receive_into(view[: self._left], BODY_TIMEOUT)
        if not count:
            raise PeerGoneError
        self._left -= count
        self.complete = not self._left
        return count

    async def _read_chunks(self, view: memoryview) -> int:
        """Read the chunks received so far, but at least something."""
        conn = self._conn
        done = 0
        while done < len(view):
            if not self._left:
                if done and not conn.buffered:
                    break
                self._left = await self._next_chunk()
                if not self._left:
                    self.complete = True
                    break
            if done and not conn.buffered:
                break
            count = await conn.receive_into(view[done : done + self._left], BODY_TIMEOUT)
            if not count:
                raise PeerGoneError
            done += count
            self._left -= count
        return done

    async def read_exactly(self, size: int) -> bytes:
        """Return `size` bytes, or fewer if the body ends before."""
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = await self.read_into(view[done:])
            if not count:
                break
            done += count
        return bytes(view[:done])

    async def read_all(self, limit: int) -> bytes:
        """Return the whole body. Raises HttpError 413 if it has more than `limit` bytes."""
        if self.length is not None:
            if self.length > limit:
                raise HttpError(413, f"the body has {self.length} bytes, {limit} are allowed")
            if self._left == self.length <= self._conn.buffered:  # it arrived together with the head
                self._left, self.complete = 0, True
                return self._conn.take(self.length)
            return await self.read_exactly(self.length)
        parts: list[bytes] = []
        total = 0
        while part := await self.read_exactly(64 << 10):
            total += len(part)
            if total > limit:
                raise HttpError(413, f"the body has more than {limit} bytes")
            parts.append(part)
        return b"".join(parts)

    async def drain(self) -> bool:
        """Discard the rest, so that the connection can be reused. Return False if it is too much, or was never
        requested from the client."""
        if self.complete:
            return True
        if self._expect or self._left > _DRAIN_LIMIT:
            return False
        scratch = memoryview(bytearray(256 << 10))
        drained = 0
        try:
            while count := await self.read_into(scratch):
                drained += count
                if drained > _DRAIN_LIMIT:
                    return False
        except BodyError:
            return False
        return True

    async def _next_chunk(self) -> int:
        if not self._first and await self._line():
            raise BodyError("malformed chunk")  # it is longer than announced
        self._first = False
        size = (await self._line()).split(b";", 1)[0].strip()
        if not size or len(size) > 15 or size.translate(None, b"0123456789abcdefABCDEF"):
            raise BodyError("malformed chunk size")
        count = int(size, 16)
        if not count:
            while await self._line():  # trailers
                pass
        return count

    async def _line(self) -> bytes:
        line = await self._conn.take_until(b"\r\n", 4096, BODY_TIMEOUT)
        if line is None:
            raise BodyError("malformed chunk")
        return line[:-2]


class Request:
    __slots__ = ("_query", "body", "close", "headers", "method", "path", "query_string")

    def __init__(self, method: str, target: str, headers: dict[str, str], body: Body, *, close: bool) -> None:
        path, _, self.query_string = target.partition("?")
        self.method = method
        self.path = unquote(path) if "%" in path else path
        self.headers = headers
        self.body = body
        self.close = close
        self._query: dict[str, str] | None = None

    def query(self, name: str) -> str | None:
        """Return the first value of a query parameter."""
        if self._query is None:
            self._query = {}
            for key, value in parse_qsl(self.query_string, keep_blank_values=True):
                self._query.setdefault(key, value)
        return self._query.get(name)


async def read_request(conn: Connection) -> Request | None:
    """Return the next request of a connection, or None if there are no more. Raises HttpError if it is invalid; close
    the connection then."""
    while not conn.buffered:
        if not await conn.fill(IDLE_TIMEOUT):
            return None
    head = await conn.take_until(b"\r\n\r\n", HEAD_LIMIT, BODY_TIMEOUT)
    if head is None:
        raise HttpError(431, f"the request head has more than {HEAD_LIMIT} bytes")
    lines = head.decode("latin-1")[:-4].lstrip("\r\n").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not words[1].startswith("/"):
        raise HttpError(400, "malformed request line")
    method, target, version = words
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        raise HttpError(505, "this is an HTTP/1.1 server")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise HttpError(400, "malformed header")
        name = name.lower()
        if name == "content-length" and headers.get(name, value.strip()) != value.strip():
            raise HttpError(400, "contradicting Content-Length")
        headers.setdefault(name, value.strip())
    connection = headers.get("connection", "").lower()
    close = "close" in connection or (version == "HTTP/1.0" and "keep-alive" not in connection)
    expect = headers.get("expect", "").lower() == "100-continue"
    return Request(method, target, headers, Body(conn, _body_length(headers), expect=expect), close=close)


def _body_length(headers: Mapping[str, str]) -> int | None:
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None:
        if coding.lower() != "chunked" or length is not None:
            raise HttpError(400, "unsupported Transfer-Encoding")
        return None
    if length is None:
        return 0
    if not length.isascii() or not length.isdigit() or len(length) > 18:
        raise HttpError(400, "malformed Content-Length")
    return int(length)


class Exchange:
    """A request and its response. Exactly one of `reply`, `reply_json`, `reply_head` or `start` begins the response.

    A peer that forwards the response may offer receipts. It then reports, on the same connection, how many bytes of the
    body that `start` began it has forwarded so far (`confirmed`, of `sent`), so that it is known what is lost with it.
    """

    __slots__ = ("_offered", "confirmed", "conn", "keep_alive", "request", "sent", "started")

    def __init__(self, conn: Connection, request: Request) -> None:
        self.conn = conn
        self.request = request
        self.started = False
        self._offered = RECEIPTS in request.headers
        self.sent = self.confirmed = 0
        self.keep_alive = not request.close

    def head(self, status: int, headers: Mapping[str, str]) -> bytes:
        lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Status')}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if "origin" in self.request.headers:
            lines += [
                "Access-Control-Allow-Origin: *",
                "Access-Control-Expose-Headers: Content-Encoding, Location, Cache-Control, X-Content-Type-Options",
                "Vary: Origin",
            ]
        if not self.keep_alive:
            lines.append("Connection: close")
        lines.append("\r\n")
        return "\r\n".join(lines).encode("latin-1", "replace")

    async def reply(self, status: int, body: bytes = b"", headers: Mapping[str, str] | None = None) -> None:
        self.started = True
        every = dict(headers or {})
        if status not in (204, 304):
            every["Content-Length"] = str(len(body))
        await self.conn.send(self.head(status, every) + (b"" if self.request.method == "HEAD" else body))

    async def reply_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value, separators=(",", ":")).encode()
        await self.reply(status, body, {"Content-Type": "application/json", **(headers or {})})

    async def reply_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send only the head; the caller sends the announced Content-Length bytes, or closes."""
        self.started = True
        await self.conn.send(self.head(status, headers))

    async def start(self, status: int, headers: Mapping[str, str], first: bytes = b"", *, last: bool = False) -> None:
        """Start a response of unknown length, with its first piece, which with `last` is all of it."""
        self.started = True
        self.sent = len(first)
        more = {RECEIPTS: "1"} if self.receipts else {}
        head = self.head(status, {**headers, **more, "Transfer-Encoding": "chunked"})
        await self.conn.send(head + _encode_chunk(first, last=last))

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send one more piece, and with `last` the end."""
        self.sent += len(data)
        await self.conn.send(_encode_chunk(data, last=last))

    @property
    def receipts(self) -> bool:
        """Whether receipts are used. Not possible if the request's body was not read to its end, because anything could
        follow."""
        return self._offered and self.request.body.complete

    def take_receipts(self) -> None:
        """Process received receipts. There are never more than for what was sent, so the next request is not affected."""
        while self.receipts and self.confirmed < self.sent and self.conn.buffered >= _RECEIPT.size:
            (self.confirmed,) = _RECEIPT.unpack(self.conn.take(_RECEIPT.size))

    def take_last_receipts(self) -> None:
        """Process the remaining receipts when the peer is gone, or nothing more is sent to it."""
        if self.receipts:
            self.conn.read_what_came()
            self.take_receipts()

    async def wait_until_confirmed(self) -> None:
        """Return when everything sent is confirmed. Raises PeerGoneError if it cannot be."""
        while self.receipts and self.confirmed < self.sent:
            self.take_receipts()
            if self.confirmed < self.sent and not await self.conn.fill(SETTLE_TIMEOUT):
                raise PeerGoneError


def _encode_chunk(data: bytes, *, last: bool) -> bytes:
    piece = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return piece + b"0\r\n\r\n" if last else piece
