"""One accepted socket: non-blocking reads, writes and sendfile as awaitables, without asyncio's transports.

The transports would copy every byte once more, and could neither pass descriptors nor read directly into a file's
buffer. A fast peer could keep a coroutine here running forever, so every loop yields to other tasks after `_FAIR_SHARE`
bytes.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import os
import socket
from collections.abc import Callable

from sandyard.engine.guest.loop import Loop

_FAIR_SHARE = 2 << 20  # bytes moved before other tasks get a turn
_READ_AHEAD = 64 << 10
_READ_MORE = 256 << 10


class PeerGoneError(Exception):
    """The peer closed the connection, or sent nothing for too long. If it happened while sending, `sent` is the number
    of bytes that the kernel had accepted."""

    def __init__(self, sent: int = 0) -> None:
        super().__init__()
        self.sent = sent


class Connection:
    """Owns a socket. Every method that waits raises PeerGoneError if the peer is gone, or after its timeout in seconds."""

    __slots__ = ("_buffer", "_expects_more", "_position", "_share", "_sock", "_watching", "fd", "loop")

    def __init__(self, loop: Loop, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.loop = loop
        self._sock = sock
        self.fd = sock.fileno()
        self._buffer = b""  # received and not yet consumed, from _position on
        self._position = 0
        self._share = 0
        self._expects_more = False
        self._watching = False

    def close(self) -> None:
        self.unwatch()
        self._sock.close()

    # reading ---------------------------------------------------------------------------------------------------------

    @property
    def buffered(self) -> int:
        return len(self._buffer) - self._position

    def take(self, count: int) -> bytes:
        """Consume up to `count` buffered bytes."""
        start = self._position
        end = min(start + count, len(self._buffer))
        data = self._buffer[start:end]
        if end == len(self._buffer):
            self._buffer, self._position = b"", 0
        else:
            self._position = end
        return data

    def take_into(self, view: memoryview) -> int:
        """Consume buffered bytes into `view`."""
        count = min(self.buffered, len(view))
        start = self._position
        view[:count] = memoryview(self._buffer)[start : start + count]
        self._position += count
        if self._position == len(self._buffer):
            self._buffer, self._position = b"", 0
        return count

    async def fill(self, timeout: float) -> bool:
        """Receive more data into the buffer. Return False at the end of the stream."""
        while True:
            try:
                data = self._sock.recv(_READ_MORE if self._expects_more else _READ_AHEAD)
            except BlockingIOError:
                await self._wait_until_ready(read=True, timeout=timeout)
                continue
            except OSError as error:
                raise PeerGoneError from error
            self._buffer = self._buffer[self._position :] + data if self.buffered else data
            self._position = 0
            self._expects_more = len(data) >= _READ_AHEAD  # more is probably coming, in large pieces
            await self._yield_fairly(len(data))
            return bool(data)

    async def take_until(self, mark: bytes, limit: int, timeout: float) -> bytes | None:
        """Consume up to and including `mark`. Return None if more than `limit` bytes arrive without it. Raises
        PeerGoneError at the end."""
        searched = 0
        while True:
            found = self._buffer.find(mark, self._position + max(0, searched - len(mark) + 1))
            if found >= 0:
                size = found + len(mark) - self._position
                return self.take(size) if size <= limit else None
            searched = self.buffered
            if searched >= limit:
                return None
            if not await self.fill(timeout):
                raise PeerGoneError

    async def receive_into(self, view: memoryview, timeout: float | None) -> int:
        """Receive into `view`, from the buffer first. Return 0 at the end of the stream."""
        if self._buffer:
            return self.take_into(view)
        while True:
            try:
                count = self._sock.recv_into(view)
            except BlockingIOError:
                await self._wait_until_ready(read=True, timeout=timeout)
                continue
            except OSError as error:
                raise PeerGoneError from error
            await self._yield_fairly(count)
            return count

    def watch(self, on_gone: Callable[[], None], on_data: Callable[[], None] | None = None) -> None:
        """Call `on_gone` when the peer disconnects, until `unwatch`. Data that it sends in the meantime is buffered, and
        `on_data` is called."""

        def readable() -> None:
            try:
                data = self._sock.recv(_READ_AHEAD)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self._buffer += data
            if on_data is not None:
                on_data()
            if not data or len(self._buffer) > _READ_AHEAD:  # do not buffer without limit
                self.unwatch()
            if not data:
                on_gone()

        self._watching = True
        self.loop.add_reader(self.fd, readable)

    def read_available(self) -> None:
        """Read into the buffer the data that the peer has already sent, even if it has disconnected since."""
        try:
            while data := self._sock.recv(_READ_AHEAD):
                self._buffer = self._buffer[self._position :] + data
                self._position = 0
        except OSError:
            pass

    def unwatch(self) -> None:
        if self._watching:
            self._watching = False
            self.loop.remove_reader(self.fd)

    # writing ---------------------------------------------------------------------------------------------------------

    async def send(self, data: bytes | memoryview) -> None:
        """Send all data; return when the kernel has accepted it."""
        size = len(data)
        sent = 0
        while True:
            try:
                sent += self._sock.send(data if not sent else memoryview(data)[sent:])
            except BlockingIOError:
                await self._wait_until_ready(read=False)
            except OSError as error:
                raise PeerGoneError(sent) from error
            if sent >= size:
                break
        await self._yield_fairly(size)

    def end_sending(self) -> None:
        """Tell the peer that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    async def send_file(self, fd: int, offset: int, count: int) -> int:
        """Send `count` bytes of a file from the page cache. Return how many were sent: fewer if the file became shorter."""
        left = count
        while left:
            try:
                sent = os.sendfile(self.fd, fd, offset, min(left, _FAIR_SHARE))
            except BlockingIOError:
                await self._wait_until_ready(read=False)
                continue
            except (BrokenPipeError, ConnectionError) as error:
                raise PeerGoneError from error
            if not sent:
                break
            offset += sent
            left -= sent
            await self._yield_fairly(sent)
        return count - left

    def send_with_fd(self, data: bytes, fd: int) -> None:
        """Send a short message with a descriptor attached (SCM_RIGHTS). Only works on a unix socket."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        try:
            sent = self._sock.sendmsg([data], rights)
        except OSError as error:
            raise PeerGoneError from error
        if sent != len(data):
            raise PeerGoneError

    @property
    def passes_fds(self) -> bool:
        """Whether `send_with_fd` works."""
        return self._sock.family == socket.AF_UNIX

    # waiting ---------------------------------------------------------------------------------------------------------

    async def _wait_until_ready(self, *, read: bool, timeout: float | None = None) -> None:
        loop = self.loop
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        def expire() -> None:
            if not future.done():
                future.set_exception(PeerGoneError())

        timer = loop.call_later(timeout, expire) if timeout is not None else None
        if read:
            loop.add_reader(self.fd, wake)
        else:
            loop.add_writer(self.fd, wake)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            if read:
                loop.remove_reader(self.fd)
            else:
                loop.remove_writer(self.fd)

    async def _yield_fairly(self, moved: int) -> None:
        self._share += moved
        if self._share >= _FAIR_SHARE:
            self._share = 0
            await asyncio.sleep(0)
