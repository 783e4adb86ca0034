"""Detect agents that have been silent and inactive for minutes.

Activity is measured by the CPU use of the whole sandbox, so a busy server in it counts as work. If the engine does not
report CPU use, only the silence counts, and must last twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine

BUSY_PERCENT = 1.0
LOOK_EVERY_S = 15.0
UNKNOWN_FACTOR = 2


@dataclass(slots=True)
class Watch:
    """Watch one turn. Times are those of `clock`."""

    clock: Clock
    since: float = field(init=False)
    looked: float = field(init=False, default=0.0)
    known: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self.since = self.clock.now()

    def heard(self) -> None:
        self.since = self.clock.now()

    @property
    def due(self) -> bool:
        """Whether the agent has been silent for a while, and has not been checked for as long."""
        return self.clock.now() - max(self.since, self.looked) >= LOOK_EVERY_S

    async def stuck(self, engine: SandboxEngine, engine_id: str, minutes: int) -> bool:
        """Return whether the agent is stuck by now. Asks the engine."""
        now, limit = self.clock.now(), minutes * 60
        self.looked = now
        try:
            usage = await engine.get_usage(engine_id)
        except SandyardError:
            return False  # unknown
        self.known = usage is not None and usage.cpu_percent is not None
        if usage is not None and usage.cpu_percent is not None and usage.cpu_percent >= BUSY_PERCENT:
            self.since = now
            return False
        return now - self.since >= limit * (1 if self.known else UNKNOWN_FACTOR)
