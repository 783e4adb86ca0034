"""How much of what a host sends is read: the event loop that reads it serves everybody."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

HOST_BYTES_PER_SECOND, HOST_BURST = 8 << 20, 64 << 20
"""How many bytes of a host are read. A burst of so many is read at once."""
CPU_SHARE, CPU_BURST_S = 0.1, 1.0
"""Which part of a processor what a host sends may take. A burst of so many seconds is spent at once."""


class ReadingBudget:
    """Bytes and processor time for what one host sends. It belongs to the host and not to a connection, so that a host that connects
    again gets no new one."""

    def __init__(self) -> None:
        self._bytes, self._cpu_s = float(HOST_BURST), CPU_BURST_S
        self._counted_at = time.monotonic()

    def charge(self, *, size: int = 0, cpu_s: float = 0.0) -> None:
        """Count what was received, and the time that it took."""
        now = time.monotonic()
        elapsed, self._counted_at = now - self._counted_at, now
        self._bytes = min(HOST_BURST, self._bytes + elapsed * HOST_BYTES_PER_SECOND) - size
        self._cpu_s = min(CPU_BURST_S, self._cpu_s + elapsed * CPU_SHARE) - cpu_s

    @contextlib.contextmanager
    def measure(self) -> Iterator[None]:
        """Count the processor time of this thread in the block, which must not await anything."""
        started = time.thread_time()
        try:
            yield
        finally:
            self.charge(cpu_s=time.thread_time() - started)

    def get_delay(self) -> float:
        """Return for how many seconds nothing more should be read."""
        self.charge()
        return max(0.0, -self._bytes / HOST_BYTES_PER_SECOND, -self._cpu_s / CPU_SHARE)
