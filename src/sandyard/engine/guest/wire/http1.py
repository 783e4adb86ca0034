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
CONFIRM_TIMEOUT = 3600.0  # for a slow client to receive the end of a response
RECEIPTS_HEADER = "x-delivery-receipts"
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
    """A request's body, to be read once. `length` is None for a chunked one. Reading raises BodyError or PeerGoneError if
    the body ends too early."""

    __slots__ = ("_at_first_chunk", "_chunked", "_conn", "_expects_continue", "_left", "complete", "length")

    def __init__(self, conn: Connection, length: int | None, *, expects_continue: bool) -> None:
        self._conn = conn
        self._chunked = length is None
        self._left = length or 0
        self._at_first_chunk = True
        self._expects_continue = expects_continue
        self.length = length
        self.complete = length == 0

    async def read_into(self, view: memoryview) -> int:
        """Read some bytes into `view` and return their number, 0 at the end of the body."""
        if self.complete:
            return 0
        if self._expects_continue:
            self._expects_continue = False
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
        """Read from the chunks received so far, or wait for the next one."""
        conn = self._conn
        done = 0
        while done < len(view):
            if not self._left:
                if done and not conn.buffered:
                    break
                self._left = await self._read_chunk_size()
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
        if self._expects_continue or self._left > _DRAIN_LIMIT:
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

    async def _read_chunk_size(self) -> int:
        if not self._at_first_chunk and await self._read_line():
            raise BodyError("malformed chunk")  # no line break at the announced end
        self._at_first_chunk = False
        size = (await self._read_line()).split(b";", 1)[0].strip()
        if not size or len(size) > 15 or size.translate(None, b"0123456789abcdefABCDEF"):
            raise BodyError("malformed chunk size")
        count = int(size, 16)
        if not count:
            while await self._read_line():  # trailers
                pass
        return count

    async def _read_line(self) -> bytes:
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
        raise HttpError(505, f"unsupported version {version[:20]}: use HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or not _TOKEN.fullmatch(name):
            raise HttpError(400, "malformed header")
        name = name.lower()
        if name == "content-length" and headers.get(name, value.strip()) != value.strip():
            raise HttpError(400, "several different Content-Length headers")
        headers.setdefault(name, value.strip())
    connection = headers.get("connection", "").lower()
    close = "close" in connection or (version == "HTTP/1.0" and "keep-alive" not in connection)
    expects_continue = headers.get("expect", "").lower() == "100-continue"
    return Request(
        method, target, headers, Body(conn, _parse_body_length(headers), expects_continue=expects_continue), close=close
    )


def _parse_body_length(headers: Mapping[str, str]) -> int | None:
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

    A peer that forwards the response may offer receipts. It then reports on the same connection how many bytes of a body
    begun with `start` it has forwarded (`confirmed`, of `sent`), so that it is known what is lost if the peer is gone.
    """

    __slots__ = ("_receipts_offered", "confirmed", "conn", "keep_alive", "request", "sent", "started")

    def __init__(self, conn: Connection, request: Request) -> None:
        self.conn = conn
        self.request = request
        self.started = False
        self._receipts_offered = RECEIPTS_HEADER in request.headers
        self.sent = self.confirmed = 0
        self.keep_alive = not request.close

    def format_head(self, status: int, headers: Mapping[str, str]) -> bytes:
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
        all_headers = dict(headers or {})
        if status not in (204, 304):
            all_headers["Content-Length"] = str(len(body))
        await self.conn.send(self.format_head(status, all_headers) + (b"" if self.request.method == "HEAD" else body))

    async def reply_json(self, status: int, value: Any, headers: Mapping[str, str] | None = None) -> None:
        body = json.dumps(value, separators=(",", ":")).encode()
        await self.reply(status, body, {"Content-Type": "application/json", **(headers or {})})

    async def reply_head(self, status: int, headers: Mapping[str, str]) -> None:
        """Send only the head; the caller sends the announced Content-Length bytes, or closes."""
        self.started = True
        await self.conn.send(self.format_head(status, headers))

    async def start(self, status: int, headers: Mapping[str, str], first: bytes = b"", *, last: bool = False) -> None:
        """Begin a response of unknown length and send its first piece; with `last`, there are no others."""
        self.started = True
        self.sent = len(first)
        more = {RECEIPTS_HEADER: "1"} if self.uses_receipts else {}
        head = self.format_head(status, {**headers, **more, "Transfer-Encoding": "chunked"})
        await self.conn.send(head + _encode_chunk(first, last=last))

    async def write(self, data: bytes, *, last: bool = False) -> None:
        """Send one more piece; with `last`, end the response."""
        self.sent += len(data)
        await self.conn.send(_encode_chunk(data, last=last))

    @property
    def uses_receipts(self) -> bool:
        """Whether the peer sends receipts. It cannot before the request's body was read to its end, because the receipts
        would be taken for a part of the body."""
        return self._receipts_offered and self.request.body.complete

    def take_receipts(self) -> None:
        """Process received receipts. Stops when everything sent is confirmed: what follows is the next request."""
        while self.uses_receipts and self.confirmed < self.sent and self.conn.buffered >= _RECEIPT.size:
            (self.confirmed,) = _RECEIPT.unpack(self.conn.take(_RECEIPT.size))

    def take_last_receipts(self) -> None:
        """Process the remaining receipts when the peer is gone, or nothing more is sent to it."""
        if self.uses_receipts:
            self.conn.read_available()
            self.take_receipts()

    async def wait_until_confirmed(self) -> None:
        """Return when everything sent is confirmed. Raises PeerGoneError if it cannot be."""
        while self.uses_receipts and self.confirmed < self.sent:
            self.take_receipts()
            if self.confirmed < self.sent and not await self.conn.fill(CONFIRM_TIMEOUT):
                raise PeerGoneError


def _encode_chunk(data: bytes, *, last: bool) -> bytes:
    piece = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
    return piece + b"0\r\n\r\n" if last else piece
