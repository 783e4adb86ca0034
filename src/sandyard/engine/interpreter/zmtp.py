"""ZeroMQ's wire protocol (ZMTP 3.0, without encryption), as far as a client of Jupyter kernels needs it: DEALER and SUB."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
_MAX_SHORT_FRAME = 255

Frames = list[bytes]


class Peer(asyncio.Protocol):
    """One connection to a socket of a kernel. `on_message` gets every message. Detecting that the kernel has ended is
    left to others."""

    def __init__(self, kind: str, on_message: Callable[[Frames], None]) -> None:
        self._kind = kind
        self._on_message = on_message
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._frames: Frames = []
        self._greeted = False
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def send(self, frames: Sequence[bytes]) -> None:
        """Send a message. Never blocks: what the kernel does not accept at once waits in memory."""
        assert self._transport is not None
        last = len(frames) - 1
        self._transport.write(b"".join(encode_frame(body, more=number < last) for number, body in enumerate(frames)))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(GREETING)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._greeted:
            if len(self._buffer) < len(GREETING):
                return
            del self._buffer[: len(GREETING)]
            self._greeted = True
            assert self._transport is not None
            self._transport.write(encode_frame(_make_ready_command(self._kind), flags=COMMAND))
        while self._take_frame():
            pass

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionError("the kernel closed the connection"))
            self.ready.exception()  # prevents a warning if nobody awaits it

    def _take_frame(self) -> bool:
        buffer = self._buffer
        if len(buffer) < 2:
            return False
        flags = buffer[0]
        start = 9 if flags & LONG else 2
        if len(buffer) < start:
            return False
        end = start + int.from_bytes(buffer[1:start], "big")
        if len(buffer) < end:
            return False
        body = bytes(memoryview(buffer)[start:end])
        del buffer[:end]
        if flags & COMMAND:
            self._handle_command(body)
        else:
            self._frames.append(body)
            if not flags & MORE:
                frames, self._frames = self._frames, []
                self._on_message(frames)
        return True

    def _handle_command(self, body: bytes) -> None:
        assert self._transport is not None
        if body.startswith(b"\x05READY") and not self.ready.done():
            if self._kind == "SUB":
                self._transport.write(encode_frame(b"\x01"))  # subscribe to everything
            self.ready.set_result(None)
        elif body.startswith(b"\x04PING"):
            self._transport.write(encode_frame(b"\x04PONG" + body[7:], flags=COMMAND))


def encode_frame(body: bytes, *, more: bool = False, flags: int = 0) -> bytes:
    """Return a frame with its flags and length."""
    if more:
        flags |= MORE
    if len(body) > _MAX_SHORT_FRAME:
        return bytes((flags | LONG,)) + len(body).to_bytes(8, "big") + body
    return bytes((flags, len(body))) + body


def _make_ready_command(kind: str) -> bytes:
    return b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind.encode()


async def connect(address: str | tuple[str, int], kind: str, on_message: Callable[[Frames], None]) -> Peer:
    """Connect to a socket. Raises OSError if nothing listens there. `address` is a socket's path or a host and port."""
    loop = asyncio.get_running_loop()
    peer = Peer(kind, on_message)
    if isinstance(address, str):
        await loop.create_unix_connection(lambda: peer, address)
    else:
        await loop.create_connection(lambda: peer, *address)
    try:
        await peer.ready
    except BaseException:
        with contextlib.suppress(Exception):
            peer.close()
        raise
    return peer
