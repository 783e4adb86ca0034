"""The Connect protocol in its JSON form: unary calls, server streams and client streams over `http1`.

A call's handler raises `RpcError` to fail; clients see any other exception as `internal` without details.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncGenerator
from typing import Any

from sandyard.engine.guest.wire import protojson
from sandyard.engine.guest.wire.connection import PeerGoneError
from sandyard.engine.guest.wire.http1 import BodyError, Exchange, HttpError, Request

UNARY_TYPE = "application/json"
STREAM_TYPE = "application/connect+json"
MESSAGE_LIMIT = 64 << 20
DEFAULT_KEEPALIVE = 90.0

_ENVELOPE = struct.Struct(">BI")
_COMPRESSED, _END = 1, 2
_STREAM_HEADERS = {"Content-Type": STREAM_TYPE, "X-Accel-Buffering": "no"}

STATUS = {
    "canceled": 499, "unknown": 500, "invalid_argument": 400, "deadline_exceeded": 504, "not_found": 404,
    "already_exists": 409, "permission_denied": 403, "resource_exhausted": 429, "failed_precondition": 400,
    "aborted": 409, "out_of_range": 400, "unimplemented": 501, "internal": 500, "unavailable": 503, "data_loss": 500,
    "unauthenticated": 401,
}  # fmt: skip


class RpcError(Exception):
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    def render(self) -> dict[str, str]:
        return {"code": self.code, "message": protojson.make_printable(self.message)}


def make_envelope(payload: bytes, flags: int = 0) -> bytes:
    return _ENVELOPE.pack(flags, len(payload)) + payload


def parse_timeout(request: Request) -> float | None:
    """Return the client's timeout for this call in seconds, or None for no limit."""
    header = request.headers.get("connect-timeout-ms", "")
    if not header:
        return None
    if not header.isascii() or not header.isdigit() or len(header) > 15:
        raise RpcError("invalid_argument", f"protocol error: invalid timeout {header!r}")
    return int(header) / 1000 or None


def _get_media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def check_method_and_type(exchange: Exchange, media_type: str) -> bool:
    """Return whether the request is a POST of that type. If not, send the error response."""
    if exchange.request.method != "POST":
        await exchange.reply(405, headers={"Allow": "POST"})
    elif _get_media_type(exchange.request) != media_type:
        await exchange.reply(415, headers={"Accept-Post": media_type})
    else:
        return True
    return False


async def read_unary_message(request: Request) -> protojson.Message:
    """Return the message of a unary call. Raises RpcError if it is invalid."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RpcError("unimplemented", "compressed messages are not supported")
    try:
        return protojson.parse(await request.body.read_all(MESSAGE_LIMIT))
    except HttpError as error:
        raise RpcError("resource_exhausted", error.message) from None
    except (BodyError, protojson.FieldError) as error:
        raise RpcError("invalid_argument", str(error)) from None


async def read_messages(request: Request) -> AsyncGenerator[protojson.Message, None]:
    """Yield the messages of a client's stream as they arrive. A server stream's request is a stream of one message."""
    body = request.body
    try:
        while True:
            prefix = await body.read_exactly(5)
            if not prefix:
                return
            if len(prefix) < 5:
                raise RpcError("invalid_argument", "protocol error: incomplete envelope")
            flags, size = _ENVELOPE.unpack(prefix)
            if flags & _COMPRESSED:
                raise RpcError("unimplemented", "compressed messages are not supported")
            if size > MESSAGE_LIMIT:
                raise RpcError("resource_exhausted", f"message has {size} bytes, {MESSAGE_LIMIT} are allowed")
            payload = await body.read_exactly(size)
            if len(payload) < size:
                raise RpcError("invalid_argument", "protocol error: incomplete envelope")
            if flags & _END:
                return
            yield protojson.parse(payload)
    except (BodyError, protojson.FieldError) as error:
        raise RpcError("invalid_argument", str(error)) from None


async def read_single_message(request: Request) -> protojson.Message:
    """Return the single message of a server stream's request."""
    if request.body.length is not None:
        # Fast path for what nearly every client sends, because every command starts with it.
        try:
            data = await request.body.read_all(MESSAGE_LIMIT)
        except HttpError as error:
            raise RpcError("resource_exhausted", error.message) from None
        if len(data) >= 5 and data[0] == 0 and _ENVELOPE.unpack_from(data)[1] == len(data) - 5:
            return protojson.parse(data[5:])
        raise RpcError("invalid_argument", "protocol error: the request is not one uncompressed message")
    only: protojson.Message | None = None
    async with contextlib.aclosing(read_messages(request)) as stream:
        async for message in stream:  # to the end of the body, so that what follows is known to be the next request
            if only is not None:
                raise RpcError("invalid_argument", "protocol error: the request has more than one message")
            only = message
    if only is not None:
        return only
    raise RpcError("invalid_argument", "protocol error: the request has no message")


async def reply_error(exchange: Exchange, error: RpcError, *, stream: bool) -> None:
    """Respond to a call with an error, also in the middle of a stream."""
    if not stream:
        await exchange.reply_json(STATUS.get(error.code, 500), error.render())
        return
    last = make_envelope(protojson.render({"error": error.render()}), _END)
    if exchange.started:
        await exchange.write(last, last=True)
    else:
        await exchange.start(200, _STREAM_HEADERS, last, last=True)


async def reply_client_stream(exchange: Exchange, message: dict[str, Any]) -> None:
    body = make_envelope(protojson.render(message)) + make_envelope(b"{}", _END)
    await exchange.reply(200, body, _STREAM_HEADERS)


class ServerStream:
    """A stream to one client: it sends keepalives when nothing else is sent, and ends at the client's deadline.

    One coroutine owns the stream, sends on it, and sleeps in `wait` until a callback calls `wake`.
    """

    __slots__ = (
        "_deadline", "_exchange", "_expired", "_gone", "_interval", "_keepalive", "_keepalive_due", "_last_sent", "_loop",
        "_opening", "_opening_due", "_timer", "_waiter", "_woken",
    )  # fmt: skip

    def __init__(self, exchange: Exchange, keepalive: bytes, limit: float | None) -> None:
        self._exchange = exchange
        self._keepalive = make_envelope(keepalive)
        self._loop = exchange.conn.loop
        self._interval = _get_keepalive_interval(exchange.request)
        self._waiter: asyncio.Future[None] | None = None
        self._opening = b""
        self._opening_due = 0.0
        self._woken = self._gone = self._expired = self._keepalive_due = False
        self._last_sent = self._loop.time()
        self._deadline = None if limit is None else self._last_sent + limit
        self._timer = self._loop.call_at(self._next_tick(), self._tick)

    async def begin(self, first: bytes, delay: float = 0.0) -> None:
        """Open the stream with its first message. With `delay` (in seconds), the message is sent together with the next
        one, or alone after that time."""
        self._exchange.conn.watch(self._hang_up, self._exchange.take_receipts)
        self._opening = make_envelope(first)
        if delay:
            # The timer and `wait` compare with the same time: a timer that fires slightly early would not fire again.
            self._opening_due = self._loop.time() + delay
            self._loop.call_at(self._opening_due, self._wake)
        else:
            await self.send(b"")

    async def send(self, envelopes: bytes) -> None:
        if self._opening:
            opening, self._opening = self._opening, b""
            await self._exchange.start(200, _STREAM_HEADERS, opening + envelopes)
        else:
            await self._exchange.write(envelopes)
        self._last_sent = self._loop.time()

    async def end(self, envelopes: bytes = b"") -> None:
        """Send the last messages and end the stream successfully. With receipts, return when everything is confirmed."""
        self.release()
        envelopes += make_envelope(b"{}", _END)
        if self._opening:
            await self._exchange.start(200, _STREAM_HEADERS, self._opening + envelopes, last=True)
        else:
            await self._exchange.write(envelopes, last=True)
        await self._exchange.wait_until_confirmed()

    def release(self) -> None:
        """Release the timers and the connection. Idempotent."""
        self._exchange.conn.unwatch()
        self._timer.cancel()

    @property
    def opening_size(self) -> int:
        """Return the size of the first message while it is delayed, because it is sent before the next one; otherwise 0."""
        return len(self._opening)

    def wake(self) -> None:
        """Make `wait` return, now or when it is called next."""
        self._woken = True
        self._wake()

    def check(self) -> None:
        """Raise PeerGoneError if the client has disconnected, and deadline_exceeded if its time is over."""
        if self._gone:
            raise PeerGoneError
        if self._expired:
            raise RpcError("deadline_exceeded", "context deadline exceeded")

    async def wait(self) -> None:
        """Sleep until `wake`, or until `check` has something to raise."""
        while True:
            self.check()
            if self._opening and self._loop.time() >= self._opening_due:
                await self.send(b"")
            if self._keepalive_due:
                self._keepalive_due = False
                await self.send(self._keepalive)
            if self._woken:
                self._woken = False
                return
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _next_tick(self) -> float:
        keepalive = self._last_sent + self._interval
        return keepalive if self._deadline is None else min(keepalive, self._deadline)

    def _tick(self) -> None:
        """Handle the stream's single timer: its deadline has come, or a keepalive may be due."""
        now = self._loop.time() + 0.005  # timers may fire slightly early
        if self._deadline is not None and now >= self._deadline:
            self._expired = True
            self._wake()
            return
        if now >= self._last_sent + self._interval:
            self._keepalive_due = True
            self._last_sent = now
            self._wake()
        self._timer = self._loop.call_at(self._next_tick(), self._tick)

    def _hang_up(self) -> None:
        self._gone = True
        self._wake()


def _get_keepalive_interval(request: Request) -> float:
    header = request.headers.get("keepalive-ping-interval", "")
    if header.isascii() and header.isdigit() and int(header[:9]) > 0 and len(header) < 10:
        return float(header)
    return DEFAULT_KEEPALIVE
