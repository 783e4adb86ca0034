"""One HTTP/1.1 client connection into a sandbox, for one exchange at a time.

Bodies are forwarded as they arrive, never buffered: a slow reader slows the sender down through `pause_reading`.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from sandyard.engine.e2b.dataplane.connection import open_connection
from sandyard.engine.e2b.dataplane.reply import BadReplyError, BrokenUpstreamError, Head, Reply, UpstreamError
from sandyard.kit.pacing import PacedInput
from sandyard.kit.server import SLICE_BYTES

READ_AHEAD = 256 * 1024
"""How much of a body may wait for its reader before the sandbox is paused."""


class Upstream(asyncio.Protocol):
    """Call `open` to connect, `begin` to start an exchange, then `read_head` once, `read_body` until `complete`, and `finish` at
    the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transport: asyncio.Transport | None = None
        self._paced_input: PacedInput | None = None
        self._reply: Reply | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._write_paused = False
        self._read_paused = False
        self._failure: UpstreamError | None = None
        self._lost = False
        self._fresh = True
        self._received_data = False
        self.idle_since = 0.0

    @classmethod
    async def open(cls, sock: socket.socket, server_name: str | None = None) -> Upstream:
        """Take over a connected socket, as `open_connection` does."""
        loop = asyncio.get_running_loop()
        return await open_connection(lambda: cls(loop), sock, server_name)

    # the exchange

    def begin(self, method: str, request: bytes) -> None:
        """Send a request's head, with the part of its body that is already available."""
        assert self._reply is None
        self._reply = Reply(method)
        self._received_data = False
        self.write(request)

    def write(self, data: bytes) -> None:
        """Send more of the request's body. Data after the end is dropped: `read_body` raises the reason."""
        if not self._lost and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_through(self) -> None:
        """Make each write a system call until this exchange is finished."""
        if self._transport is not None:
            self._transport.set_write_buffer_limits(high=0)

    async def drain(self) -> None:
        """Wait until the sandbox has accepted most of what was written."""
        while self._write_paused and not self._lost:
            self._writer = self._loop.create_future()
            await self._writer

    async def read_head(self) -> Head:
        """Return the reply's head. Raises UpstreamError."""
        assert self._reply is not None
        while self._reply.head is None:
            await self._wait()
        return self._reply.head

    async def read_body(self) -> bytes:
        """Return the next chunk of the reply; b"" only if it is complete. Raises UpstreamError if it can never be
        completed."""
        assert self._reply is not None
        while not self._reply.waiting and not self._reply.complete:
            await self._wait()
        chunk = self._reply.take()
        if self._read_paused and self._paced_input is not None:
            self._read_paused = False
            self._paced_input.resume()
        return chunk

    @property
    def complete(self) -> bool:
        """Whether the reply is complete and was read completely."""
        return self._reply is not None and self._reply.complete and not self._reply.waiting

    def finish(self, *, sent: bool) -> bool:
        """End the exchange. Return whether the connection can be reused. `sent`: the request was sent completely."""
        reply, complete = self._reply, self.complete
        self._reply = None
        self._fresh = False
        usable = sent and complete and reply is not None and reply.keep_alive and self.usable
        if not usable:
            self.abort()
        elif self._transport is not None:
            self._transport.set_write_buffer_limits(high=READ_AHEAD)
        return usable

    def abort(self, reason: str = "The connection was closed.") -> None:
        """Close at once and drop unsent data. A reader gets BrokenUpstreamError, unless the reply is complete."""
        self._fail(BrokenUpstreamError(reason))

    @property
    def usable(self) -> bool:
        """Whether the connection is idle and, as far as is known, alive."""
        transport, paced_input = self._transport, self._paced_input
        if self._lost or self._reply is not None or transport is None or transport.is_closing():
            return False
        return paced_input is not None and not paced_input.busy

    @property
    def silent(self) -> bool:
        """Whether the connection was reused and failed before the first byte of a reply: the other end may have closed
        it while it was idle."""
        return not self._fresh and self._lost and not self._received_data

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=READ_AHEAD)
        self._paced_input = PacedInput(
            self._transport, self._parse, slice_bytes=SLICE_BYTES, wanted=lambda: not self._read_paused
        )

    def data_received(self, data: bytes) -> None:
        assert self._paced_input is not None
        if self._reply is not None and self._reply.needs_no_parser and not self._paced_input.busy:
            self._parse(data)
            if self._read_paused:
                self._paced_input.pause_reading()
        else:
            self._paced_input.receive(data)

    def _parse(self, data: bytes) -> int:
        """Parse the next data from the sandbox. Return how many parts it contained."""
        reply = self._reply
        if reply is None:
            self._fail(BadReplyError("The sandbox sent unexpected data."))
            return 0
        self._received_data = True
        before = reply.parts
        try:
            reply.feed(data)
        except BadReplyError as error:
            self._fail(error)
            return 0
        if reply.waiting > READ_AHEAD:
            self._read_paused = True
        self._wake()
        return reply.parts - before

    def eof_received(self) -> None:
        """Close completely when the server stops writing: connections are never left half open."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.resume_writing()
        if self._paced_input is not None:
            self._paced_input.end(lambda: self._end(exc))
        else:
            self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        """Handle the end of the connection, after everything received before was parsed."""
        ended = exc is None and self._failure is None and self._reply is not None and self._reply.end()
        if self._failure is None and not ended:
            self._failure = BrokenUpstreamError("The sandbox closed the connection before its reply was complete.")
        self._lost = True
        self._wake()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writer is not None and not self._writer.done():
            self._writer.set_result(None)

    # inside

    def _fail(self, failure: UpstreamError) -> None:
        if self._failure is None:
            self._failure = failure
        self._lost = True
        if self._paced_input is not None:
            self._paced_input.drop()
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    async def _wait(self) -> None:
        """Wait until something happens. Raises what ended the connection."""
        if self._failure is not None:
            raise self._failure
        self._reader = self._loop.create_future()
        try:
            await self._reader
        finally:
            self._reader = None

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
