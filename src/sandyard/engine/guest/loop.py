"""The agent's event loop: only what coroutines, timers and non-blocking descriptors need, in one epoll.

asyncio's own loop would work, but its selector objects, handles and contexts are most of the work of running a short
command (a registration costs ten times as much), and merely creating it makes a megabyte of a forked agent's memory
private. Tasks, futures, `asyncio.timeout`, `asyncio.Event` and `asyncio.sleep` are asyncio's and work as usual.
Callbacks run in no particular context: nothing here uses context variables. There are no threads, so nothing is
thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import os
import select
import time
import traceback
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Callback = Callable[..., object]
_T = TypeVar("_T")
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
_LOG_FD = 2  # standard error, which the driver connects to its log
_REPORT_LIMIT = 4000  # in bytes: a writable pipe is guaranteed to accept them
_MANY_TIMERS = 256  # number of timers above which cancelled ones are removed early


class Timer:
    """A scheduled call."""

    __slots__ = ("_args", "_callback")

    def __init__(self, callback: Callback, args: tuple[Any, ...]) -> None:
        self._callback: Callback | None = callback
        self._args = args

    def cancel(self) -> None:
        """Cancel the call. Idempotent; does nothing if it has been made."""
        self._callback = None
        self._args = ()

    def cancelled(self) -> bool:
        return self._callback is None

    def run(self) -> None:
        callback = self._callback
        if callback is None:
            return
        try:
            callback(*self._args)
        except Exception:
            # A failing callback must not end the agent.
            report_error()


class Loop:
    """An event loop for one thread. A descriptor has at most one callback for reading and one for writing; remove both
    before closing it, because its number may be reused."""

    def __init__(self, max_wait_s: float | None = None) -> None:
        """`max_wait_s`: look for events with a new epoll at least this often, for a kernel that can lose events (gVisor)."""
        self._max_wait_s = -1.0 if max_wait_s is None else max_wait_s
        self._renewed_at = time.monotonic()
        # Untyped, because it has only what asyncio uses of a loop, not all that the base class declares.
        self._for_asyncio: Any = self
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._soon: deque[Timer] = deque()
        self.scheduled: list[tuple[float, int, Timer]] = []  # a heap: time, sequence number, timer
        self._count = 0
        self._clean_up_at = _MANY_TIMERS

    # descriptors -----------------------------------------------------------------------------------------------------

    def add_reader(self, fd: int, callback: Callback) -> None:
        """Call `callback` whenever `fd` is readable or its other end is closed. Replaces an existing callback."""
        if fd in self._readers:
            pass
        elif fd in self._writers:
            self._epoll.modify(fd, _READ | _WRITE)
        else:
            self._epoll.register(fd, _READ)
        self._readers[fd] = callback

    def remove_reader(self, fd: int) -> bool:
        """Remove the callback. Idempotent."""
        if self._readers.pop(fd, None) is None:
            return False
        if fd in self._writers:
            self._epoll.modify(fd, _WRITE)
        else:
            self._epoll.unregister(fd)
        return True

    def add_writer(self, fd: int, callback: Callback) -> None:
        """Call `callback` whenever `fd` is writable or its other end is closed. Replaces an existing callback."""
        if fd in self._writers:
            pass
        elif fd in self._readers:
            self._epoll.modify(fd, _READ | _WRITE)
        else:
            self._epoll.register(fd, _WRITE)
        self._writers[fd] = callback

    def remove_writer(self, fd: int) -> bool:
        """Remove the callback. Idempotent."""
        if self._writers.pop(fd, None) is None:
            return False
        if fd in self._readers:
            self._epoll.modify(fd, _READ)
        else:
            self._epoll.unregister(fd)
        return True

    # calls -----------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return time.monotonic()

    def call_soon(self, callback: Callback, *args: Any, context: object = None) -> Timer:
        timer = Timer(callback, args)
        self._soon.append(timer)
        return timer

    def call_later(self, delay: float, callback: Callback, *args: Any, context: object = None) -> Timer:
        return self.call_at(time.monotonic() + delay, callback, *args)

    def call_at(self, when: float, callback: Callback, *args: Any, context: object = None) -> Timer:
        timer = Timer(callback, args)
        self._count += 1
        heapq.heappush(self.scheduled, (when, self._count, timer))
        return timer

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self._for_asyncio)

    def create_task(self, coro: Coroutine[Any, Any, _T], **_options: Any) -> asyncio.Task[_T]:
        return asyncio.Task(coro, loop=self._for_asyncio)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        report_error(f"{context.get('message')}: {context.get('exception')!r}\n")

    # running ---------------------------------------------------------------------------------------------------------

    def run(self, main: Coroutine[Any, Any, _T]) -> _T:
        """Run until `main` is done."""
        events._set_running_loop(self._for_asyncio)
        try:
            task = self.create_task(main)
            while not task.done():
                self._run_once()
            return task.result()
        finally:
            events._set_running_loop(None)

    def close(self) -> None:
        self._epoll.close()

    def _run_once(self) -> None:
        """Wait for events and run all pending callbacks once."""
        later, soon = self.scheduled, self._soon
        while later and later[0][2].cancelled():
            heapq.heappop(later)
        if len(later) > self._clean_up_at:
            later[:] = [entry for entry in later if not entry[2].cancelled()]
            heapq.heapify(later)
            self._clean_up_at = max(_MANY_TIMERS, 2 * len(later))
        wait = self._max_wait_s
        if soon:
            wait = 0.0
        elif later:
            until_timer = max(0.0, later[0][0] - time.monotonic())
            wait = until_timer if wait < 0 else min(wait, until_timer)
        for fd, happened in self._poll(wait):
            # Errors and hang-ups go to the waiting side: its next call returns the error.
            if happened & ~_WRITE:
                self._call(self._readers.get(fd))
            if happened & ~_READ:
                self._call(self._writers.get(fd))
        if later:
            now = time.monotonic()
            while later and later[0][0] <= now:
                heapq.heappop(later)[2].run()
        for _ in range(len(soon)):
            soon.popleft().run()

    def _poll(self, wait: float) -> list[tuple[int, int]]:
        """Wait for events and return them. Then replace an epoll that reports a descriptor without a callback, or that is old."""
        ready = self._epoll.poll(wait, 64)
        is_old = 0 <= self._max_wait_s <= time.monotonic() - self._renewed_at
        if is_old or (ready and ready[0][0] not in self._readers and ready[0][0] not in self._writers):
            self._renew_epoll()
        return ready

    def _renew_epoll(self) -> None:
        """Register all descriptors in a new epoll, which reports what is ready now. After a restore, an epoll of gVisor can report closed
        descriptors for ever, and others never again."""
        self._renewed_at = time.monotonic()
        old, self._epoll = self._epoll, select.epoll()
        for fd in self._readers.keys() | self._writers.keys():
            self._epoll.register(fd, (_READ if fd in self._readers else 0) | (_WRITE if fd in self._writers else 0))
        old.close()

    def _call(self, callback: Callback | None) -> None:
        if callback is None:
            return
        try:
            callback()
        except Exception:
            report_error()


def report_error(message: str = "") -> None:
    """Write an error of the agent itself to its log: the message, or the traceback of the exception being handled. Never
    blocks: if the log accepts nothing, the error is dropped."""
    if message:
        text = message.encode("utf-8", "replace")[:_REPORT_LIMIT]
    else:
        text = traceback.format_exc().encode("utf-8", "replace")[-_REPORT_LIMIT:]
    with contextlib.suppress(OSError):
        if select.select([], [_LOG_FD], [], 0)[1]:
            os.write(_LOG_FD, text)
