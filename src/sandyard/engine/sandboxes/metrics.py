"""Resource usage samples, stored in a compact ring buffer per sandbox."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from sandyard.engine.contract import Stats
from sandyard.engine.sandboxes.model import Metric
from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger

if TYPE_CHECKING:
    from sandyard.engine.sandboxes.calls import DriverCalls
    from sandyard.engine.sandboxes.registry import Entry

log = get_logger(__name__)

_SAMPLE = struct.Struct("<dfHIIIII")  # time, cpu %, cores, then sizes in KiB: 34 bytes instead of an object of 300
_MAX_KIB = 0xFFFFFFFF
SOON_S = 0.25


class Series:
    """The newest `kept` samples of one sandbox, oldest first. 1,000 sandboxes with 720 samples each use 24 MB."""

    __slots__ = ("_bytes", "_cpu_seconds", "_kept", "_start", "sampled_at")

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._bytes = bytearray()
        self._start = 0
        self._cpu_seconds: float | None = None
        self.sampled_at = 0.0

    def __len__(self) -> int:
        return len(self._bytes) // _SAMPLE.size

    def add(self, stats: Stats, now: float) -> None:
        """Add a sample. CPU usage is measured since the previous sample; the first sample of a series has 0."""
        used = 0.0
        elapsed = now - self.sampled_at
        if self._cpu_seconds is not None and elapsed > 0:
            used = 100 * (stats.cpu_seconds - self._cpu_seconds) / (elapsed * max(1, stats.cpu_count))
        self._cpu_seconds, self.sampled_at = stats.cpu_seconds, now
        sizes = (stats.memory_used, stats.memory_total, stats.memory_cache, stats.disk_used, stats.disk_total)
        sample = _SAMPLE.pack(
            now,
            min(100.0, max(0.0, used)),
            min(0xFFFF, max(0, stats.cpu_count)),
            *(min(_MAX_KIB, max(0, size) >> 10) for size in sizes),
        )
        if len(self) < self._kept:
            self._bytes += sample
        else:
            self._bytes[self._start : self._start + _SAMPLE.size] = sample
            self._start = (self._start + _SAMPLE.size) % len(self._bytes)

    def restart(self) -> None:
        """Start a new measurement with the next sample, because the sandbox was not running in between."""
        self._cpu_seconds = None

    def list_between(self, start: float | None, end: float | None) -> list[Metric]:
        found = []
        for index in range(len(self)):
            metric = self._read_sample(index)
            if (start is None or metric.timestamp >= start) and (end is None or metric.timestamp <= end):
                found.append(metric)
        return found

    def last(self) -> Metric | None:
        return self._read_sample(len(self) - 1) if self._bytes else None

    def _read_sample(self, index: int) -> Metric:
        offset = (self._start + index * _SAMPLE.size) % len(self._bytes)
        at, used, cores, *sizes = _SAMPLE.unpack_from(self._bytes, offset)
        mem_used, mem_total, mem_cache, disk_used, disk_total = (size << 10 for size in sizes)
        return Metric(at, cores, round(used, 2), mem_used, mem_total, mem_cache, disk_used, disk_total)


class Sampler:
    """Samples the running sandboxes in one task, one at a time and spread over the interval, so that it never blocks
    the event loop."""

    def __init__(
        self, calls: DriverCalls, clock: Clock, entries: Callable[[], Iterable[Entry]], *, interval_s: float, kept: int
    ) -> None:
        self._calls = calls
        self._clock = clock
        self._entries = entries
        self._interval_s = interval_s
        self._kept = kept
        self._fresh: deque[Entry] = deque()
        self._woken = asyncio.Event()

    def sample_soon(self, entry: Entry) -> None:
        """Sample a new or resumed sandbox early, in the background, without delaying its first command."""
        self._fresh.append(entry)
        self._woken.set()

    async def sample(self, entry: Entry) -> None:
        """Take a sample now. A sandbox that cannot be sampled is skipped; its watcher handles the cause."""
        if entry.gone is not None or not entry.record.running:
            return
        try:
            stats = await self._calls.run("stats", entry.id, self._calls.driver.stats(entry.record.handle))
        except SandyardError as error:
            log.debug("sandbox_not_sampled", sandbox=entry.id, reason=error.message)
            return
        if entry.series is None:
            entry.series = Series(self._kept)
        if (
            self._clock.now() - entry.series.sampled_at >= self._interval_s / 10
        ):  # otherwise it was just sampled by another task
            entry.series.add(stats, self._clock.now())

    async def run(self) -> None:
        newcomers = asyncio.ensure_future(self._run_fresh())
        try:
            while True:
                entries = [entry for entry in self._entries() if entry.record.running]
                pause = self._interval_s / (len(entries) + 1)
                for entry in entries:
                    await self.sample(entry)
                    await self._clock.sleep(pause)
                await self._clock.sleep(pause)
        finally:
            newcomers.cancel()

    async def _run_fresh(self) -> None:
        while True:
            await self._woken.wait()
            await self._clock.sleep(SOON_S)
            self._woken.clear()
            while self._fresh:
                await self.sample(self._fresh.popleft())
                await asyncio.sleep(0)
