"""The platform's end of the tunnel: receives agents' requests and sends responses, many at once.

The other end is `guest/tunnel.py`, which documents the lines. The sandbox is untrusted: everything it sends is limited in size, and invalid
lines end the connection.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakValueDictionary

from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.pacing import count_turns_for
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b import GuestProgram

log = get_logger(__name__)

PROGRAM = GuestProgram.load("tunnel")
PORT = 4100
HEARTBEAT_S = 10.0
MAX_REQUESTS = 64
BODY_LIMIT = 50 << 20
BODY_IDLE_S = 60.0
"""How long the sandbox may be silent in the middle of a request's body."""
BODY_TOTAL_S = 300.0
"""How long the sandbox may take to send the whole body, which occupies memory that others need."""
MEMORY_WAIT_S = 15.0
"""How long a request waits for memory before it is rejected."""
SMALL_REQUEST = 1 << 20
"""Requests up to this size never wait for others' large ones."""
MEMORY_SHARES = 4
"""The sandboxes of one user together get one of this many equal shares of the memory."""
WINDOW = 256 << 10
"""Bytes of a response that may be in flight to one agent, and bytes of a request that are requested at a time."""
_CHUNK = 48 << 10
_MAX_HEADERS, _MAX_HEAD_BYTES = 200, 96 << 10
_MAX_NUMBER = 1 << 53
_MAX_LINE_BYTES, _MAX_LINE_VALUES = 1 << 20, 10 * _MAX_HEADERS
"""Limits of JSON in one line. The head of a request is the longest."""


class TunnelError(SandyardError):
    """The tunnel to the sandbox could not be opened."""

    code, status = "tunnel_failed", 502


class TunnelProtocolError(TunnelError):
    """Protocol error: the tunnel program in the sandbox sent an invalid line."""


class BodyLateError(TunnelError):
    """The sandbox did not send the rest of a request."""


class RequestMemoryFullError(TunnelError):
    """The memory for requests to models is in use by other requests of this size. Try again in a moment."""

    code, status = "no_room", 503


@dataclass(slots=True)
class TunnelRequest:
    """A complete request. Header names are in lowercase."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    memory: MemoryReservation | None = None
    """The memory that the body occupies."""

    async def stream_body(self) -> AsyncIterator[bytes]:
        """Yield the body, and drop it when it was sent: it can be read only once."""
        yield self.body
        self.drop_body()

    def drop_body(self) -> None:
        """Drop the body and release its memory. Idempotent."""
        self.body = b""
        if self.memory is not None:
            self.memory.release()


class ResponseWriter(Protocol):
    """Sends a response: `send_head` once, `send_data` any number of times, `end`. Cancelled if the agent disconnects."""

    async def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None: ...
    async def send_data(self, data: bytes) -> None: ...
    async def end(self) -> None: ...


Serve = Callable[[TunnelRequest, ResponseWriter], Awaitable[None]]


class LineStream(Protocol):
    """The stream of lines that a tunnel uses."""

    def read_lines(self) -> AsyncIterator[str]: ...
    def send_line(self, line: str) -> None: ...
    async def drain(self) -> None: ...


class RequestMemory:
    """Limits the memory that all tunnels together use for requests."""

    def __init__(self, size: int) -> None:
        self._all = _MemoryPool(size)
        self._share = size // MEMORY_SHARES
        self._shares: WeakValueDictionary[str, _MemoryPool] = WeakValueDictionary()

    async def reserve(self, owner_id: str, size: int) -> MemoryReservation:
        """Wait for memory, within the user's share and in total. Raises RequestMemoryFullError after `MEMORY_WAIT_S`."""
        share = self._shares.get(owner_id)
        if share is None:
            share = self._shares[owner_id] = _MemoryPool(self._share)
        reservation = MemoryReservation()
        try:
            async with asyncio.timeout(MEMORY_WAIT_S):
                await reservation.add(share, size)
                if size > SMALL_REQUEST:
                    await reservation.add(self._all, size)
        except TimeoutError:
            reservation.release()
            raise RequestMemoryFullError from None
        except BaseException:
            reservation.release()
            raise
        return reservation


class _MemoryPool:
    """A number of bytes. A caller waits while fewer are free than it needs."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._freed = asyncio.Event()

    async def reserve(self, size: int) -> None:
        while self.free < size:
            self._freed.clear()
            await self._freed.wait()
        self.free -= size

    def release(self, size: int) -> None:
        self.free += size
        self._freed.set()


class MemoryReservation:
    """Memory that is held until it is released."""

    def __init__(self) -> None:
        self._parts: list[tuple[_MemoryPool, int]] = []

    async def add(self, pool: _MemoryPool, size: int) -> None:
        await pool.reserve(size)
        self._parts.append((pool, size))

    def release(self) -> None:
        """Release the memory. Idempotent."""
        while self._parts:
            pool, size = self._parts.pop()
            pool.release(size)


class Tunnel:
    """One connection to a sandbox, until it breaks."""

    def __init__(
        self,
        stream: LineStream,
        serve: Serve,
        memory: RequestMemory,
        on_ready: Callable[[int], None],
        *,
        owner_id: str = "",
    ) -> None:
        """`on_ready` is called with the port at which agents reach the tunnel. `owner_id` is the user whose sandbox it is: all
        tunnels of a user have one share of the memory."""
        self._stream = stream
        self._serve = serve
        self._memory = memory
        self._owner_id = owner_id
        self._on_ready = on_ready
        self.exchanges: dict[int, _Exchange] = {}
        self._broken = False

    async def run(self) -> None:
        """Serve until the program in the sandbox has ended. Requests in progress are cancelled.

        Raises EngineError if the connection broke, TunnelError if the sandbox can't run the tunnel, and TunnelProtocolError.
        """
        heartbeats = asyncio.get_running_loop().create_task(self._send_heartbeats())
        try:
            async for line in self._stream.read_lines():
                try:
                    self._handle_frame(bounded_json.parse(line, largest=_MAX_LINE_BYTES, values=_MAX_LINE_VALUES))
                except (ValueError, KeyError, TypeError):
                    raise TunnelProtocolError from None
        finally:
            self._broken = True  # unanswered requests wait in the sandbox for the next connection
            await end_tasks(
                heartbeats, *(exchange.task for exchange in self.exchanges.values() if exchange.task is not None)
            )

    def send_frame(self, kind: str, number: int | None = None, **fields: Any) -> None:
        if self._broken:
            return
        frame = {"t": kind, **({} if number is None else {"id": number}), **fields}
        self._stream.send_line(json.dumps(frame, separators=(",", ":")))

    async def drain(self) -> None:
        """Wait until the stream can take a long line."""
        await self._stream.drain()

    def _handle_frame(self, frame: dict[str, Any]) -> None:
        match frame["t"]:
            case "hello":
                self._on_ready(_parse_number(frame["port"], 65535))
            case "error":
                raise TunnelError(f"The sandbox cannot run the tunnel to its model: {str(frame['text'])[:300]}")
            case "req":
                self._start_exchange(frame)
            case "ping":
                return
            case kind:
                exchange = self.exchanges.get(_parse_number(frame["id"]))
                if exchange is not None:  # otherwise it has ended, and the sandbox did not know yet
                    exchange.handle_frame(kind, frame)

    def _start_exchange(self, frame: dict[str, Any]) -> None:
        number, size = _parse_number(frame["id"]), _parse_number(frame["size"], BODY_LIMIT)
        headers = tuple((str(name).lower(), str(value)) for name, value in frame["headers"])
        request = TunnelRequest(str(frame["method"]), str(frame["target"]), headers, b"")
        length = sum(len(name) + len(value) for name, value in headers) + len(request.target)
        if number in self.exchanges or len(headers) > _MAX_HEADERS or length > _MAX_HEAD_BYTES:
            raise ValueError("invalid request")
        if len(self.exchanges) >= MAX_REQUESTS:
            self.send_frame("cut", number)
            return
        exchange = self.exchanges[number] = _Exchange(self, number, size)
        exchange.task = asyncio.get_running_loop().create_task(self._serve_exchange(exchange, request))
        # not in `_serve_exchange`, which does not run if it is cancelled before it starts
        exchange.task.add_done_callback(lambda _: self.exchanges.pop(number, None))

    async def _serve_exchange(self, exchange: _Exchange, request: TunnelRequest) -> None:
        try:
            request.memory = await self._memory.reserve(self._owner_id, exchange.size)
            request.body = await exchange.read_body()
            with count_turns_for(self._owner_id):
                await self._serve(request, exchange)
        except asyncio.CancelledError:
            pass  # the agent disconnected, or the connection broke
        except RequestMemoryFullError as error:
            log.info("model_request_refused", owner=self._owner_id, size=exchange.size, code=error.code)
            await exchange.send_error(error)
        except BodyLateError:
            log.info("model_request_incomplete", size=exchange.size)
        except Exception as error:
            log.error("model_request_crashed", exc=error)  # noqa: TRY400
        finally:
            request.drop_body()
            if not exchange.ended and not exchange.cancelled:
                self.send_frame("cut", exchange.number)

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.send_frame("ping")


class _Exchange:
    """One request and its response. `number` identifies it in the tunnel."""

    def __init__(self, tunnel: Tunnel, number: int, size: int) -> None:
        self._tunnel = tunnel
        self.number = number
        self.size = size
        self.task: asyncio.Task[None] | None = None
        self.ended = self.cancelled = False
        self._body = bytearray()
        self._latest_deadline = 0.0
        self._received = self._requested = 0
        self._complete = asyncio.Event()
        self._deadline: asyncio.Timeout | None = None
        self.in_flight = 0
        self._acknowledged = asyncio.Event()

    def handle_frame(self, kind: str, frame: dict[str, Any]) -> None:
        if kind == "body":
            self._add(binascii.a2b_base64(frame["d"], strict_mode=True))
        elif kind == "ack":
            self.in_flight -= _parse_number(frame["n"], self.in_flight)
            self._acknowledged.set()
        elif kind == "cancel":
            self.cancelled = True
            if self.task is not None:
                self.task.cancel()
        else:
            raise ValueError("unknown kind of frame")

    async def read_body(self) -> bytes:
        """Request the body piece by piece and return it. Raises BodyLateError."""
        if self.size:
            self._latest_deadline = asyncio.get_running_loop().time() + BODY_TOTAL_S
            self._request_more()
            try:
                async with asyncio.timeout(BODY_IDLE_S) as self._deadline:
                    await self._complete.wait()
            except TimeoutError:
                raise BodyLateError from None
        body = bytes(self._body)
        self._body.clear()
        return body

    def _add(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._requested:
            raise ValueError("more data than was requested")
        self._body += data
        if data and self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(min(self._latest_deadline, asyncio.get_running_loop().time() + BODY_IDLE_S))
        if self._received == self.size:
            self._complete.set()
        elif self._requested - self._received < WINDOW // 2:
            self._request_more()

    def _request_more(self) -> None:
        more = min(WINDOW, self.size - self._requested)
        if more > 0:
            self._requested += more
            self._tunnel.send_frame("want", self.number, n=more)

    async def send_head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        await self._tunnel.drain()
        self._tunnel.send_frame("head", self.number, status=status, headers=list(headers))

    async def send_data(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            piece = data[start : start + _CHUNK]
            while self.in_flight > WINDOW:
                self._acknowledged.clear()
                await self._acknowledged.wait()
            await self._tunnel.drain()  # `in_flight` is no limit: the sandbox may acknowledge data before it was sent
            self.in_flight += len(piece)
            self._tunnel.send_frame("data", self.number, d=base64.b64encode(piece).decode())

    async def send_error(self, error: TunnelError) -> None:
        """Respond with an error that clients retry, in a format that clients of all providers understand."""
        document = {
            "type": "error",
            "error": {"type": "overloaded_error", "code": error.code, "message": error.message},
        }
        body = json.dumps(document).encode()
        await self.send_head(
            error.status,
            [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("retry-after", "5"),
                ("x-should-retry", "true"),
            ],
        )
        await self.send_data(body)
        await self.end()

    async def end(self) -> None:
        self.ended = True
        self._tunnel.send_frame("fin", self.number)


def _parse_number(value: Any, maximum: int = _MAX_NUMBER) -> int:
    if not isinstance(value, int) or not 0 <= value <= maximum:
        raise ValueError("not a number")
    return value
