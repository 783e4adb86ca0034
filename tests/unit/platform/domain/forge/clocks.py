"""A clock on which waiting takes no time and is recorded."""

from __future__ import annotations

import asyncio


class HurriedClock:
    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start
        self.waits: list[float] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self._now += max(0.0, seconds)
        await asyncio.sleep(0)

    def pass_(self, seconds: float) -> None:
        self._now += seconds
