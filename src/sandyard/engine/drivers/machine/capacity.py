"""Check whether the machine has memory for one more sandbox, before anything is created."""

from __future__ import annotations

import time
from pathlib import Path

from sandyard.engine.drivers.room import MEMINFO, read_memory
from sandyard.kit.errors import FullError

_CACHE_SECONDS = 0.25  # so that a burst of creates reads the value once
_MIN_RESERVE = 256 << 20


class Memory:
    """The machine's available memory. Limits of sandboxes are maximums and may be overcommitted; what counts is the
    memory that is actually available."""

    def __init__(self, meminfo: Path = MEMINFO) -> None:
        self._meminfo = meminfo
        self._read_at = float("-inf")
        self._total = self._available = 0

    @property
    def reserve(self) -> int:
        return max(_MIN_RESERVE, self._total // 50)

    def check(self) -> None:
        """Raise FullError if the machine's free memory is down to the reserve."""
        now = time.monotonic()
        if now - self._read_at > _CACHE_SECONDS:
            self._total, self._available = read_memory(self._meminfo)
            self._read_at = now
        if self._available < self.reserve:
            raise FullError(
                f"The machine is full (memory): {self._available >> 20} MiB of {self._total >> 20} MiB are left. Kill or pause a sandbox."
            )
