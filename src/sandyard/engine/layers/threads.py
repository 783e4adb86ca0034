"""Threads for calls to a layer store, which may never return: a bucket that does not answer, or a network file system."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar, cast

from sandyard.kit.errors import UnreachableError

T = TypeVar("T")

CALL_SECONDS = 120.0
"""How long a call may take, if it does not transfer a large file."""
SLOWEST_BYTES_PER_SECOND = 64 * 1024
"""Large files may take as long as they need at this rate, in addition."""
MAX_CALLS = 64
"""How many calls may be in progress. It also limits the threads that hang."""


class StoreThreads:
    """Runs each call in a thread of its own, not in those of the event loop, which a store that hangs would use up.

    If a call is cancelled or takes too long, its thread is left behind: it must not keep the engine from working or stopping."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._slots = asyncio.Semaphore(MAX_CALLS)

    async def run(self, work: Callable[[], T], *, size: int = 0) -> T:
        """Return the result of `work`, which transfers `size` bytes. Raises UnreachableError if it takes too long."""
        seconds = CALL_SECONDS + size / SLOWEST_BYTES_PER_SECOND
        try:
            async with asyncio.timeout(seconds):
                await self._slots.acquire()
                return await self._start(work)
        except TimeoutError:
            raise UnreachableError(
                f"The layer store {self._location} does not answer: a request took more than {seconds:.0f} seconds."
            ) from None

    def _start(self, work: Callable[[], T]) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def deliver(result: T | None, error: Exception | None) -> None:
            self._slots.release()
            if done.done():
                return
            if error is not None:
                done.set_exception(error)
            else:
                done.set_result(cast("T", result))

        def run() -> None:
            result, failure = None, None
            try:
                result = work()
            except Exception as error:  # raised in the loop's thread
                failure = error
            with contextlib.suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(deliver, result, failure)

        threading.Thread(target=run, name="layer-store", daemon=True).start()
        return done
