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
from sandyard.engine.sandboxes.registry import LiveSandbox
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
        list_sandboxes: Callable[[], Iterable[LiveSandbox]],
        *,
        interval_s: float,
        kept: int,
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._logs = logs
        self._list_sandboxes = list_sandboxes
        self._interval_s = interval_s
        self._kept = kept
        self._new_sandboxes: deque[LiveSandbox] = deque()
        self._woken = asyncio.Event()

    def schedule_sample(self, sandbox: LiveSandbox) -> None:
        """Sample a new or resumed sandbox early, in the background, without delaying its first command."""
        if sandbox.oom_kills is None:
            sandbox.oom_kills = 0
        self._new_sandboxes.append(sandbox)
        self._woken.set()

    def handle_boot(self, sandbox: LiveSandbox) -> None:
        """Start new measurements, because the sandbox has new processes."""
        sandbox.oom_kills = 0
        self.schedule_sample(sandbox)

    async def sample(self, sandbox: LiveSandbox) -> None:
        """Take a sample now. A sandbox that cannot be sampled is skipped; its watcher handles the cause."""
        if sandbox.removal_reason is not None or not sandbox.record.running:
            return
        try:
            stats = await self._calls.run("stats", sandbox.id, self._calls.driver.get_stats(sandbox.record.handle))
        except SandyardError as error:
            log.debug("sandbox_not_sampled", sandbox=sandbox.id, reason=error.message)
            return
        if sandbox.series is None:
            sandbox.series = Series(self._kept)
        now = self._clock.now()
        if now - sandbox.series.sampled_at >= self._interval_s / 10:  # otherwise it was just sampled by another task
            sandbox.series.add(stats, now)
        self._log_oom_kills(sandbox, stats)

    def _log_oom_kills(self, sandbox: LiveSandbox, stats: Stats) -> None:
        known, sandbox.oom_kills = sandbox.oom_kills, stats.oom_kills
        if known is None or stats.oom_kills <= known:  # None: an earlier engine may have logged these
            return
        count = stats.oom_kills - known
        killed = "A process was" if count == 1 else f"{count} processes were"
        event = f"{killed} killed: out of memory (the limit of the sandbox is {stats.memory_total >> 20} MiB)"
        log.info("sandbox_processes_killed", sandbox=sandbox.id, count=count, reason="out of memory")
        try:
            self._logs.append(sandbox.id, LogLevel.WARN, event)
        except SandyardError as error:
            log.warning("sandbox_event_not_logged", sandbox=sandbox.id, reason=error.message)

    async def run(self) -> None:
        """Sample until cancelled."""
        early_task = asyncio.ensure_future(self._sample_new())
        try:
            while True:
                sandboxes = [sandbox for sandbox in self._list_sandboxes() if sandbox.record.running]
                pause = self._interval_s / (len(sandboxes) + 1)
                for sandbox in sandboxes:
                    await self.sample(sandbox)
                    await self._clock.sleep(pause)
                await self._clock.sleep(pause)
        finally:
            early_task.cancel()

    async def _sample_new(self) -> None:
        while True:
            await self._woken.wait()
            await self._clock.sleep(EARLY_DELAY_S)
            self._woken.clear()
            while self._new_sandboxes:
                await self.sample(self._new_sandboxes.popleft())
                await asyncio.sleep(0)
