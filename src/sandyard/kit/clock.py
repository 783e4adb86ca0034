"""A replaceable clock, so that tests of timeouts do not have to wait."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Return the seconds since the epoch. May jump when the machine's clock is set."""
        ...

    async def sleep(self, seconds: float) -> None: ...


def get_time(clock: Clock) -> datetime:
    """Return the time in UTC."""
    return datetime.fromtimestamp(clock.now(), UTC)


class SystemClock:
    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class ManualClock:
    """A clock for tests. Time passes only in `advance`."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def now(self) -> float:
        return self._now

    def set(self, now: float) -> None:
        """Set the time without waking anyone, as when the machine's clock is set."""
        self._now = now

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Advance the time. Wake each sleeper at its own instant and let the woken tasks run."""
        await self._settle()  # let tasks that are about to sleep do so before time passes
        target = self._now + seconds
        while self._sleepers and self._sleepers[0][0] <= target:
            self._now, _, woken = heapq.heappop(self._sleepers)
            if not woken.done():
                woken.set_result(None)
            await self._settle()
        self._now = target
        await self._settle()

    async def _settle(self) -> None:
        for _ in range(20):  # a woken sleeper may start a chain of tasks
            await asyncio.sleep(0)
