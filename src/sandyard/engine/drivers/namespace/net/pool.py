"""A pool of resources created in advance, so that taking one is free. Lives in one event loop."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from sandyard.kit.errors import BusyError

log = logging.getLogger(__name__)

_QUIET = 0.1


class Pool:
    """Keeps `size` numbers that `make` returned ready, creating them one at a time. A taker waits if there is none."""

    def __init__(self, size: int, make: Callable[[], Awaitable[int]]) -> None:
        self._size = size
        self._make = make
        self._ready: deque[int] = deque()
        self._waiting: deque[asyncio.Future[int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._later: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._ready)

    async def take(self) -> int:
        """Return a number. Raises what `make` raised, if that is why there is none."""
        if self._ready:
            number = self._ready.popleft()
            self._fill_soon()
            return number
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        self.fill()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                self._ready.append(future.result())  # created for a taker that was cancelled at that moment
            raise

    def put(self, number: int) -> None:
        """Add one that was created elsewhere."""
        self._give(number)

    def fill(self) -> None:
        """Create what is missing, in the background."""
        if self._task is None and not self._closed and (self._waiting or len(self._ready) < self._size):
            self._task = asyncio.get_running_loop().create_task(self._run())

    def _fill_soon(self) -> None:
        """Refill now if half are gone, otherwise after a moment without takers: background work would slow them down."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        if len(self._ready) <= self._size // 2:
            self.fill()
        else:
            self._later = asyncio.get_running_loop().call_later(_QUIET, self.fill)

    async def close(self) -> list[int]:
        """Stop and return those that were ready. Waiting takers get BusyError."""
        self._closed = True
        if self._later is not None:
            self._later.cancel()
        if self._task is not None:
            # Not cancelled: what is partly created must be completed, otherwise nothing tracks it.
            with suppress(Exception):
                await self._task
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(BusyError("the engine is closing"))
        ready = list(self._ready)
        self._ready.clear()
        return ready

    async def _run(self) -> None:
        try:
            while not self._closed and (self._waiting or len(self._ready) < self._size):
                try:
                    number = await self._make()
                except Exception as error:
                    # The next taker tries again.
                    log.warning("network_pool_failed error=%s", error)
                    while self._waiting:
                        future = self._waiting.popleft()
                        if not future.done():
                            future.set_exception(error)
                    return
                self._give(number)
        finally:
            self._task = None
            if self._waiting:
                self.fill()

    def _give(self, number: int) -> None:
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(number)
                return
        self._ready.append(number)
