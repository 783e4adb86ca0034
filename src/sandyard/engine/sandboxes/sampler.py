"""Sample the resource usage of running sandboxes, and log when processes were killed for lack of memory."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from sandyard.engine.contract import Stats
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.logs import SandboxLogs
from sandyard.engine.sandboxes.metrics import Series
from sandyard.engine.sandboxes.model import LogLevel
from sandyard.engine.sandboxes.registry import Entry
from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

EARLY_DELAY_S = 0.25  # from the creation of a sandbox to its first sample


class Sampler:
    """Samples the running sandboxes in one task, one at a time and spread over the interval, so that it never blocks
    the event loop."""

    def __init__(
        self,
        calls: DriverCalls,
        clock: Clock,
        logs: SandboxLogs,
        list_entries: Callable[[], Iterable[Entry]],
        *,
        interval_s: float,
        kept: int,
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._logs = logs
        self._list_entries = list_entries
        self._interval_s = interval_s
        self._kept = kept
        self._new_entries: deque[Entry] = deque()
        self._woken = asyncio.Event()

    def schedule_sample(self, entry: Entry) -> None:
        """Sample a new or resumed sandbox early, in the background, without delaying its first command."""
        if entry.oom_kills is None:
            entry.oom_kills = 0
        self._new_entries.append(entry)
        self._woken.set()

    def handle_boot(self, entry: Entry) -> None:
        """Start new measurements, because the sandbox has new processes."""
        entry.oom_kills = 0
        self.schedule_sample(entry)

    async def sample(self, entry: Entry) -> None:
        """Take a sample now. A sandbox that cannot be sampled is skipped; its watcher handles the cause."""
        if entry.removal_reason is not None or not entry.record.running:
            return
        try:
            stats = await self._calls.run("stats", entry.id, self._calls.driver.stats(entry.record.handle))
        except SandyardError as error:
            log.debug("sandbox_not_sampled", sandbox=entry.id, reason=error.message)
            return
        if entry.series is None:
            entry.series = Series(self._kept)
        now = self._clock.now()
        if now - entry.series.sampled_at >= self._interval_s / 10:  # otherwise it was just sampled by another task
            entry.series.add(stats, now)
        self._log_oom_kills(entry, stats)

    def _log_oom_kills(self, entry: Entry, stats: Stats) -> None:
        known, entry.oom_kills = entry.oom_kills, stats.oom_kills
        if known is None or stats.oom_kills <= known:  # None: an earlier engine may have logged these
            return
        count = stats.oom_kills - known
        killed = "A process was" if count == 1 else f"{count} processes were"
        event = f"{killed} killed: out of memory (the limit of the sandbox is {stats.memory_total >> 20} MB)"
        log.info("sandbox_processes_killed", sandbox=entry.id, count=count, reason="out of memory")
        try:
            self._logs.append(entry.id, LogLevel.WARN, event)
        except SandyardError as error:
            log.warning("sandbox_event_not_logged", sandbox=entry.id, reason=error.message)

    async def run(self) -> None:
        """Sample until cancelled."""
        early_task = asyncio.ensure_future(self._sample_new())
        try:
            while True:
                entries = [entry for entry in self._list_entries() if entry.record.running]
                pause = self._interval_s / (len(entries) + 1)
                for entry in entries:
                    await self.sample(entry)
                    await self._clock.sleep(pause)
                await self._clock.sleep(pause)
        finally:
            early_task.cancel()

    async def _sample_new(self) -> None:
        while True:
            await self._woken.wait()
            await self._clock.sleep(EARLY_DELAY_S)
            self._woken.clear()
            while self._new_entries:
                await self.sample(self._new_entries.popleft())
                await asyncio.sleep(0)
