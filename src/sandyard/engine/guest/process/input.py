"""Input from a client to a process: its stdin, or its terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque

from sandyard.engine.guest.loop import Loop

QUEUE_LIMIT = 64 << 20


class InputClosedError(Exception):
    """The process no longer accepts input."""


class InputFullError(Exception):
    """The process reads too slowly: too much input is already waiting."""


class Input:
    """Owns the write end of a pipe, or the master of a terminal. Data is written in order, as fast as the process reads
    it."""

    __slots__ = ("_loop", "_queue", "_queued", "fd")

    def __init__(self, loop: Loop, fd: int) -> None:
        os.set_blocking(fd, False)
        self._loop = loop
        self.fd = fd
        self._queue: deque[tuple[memoryview, asyncio.Future[None]]] = deque()
        self._queued = 0

    @property
    def closed(self) -> bool:
        return self.fd < 0

    async def write(self, data: bytes) -> None:
        """Write data and return when the kernel has accepted all of it. If this call is cancelled, the data is still written.
        Raises InputClosedError or InputFullError."""
        if self.closed:
            raise InputClosedError
        view = memoryview(data)
        if not self._queue:
            view = view[self._write(view) :]
        if not view:
            return
        if self._queued + len(view) > QUEUE_LIMIT:
            raise InputFullError
        done: asyncio.Future[None] = self._loop.create_future()
        if not self._queue:
            self._loop.add_writer(self.fd, self._flush)
        self._queue.append((view, done))
        self._queued += len(view)
        await done

    def close(self) -> None:
        """End the input and drop what is still waiting. Idempotent."""
        if self.closed:
            return
        self._loop.remove_writer(self.fd)
        os.close(self.fd)
        self.fd = -1
        for _, done in self._queue:
            if not done.done():
                done.set_exception(InputClosedError())
                done.exception()  # prevents a warning if nobody awaits it
        self._queue.clear()

    def _write(self, view: memoryview) -> int:
        try:
            return os.write(self.fd, view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise InputClosedError from error

    def _flush(self) -> None:
        while self._queue:
            view, done = self._queue[0]
            try:
                count = self._write(view)
            except InputClosedError:
                self.close()
                return
            self._queued -= count
            if count < len(view):
                self._queue[0] = (view[count:], done)
                if not count:
                    return
                continue
            self._queue.popleft()
            with contextlib.suppress(asyncio.InvalidStateError):
                done.set_result(None)
        self._loop.remove_writer(self.fd)
