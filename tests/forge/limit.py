"""The rate limit of GitHub, according to its documentation. Tests can exhaust it."""

from __future__ import annotations

import threading
import time

PER_HOUR = 5000


class RateLimit:
    """One budget for all users. Answers with 304 cost nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._start()

    def _start(self) -> None:
        self._remaining, self._reset = PER_HOUR, time.time() + 3600

    def exhaust(self, *, reset_in_s: float = 2.0) -> None:
        """Leave no calls until the reset."""
        with self._lock:
            self._remaining, self._reset = 0, time.time() + reset_in_s

    @property
    def remaining(self) -> int:
        with self._lock:
            return self._remaining

    def take(self) -> bool:
        """Use up one call. False: no call is left."""
        with self._lock:
            if time.time() >= self._reset:
                self._start()
            if self._remaining == 0:
                return False
            self._remaining -= 1
            return True

    def give_back(self) -> None:
        with self._lock:
            self._remaining = min(PER_HOUR, self._remaining + 1)

    def headers(self) -> dict[str, str]:
        with self._lock:
            return {
                "X-RateLimit-Limit": str(PER_HOUR),
                "X-RateLimit-Remaining": str(self._remaining),
                "X-RateLimit-Used": str(PER_HOUR - self._remaining),
                "X-RateLimit-Reset": str(int(-(-self._reset // 1))),
                "X-RateLimit-Resource": "core",
                "X-GitHub-Request-Id": "0A1B:2C3D:4E5F60:718293:65B0C1D2",
            }
