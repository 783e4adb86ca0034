"""uvicorn's WebSockets with limits, and a way to proxy a WebSocket without decoding its frames."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import monotonic
from typing import Any, cast

from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from sandyard.kit.connections import UnreadWatch
from sandyard.kit.pacing import PacedInput

RAW = "sandyard.websocket.raw"
"""Name of the scope extension, and type of the message that accepts a WebSocket instead of `websocket.accept`. Its `headers` are the
response headers except `Connection` and `Upgrade`. Afterwards `websocket.receive` and `websocket.send` carry `bytes` as they are on the
wire, regardless of frame boundaries. Return to close the connection."""
ABORT = "sandyard.websocket.abort"
"""Name of the scope extension: a function that ends the connection immediately, without the data that the client has not read yet."""
SLICE_BYTES = 1024
"""How many received bytes are parsed at once, at most: 170 empty frames."""
FRAMES_PER_SECOND, FRAMES_AT_ONCE = 1000, 10_000
"""How many frames of a raw WebSocket are tracked."""
CLIENT_GONE_SECONDS = 120
"""After how many seconds without any acknowledgement a client is considered gone."""
_PING, _PONG = b"\x89\x00", 0x8A
_CONTROL = 0x08
"""Bit that the opcodes of ping, pong and close have in common."""


class FrameTracker:
    """Tracks frame boundaries in a stream without decoding the frames. Gives up on a stream with very many frames, which would cost too
    much: `lost` is then true permanently."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._head = b""  # incomplete header of a frame
        self._remaining = 0  # bytes of the current frame
        self._is_message = False  # whether the current frame belongs to a message
        self._allowed, self._since = float(FRAMES_AT_ONCE), clock()
        self.lost = False

    @property
    def between_frames(self) -> bool:
        """Whether the last frame is complete and no other has started."""
        return not self.lost and not self._remaining and not self._head

    def feed(self, data: bytes) -> bool:
        """Process data. Return whether it may contain messages, and not only control frames such as pings and pongs."""
        if self.lost:
            return True
        self._refill()
        has_message = False
        position = 0
        if self._head:
            data, self._head = self._head + data, b""
        while position < len(data):
            if self._remaining:
                taken = min(self._remaining, len(data) - position)
                self._remaining -= taken
                position += taken
                has_message = has_message or self._is_message
                continue
            size = self._read_header(data, position)
            if not size:
                self._head = data[position:]
                break
            position += size
            has_message = has_message or self._is_message
            self._allowed -= 1
            if self._allowed < 0:
                self.lost = True
                return True
        return has_message

    def _refill(self) -> None:
        now = self._clock()
        self._allowed = min(FRAMES_AT_ONCE, self._allowed + (now - self._since) * FRAMES_PER_SECOND)
        self._since = now

    def _read_header(self, data: bytes, start: int) -> int:
        """Read a frame's header. Return its size, or 0 if it is incomplete."""
        if len(data) < start + 2:
            return 0
        length = data[start + 1] & 0x7F
        extended = 2 if length == 126 else 8 if length == 127 else 0
        size = 2 + extended + (4 if data[start + 1] & 0x80 else 0)
        if len(data) < start + size:
            return 0
        self._remaining = int.from_bytes(data[start + 2 : start + 2 + extended]) if extended else length
        self._is_message = not data[start] & _CONTROL
        return size


class BoundedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket with limits: a client that sends many tiny frames waits for others (`pacing`), and one that does not read is
    disconnected."""

    _paced_input: PacedInput
    _unread: UnreadWatch
    _sent: FrameTracker | None = None  # frames sent on a raw connection
    _late_pong = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._paced_input = PacedInput(
            self.transport, self._parse, slice_bytes=SLICE_BYTES, wanted=lambda: not self.read_paused
        )
        self._unread = UnreadWatch(self.transport, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unread.stop()
        self._paced_input.drop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._sent is None:
            self._paced_input.receive(data)
        else:
            self.queue.put_nowait({"type": "websocket.receive", "bytes": data})
            self.read_paused = True
            self._paced_input.pause_reading()

    def _parse(self, data: bytes) -> int:
        """Parse the next piece of received data. Return how many frames it contained."""
        self.conn.receive_data(data)
        if self.conn.parser_exc is not None:
            self._paced_input.drop()
            self.handle_parser_exception()
            return 0
        frames = len(self.conn.events)
        self.handle_events()
        if self.transport.is_closing():
            self._paced_input.drop()
        return frames

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions = cast(dict[str, Any], self.scope["extensions"])
            extensions |= {RAW: {}, ABORT: self.transport.abort}

    def handle_ping(self) -> None:
        """Answer a ping. While the client is behind on reading, only its last ping is answered, once it has caught up."""
        output = self.conn.data_to_send()
        if self.writable.is_set() or not output or output[-1][:1] != bytes((_PONG,)):
            self.transport.write(b"".join(output))
        else:
            self._late_pong = output[-1]

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._late_pong and not self.close_sent:
            self.transport.write(self._late_pong)
        self._late_pong = b""

    async def receive(self) -> Any:
        message = await self.queue.get()
        if self.read_paused and self.queue.empty():
            self.read_paused = False
            self._paced_input.resume()
        return message

    async def send(self, message: Any) -> None:
        if self._sent is not None:
            await self._send_raw(message)
        elif message["type"] == RAW:
            self._accept_raw(message["headers"])
        else:
            await super().send(message)
            if self.close_sent:
                self._paced_input.resume()  # to receive the client's close frame

    def _accept_raw(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        if self.disconnected or self.transport.is_closing():
            raise ClientDisconnected
        lines = [b"HTTP/1.1 101 Switching Protocols", b"Connection: Upgrade", b"Upgrade: websocket"]
        lines += [b"%b: %b" % pair for pair in headers]
        self.handshake_complete = True
        self._sent = FrameTracker()
        self._paced_input.drop()
        self._paced_input.resume()
        with suppress(OSError, AttributeError):
            connection: socket.socket = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, CLIENT_GONE_SECONDS * 1000)
        self.transport.write(b"\r\n".join((*lines, b"", b"")))
        self.start_keepalive()

    async def _send_raw(self, message: Any) -> None:
        await self.writable.wait()
        if self.disconnected or self.transport.is_closing():
            raise ClientDisconnected
        if message["type"] == "websocket.send":
            assert self._sent is not None
            self._sent.feed(message["bytes"])
            self.transport.write(message["bytes"])

    def send_keepalive_ping(self) -> None:
        """Send a ping. On a raw connection only between two frames, so that no proxy considers the connection idle."""
        if self._sent is None:
            super().send_keepalive_ping()
            return
        self.ping_timer = None
        if self._sent.lost or self.transport.is_closing():
            return
        if self._sent.between_frames and self.writable.is_set():
            self.transport.write(_PING)
        self.schedule_ping()

    def shutdown(self) -> None:
        if self._sent is None:
            super().shutdown()
            return
        self.stop_keepalive()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._unread.start()
