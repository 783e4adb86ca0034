"""Timers for sandboxes: one heap, one task."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable

from sandyard.kit.clock import Clock

MAX_SLEEP_S = 10.0
"""Timers are checked at least this often, because the machine's clock may be changed or the machine suspended."""


class Timers:
    """Calls `on_due(sandbox_id)` in the event loop, once per `set`, when the time has come."""

    def __init__(self, clock: Clock, on_due: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_due = on_due
        self._times: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._sleep: asyncio.Task[None] | None = None

    def set(self, sandbox_id: str, when: float) -> None:
        """Set the timer; replaces the previous one."""
        if self._times.get(sandbox_id) == when:
            return
        self._times[sandbox_id] = when
        earliest = not self._heap or when < self._heap[0][0]
        heapq.heappush(self._heap, (when, sandbox_id))
        if len(self._heap) > 4 * len(self._times) + 64:  # mostly replaced times, from clients that refresh often
            self._heap = [(moment, key) for key, moment in self._times.items()]
            heapq.heapify(self._heap)
        if earliest and self._sleep is not None:
            self._sleep.cancel()

    def cancel(self, sandbox_id: str) -> None:
        self._times.pop(sandbox_id, None)

    async def run(self) -> None:
        while True:
            self._fire_due()
            delay = MAX_SLEEP_S if not self._heap else self._heap[0][0] - self._clock.now()
            self._sleep = asyncio.ensure_future(self._clock.sleep(min(MAX_SLEEP_S, max(0.0, delay))))
            try:
                await asyncio.wait({self._sleep})
            finally:
                self._sleep.cancel()
                self._sleep = None

    def __len__(self) -> int:
        """The number of times in memory, including those that were replaced."""
        return len(self._heap)

    def _fire_due(self) -> None:
        now = self._clock.now()
        while self._heap:
            when, sandbox_id = self._heap[0]
            if self._times.get(sandbox_id) != when:
                heapq.heappop(self._heap)
            elif when > now:
                return
            else:
                heapq.heappop(self._heap)
                del self._times[sandbox_id]
                self._on_due(sandbox_id)
