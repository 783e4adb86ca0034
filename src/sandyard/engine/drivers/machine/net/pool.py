"""A pool of resources created in advance, so that callers rarely wait for one. Belongs to one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sandyard.kit.errors import BusyError

log = logging.getLogger(__name__)

_REFILL_DELAY_S = 0.1


class Pool:
    """Keeps `size` resources ready, each known by the number that `make` returned. Creates one at a time. `take` waits
    if none is ready."""

    def __init__(self, size: int, make: Callable[[], Awaitable[int]]) -> None:
        self._size = size
        self._make = make
        self._ready: deque[int] = deque()
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._refill_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    async def take(self) -> int:
        """Return the number of a resource. If it could not be created, raises what `make` raised."""
        if self._ready:
            number = self._ready.popleft()
            self._schedule_fill()
            return number
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.fill()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._ready.append(future.result())  # the caller was cancelled while it was created
            raise

    def put(self, number: int) -> None:
        """Add a resource that was created elsewhere."""
        self._hand_out(number)

    def fill(self) -> None:
        """Create the missing resources in the background."""
        if self._task is None and not self._closed and (self._waiting or len(self._ready) < self._size):
            self._task = asyncio.get_running_loop().create_task(self._create_missing())

    def _schedule_fill(self) -> None:
        """Refill now if half are gone, otherwise after a moment without calls of `take`, which background
        work would slow down."""
        if self._refill_timer is not None:
            self._refill_timer.cancel()
            self._refill_timer = None
        if len(self._ready) <= self._size // 2:
            self.fill()
        else:
            self._refill_timer = asyncio.get_running_loop().call_later(_REFILL_DELAY_S, self.fill)

    async def close(self) -> list[int]:
        """Stop, and return the resources that were ready. Waiting calls of `take` raise BusyError."""
        self._closed = True
        if self._refill_timer is not None:
            self._refill_timer.cancel()
        if self._task is not None:
            # Not cancelled: what is partly created must be completed, otherwise nothing tracks it.
            with suppress(Exception):
                await self._task
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(BusyError("The engine is stopping."))
        ready = list(self._ready)
        self._ready.clear()
        return ready

    async def _create_missing(self) -> None:
        try:
            while not self._closed and (self._waiting or len(self._ready) < self._size):
                try:
                    number = await self._make()
                except Exception as error:
                    # The next call of `take` tries again.
                    log.warning("network_pool_failed error=%s", error)
                    while self._waiting:
                        future = self._waiting.popleft()
                        if not future.done():
                            future.set_exception(error)
                    return
                self._hand_out(number)
        finally:
            self._task = None
            if self._waiting:
                self.fill()

    def _hand_out(self, number: int) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(number)
                return
        self._ready.append(number)
