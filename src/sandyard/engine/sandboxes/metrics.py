"""Resource usage samples, stored in a compact ring buffer per sandbox."""

from __future__ import annotations

import struct

from sandyard.engine.contract import Stats
from sandyard.engine.sandboxes.model import Metric

_SAMPLE = struct.Struct("<dfHIIIII")  # time, cpu %, cores, then sizes in KiB: 34 bytes instead of an object of 300
_MAX_KIB = 0xFFFFFFFF


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

    def get_last(self) -> Metric | None:
        return self._read_sample(len(self) - 1) if self._bytes else None

    def _read_sample(self, index: int) -> Metric:
        offset = (self._start + index * _SAMPLE.size) % len(self._bytes)
        at, used, cores, *sizes = _SAMPLE.unpack_from(self._bytes, offset)
        mem_used, mem_total, mem_cache, disk_used, disk_total = (size << 10 for size in sizes)
        return Metric(at, cores, round(used, 2), mem_used, mem_total, mem_cache, disk_used, disk_total)
