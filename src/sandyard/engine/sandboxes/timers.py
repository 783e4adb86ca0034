"""Timers for sandboxes: one heap, one task."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from sandyard.kit.clock import Clock

MAX_SLEEP_S = (
    10.0  # check again after this, because the machine's clock may be changed or the machine may have been suspended
)


class Timers:
    """Calls `due(sandbox_id)` in the event loop, once per `set`, when the time has come."""

    def __init__(self, clock: Clock, due: Callable[[str], None]) -> None:
        self._clock = clock
        self._due = due
        self._when: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._sleep: asyncio.Task[None] | None = None

    def set(self, sandbox_id: str, when: float) -> None:
        """Set the timer; replaces the previous one."""
        if self._when.get(sandbox_id) == when:
            return
        self._when[sandbox_id] = when
        earliest = not self._heap or when < self._heap[0][0]
        heapq.heappush(self._heap, (when, sandbox_id))
        if len(self._heap) > 4 * len(self._when) + 64:  # mostly replaced times, from clients that refresh often
            self._heap = [(moment, key) for key, moment in self._when.items()]
            heapq.heapify(self._heap)
        if earliest and self._sleep is not None:
            self._sleep.cancel()

    def drop(self, sandbox_id: str) -> None:
        self._when.pop(sandbox_id, None)

    async def run(self) -> None:
        while True:
            self._fire()
            delay = MAX_SLEEP_S if not self._heap else self._heap[0][0] - self._clock.now()
            self._sleep = asyncio.ensure_future(self._clock.sleep(min(MAX_SLEEP_S, max(0.0, delay))))
            try:
                await asyncio.wait({self._sleep})
            finally:
                self._sleep.cancel()
                self._sleep = None

    def _fire(self) -> None:
        now = self._clock.now()
        while self._heap:
            when, sandbox_id = self._heap[0]
            if self._when.get(sandbox_id) != when:
                heapq.heappop(self._heap)
            elif when > now:
                return
            else:
                heapq.heappop(self._heap)
                del self._when[sandbox_id]
                self._due(sandbox_id)
