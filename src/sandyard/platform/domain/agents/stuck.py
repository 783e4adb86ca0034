"""An agent of which nothing is heard and that does nothing, for minutes: seen, told, and dealt with as its project wants.

What it does is judged by the CPU that its whole sandbox uses: a busy server beside it counts as work. An engine that says nothing
of CPU leaves only the silence, which then has to be twice as long.
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
    """Of one turn. Times are the clock's."""

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
        """It has been silent for a while, and nobody has looked for as long."""
        return self.clock.now() - max(self.since, self.looked) >= LOOK_EVERY_S

    async def stuck(self, engine: SandboxEngine, engine_id: str, minutes: int) -> bool:
        """Whether it is by now. Asks the engine."""
        now, limit = self.clock.now(), minutes * 60
        self.looked = now
        try:
            usage = await engine.usage(engine_id)
        except SandyardError:
            return False  # nobody knows
        self.known = usage is not None and usage.cpu_percent is not None
        if usage is not None and usage.cpu_percent is not None and usage.cpu_percent >= BUSY_PERCENT:
            self.since = now
            return False
        return now - self.since >= limit * (1 if self.known else UNKNOWN_FACTOR)
