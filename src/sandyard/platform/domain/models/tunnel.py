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
from sandyard.kit.pacing import turns_for
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b import GuestProgram

log = get_logger(__name__)

PROGRAM = GuestProgram.load("tunnel")
PORT = 4100
HEARTBEAT_S = 10.0
AT_ONCE = 64
BODY_LIMIT = 50 << 20
BODY_S = 60.0
"""How long the sandbox may be silent in the middle of a request's body."""
WHOLE_S = 300.0
"""How long it may take to send the whole body, which occupies memory that others need."""
ROOM_S = 15.0
"""How long a request waits for memory before it is rejected."""
HELD_SMALL = 1 << 20
"""Requests up to this size never wait for others' large ones."""
SHARES = 4
"""The sandboxes of one user together get one of this many equal shares of the memory."""
WINDOW = 256 << 10
"""Bytes of a response that may be in flight to one agent, and bytes of a request that are requested at a time."""
_CHUNK = 48 << 10
_HEADERS, _HEAD_LIMIT = 200, 96 << 10
_NUMBER = 1 << 53
_LINE, _LINE_VALUES = 1 << 20, 10 * _HEADERS
"""Limits of JSON in one line. The head of a request is the longest."""


class TunnelError(SandyardError):
    """The tunnel to the sandbox could not be opened."""

    code, status = "tunnel_failed", 502


class TunnelProtocolError(TunnelError):
    """Protocol error: the tunnel program in the sandbox sent an invalid line."""


class BodyLateError(TunnelError):
    """The sandbox did not send the rest of a request."""


class NoRoomError(TunnelError):
    """The memory for requests to models is in use by other requests of this size. Try again in a moment."""

    code, status = "no_room", 503


@dataclass(slots=True)
class Asking:
    """A complete request. Header names are in lowercase."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    room: Taken | None = None
    """The memory that the body occupies."""

    async def stream_body(self) -> AsyncIterator[bytes]:
        """Yield the body once, and drop it when it was sent."""
        yield self.body
        self.drop_body()

    def drop_body(self) -> None:
        """Drop the body and release its memory. Idempotent."""
        self.body = b""
        if self.room is not None:
            self.room.give_back()


class Answering(Protocol):
    """Sends a response: `head` once, `data` any number of times, `end`. Cancelled if the agent disconnects."""

    async def head(self, status: int, headers: Iterable[tuple[str, str]]) -> None: ...
    async def data(self, data: bytes) -> None: ...
    async def end(self) -> None: ...


Serve = Callable[[Asking, Answering], Awaitable[None]]


class Lines(Protocol):
    """What a tunnel needs of its stream."""

    def lines(self) -> AsyncIterator[str]: ...
    def say(self, line: str) -> None: ...
    async def drain(self) -> None: ...


class Room:
    """Limits the memory that all tunnels together use for requests."""

    def __init__(self, size: int) -> None:
        self._all = _Space(size)
        self._share = size // SHARES
        self._shares: WeakValueDictionary[str, _Space] = WeakValueDictionary()

    async def take(self, owner_id: str, size: int) -> Taken:
        """Wait for memory, within the user's share and in total. Raises NoRoomError after `ROOM_S`."""
        share = self._shares.get(owner_id)
        if share is None:
            share = self._shares[owner_id] = _Space(self._share)
        taken = Taken()
        try:
            async with asyncio.timeout(ROOM_S):
                await taken.add(share, size)
                if size > HELD_SMALL:
                    await taken.add(self._all, size)
        except TimeoutError:
            taken.give_back()
            raise NoRoomError from None
        except BaseException:
            taken.give_back()
            raise
        return taken


class _Space:
    """A number of bytes. Callers that need more than are free wait."""

    def __init__(self, size: int) -> None:
        self.free = size
        self._freed = asyncio.Event()

    async def take(self, size: int) -> None:
        while self.free < size:
            self._freed.clear()
            await self._freed.wait()
        self.free -= size

    def give_back(self, size: int) -> None:
        self.free += size
        self._freed.set()


class Taken:
    """Memory that is held until it is released."""

    def __init__(self) -> None:
        self._parts: list[tuple[_Space, int]] = []

    async def add(self, space: _Space, size: int) -> None:
        await space.take(size)
        self._parts.append((space, size))

    def give_back(self) -> None:
        """Release the memory. Idempotent."""
        while self._parts:
            space, size = self._parts.pop()
            space.give_back(size)


class Tunnel:
    """One connection to a sandbox, until it breaks. `ready` is called with the port at which agents reach it."""

    def __init__(
        self, stream: Lines, serve: Serve, room: Room, ready: Callable[[int], None], *, owner_id: str = ""
    ) -> None:
        """`owner_id`: of the sandbox; all tunnels of a user have one share of the memory."""
        self._stream = stream
        self._serve = serve
        self._room = room
        self._owner_id = owner_id
        self._ready = ready
        self._exchanges: dict[int, _Exchange] = {}
        self._broken = False

    async def run(self) -> None:
        """Serve until the program in the sandbox has ended. Requests in progress are cancelled.

        Raises EngineError if the connection broke, TunnelError if the sandbox can't run the tunnel, and TunnelProtocolError.
        """
        beat = asyncio.get_running_loop().create_task(self._beat())
        try:
            async for line in self._stream.lines():
                try:
                    self._hear(bounded_json.parse(line, largest=_LINE, values=_LINE_VALUES))
                except (ValueError, KeyError, TypeError):
                    raise TunnelProtocolError from None
        finally:
            self._broken = True  # from here on the sandbox decides: unanswered requests wait for the next platform
            await end_tasks(
                beat, *(exchange.task for exchange in self._exchanges.values() if exchange.task is not None)
            )

    def say(self, kind: str, number: int | None = None, **fields: Any) -> None:
        if self._broken:
            return
        frame = {"t": kind, **({} if number is None else {"id": number}), **fields}
        self._stream.say(json.dumps(frame, separators=(",", ":")))

    async def drain(self) -> None:
        """Wait until the stream can take a long line."""
        await self._stream.drain()

    def _hear(self, frame: dict[str, Any]) -> None:
        match frame["t"]:
            case "hello":
                self._ready(_bounded(frame["port"], 65535))
            case "error":
                raise TunnelError(f"The sandbox cannot run the tunnel to its model: {str(frame['text'])[:300]}")
            case "req":
                self._begin(frame)
            case "ping":
                return
            case kind:
                exchange = self._exchanges.get(_bounded(frame["id"]))
                if exchange is not None:  # otherwise it has ended, and the sandbox did not know yet
                    exchange.hear(kind, frame)

    def _begin(self, frame: dict[str, Any]) -> None:
        number, size = _bounded(frame["id"]), _bounded(frame["size"], BODY_LIMIT)
        headers = tuple((str(name).lower(), str(value)) for name, value in frame["headers"])
        asking = Asking(str(frame["method"]), str(frame["target"]), headers, b"")
        length = sum(len(name) + len(value) for name, value in headers) + len(asking.target)
        if number in self._exchanges or len(headers) > _HEADERS or length > _HEAD_LIMIT:
            raise ValueError("no such request")
        if len(self._exchanges) >= AT_ONCE:
            self.say("cut", number)
            return
        exchange = self._exchanges[number] = _Exchange(self, number, size)
        exchange.task = asyncio.get_running_loop().create_task(self._answer(exchange, asking))
        # not in `_answer`, which does not run if it is cancelled before it starts
        exchange.task.add_done_callback(lambda _: self._exchanges.pop(number, None))

    async def _answer(self, exchange: _Exchange, asking: Asking) -> None:
        try:
            asking.room = await self._room.take(self._owner_id, exchange.size)
            asking.body = await exchange.body()
            with turns_for(self._owner_id):
                await self._serve(asking, exchange)
        except asyncio.CancelledError:
            pass  # the agent disconnected, or the connection broke
        except NoRoomError as error:
            log.info("model_request_refused", owner=self._owner_id, size=exchange.size, code=error.code)
            await exchange.refuse(error)
        except BodyLateError:
            log.info("model_request_incomplete", size=exchange.size)
        except Exception as error:
            log.error("model_request_crashed", exc=error)  # noqa: TRY400
        finally:
            asking.drop_body()
            if not exchange.ended and not exchange.gone:
                self.say("cut", exchange.number)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            self.say("ping")


class _Exchange:
    def __init__(self, tunnel: Tunnel, number: int, size: int) -> None:
        self._tunnel = tunnel
        self.number = number
        self.size = size
        self.task: asyncio.Task[None] | None = None
        self.ended = self.gone = False
        self._body = bytearray()
        self._latest = 0.0
        self._come = self._wanted = 0
        self._complete = asyncio.Event()
        self._deadline: asyncio.Timeout | None = None
        self._under_way = 0
        self._taken = asyncio.Event()

    def hear(self, kind: str, frame: dict[str, Any]) -> None:
        if kind == "body":
            self._add(binascii.a2b_base64(frame["d"], strict_mode=True))
        elif kind == "ack":
            self._under_way -= _bounded(frame["n"], self._under_way)
            self._taken.set()
        elif kind == "cancel":
            self.gone = True
            if self.task is not None:
                self.task.cancel()
        else:
            raise ValueError("no such kind")

    async def body(self) -> bytes:
        if self.size:
            self._latest = asyncio.get_running_loop().time() + WHOLE_S
            self._want()
            try:
                async with asyncio.timeout(BODY_S) as self._deadline:
                    await self._complete.wait()
            except TimeoutError:
                raise BodyLateError from None
        body = bytes(self._body)
        self._body.clear()
        return body

    def _add(self, data: bytes) -> None:
        self._come += len(data)
        if self._come > self._wanted:
            raise ValueError("more than was asked for")
        self._body += data
        if data and self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(min(self._latest, asyncio.get_running_loop().time() + BODY_S))
        if self._come == self.size:
            self._complete.set()
        elif self._wanted - self._come < WINDOW // 2:
            self._want()

    def _want(self) -> None:
        more = min(WINDOW, self.size - self._wanted)
        if more > 0:
            self._wanted += more
            self._tunnel.say("want", self.number, n=more)

    async def head(self, status: int, headers: Iterable[tuple[str, str]]) -> None:
        await self._tunnel.drain()
        self._tunnel.say("head", self.number, status=status, headers=list(headers))

    async def data(self, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            piece = data[start : start + _CHUNK]
            while self._under_way > WINDOW:
                self._taken.clear()
                await self._taken.wait()
            await self._tunnel.drain()  # the sandbox may acknowledge what was not sent yet
            self._under_way += len(piece)
            self._tunnel.say("data", self.number, d=base64.b64encode(piece).decode())

    async def refuse(self, error: TunnelError) -> None:
        """Respond with an error that clients retry, in a format that clients of all providers understand."""
        said = {"type": "error", "error": {"type": "overloaded_error", "code": error.code, "message": error.message}}
        body = json.dumps(said).encode()
        await self.head(
            error.status,
            [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("retry-after", "5"),
                ("x-should-retry", "true"),
            ],
        )
        await self.data(body)
        await self.end()

    async def end(self) -> None:
        self.ended = True
        self._tunnel.say("fin", self.number)


def _bounded(value: Any, most: int = _NUMBER) -> int:
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError("not a number")
    return value
