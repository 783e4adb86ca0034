"""A limit on how often each client may try something."""

from __future__ import annotations

from collections import OrderedDict

from sandyard.kit.clock import Clock
from sandyard.kit.errors import FullError

MAX_CLIENTS = 10_000
"""Maximum number of clients to remember. The least recent ones are forgotten first."""


class RateLimit:
    """Allows each client `burst` attempts at once and one more every `interval_s`."""

    def __init__(self, clock: Clock, *, burst: int, interval_s: float) -> None:
        self._clock = clock
        self._burst = burst
        self._interval_s = interval_s
        self._clients: OrderedDict[str, tuple[float, float]] = OrderedDict()  # attempts left, and when that was

    def take(self, client: str) -> None:
        """Count an attempt. Raises FullError if the client has none left."""
        now = self._clock.now()
        left, since = self._clients.pop(client, (float(self._burst), now))
        left = min(self._burst, left + max(0.0, now - since) / self._interval_s)
        self._clients[client] = (max(0.0, left - 1) if left >= 1 else left, now)
        if len(self._clients) > MAX_CLIENTS:
            self._clients.popitem(last=False)
        if left < 1:
            raise FullError(f"Too many attempts. Try again in {(1 - left) * self._interval_s + 0.5:.0f} s.")
