"""Simulated faults for tests."""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass


class When(enum.StrEnum):
    BEFORE = "before"  # nothing has happened yet
    AFTER = "after"  # everything has happened, only the result is missing


@dataclass(frozen=True, slots=True)
class Fault:
    seconds: float = 0.0
    error: Exception | None = None
    stuck: bool = False


class Faults:
    """Faults by operation, which last until `heal`. They take effect at the beginning or at the end of the operation."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, When], Fault] = {}
        self._healed = asyncio.Event()
        self._hit = asyncio.Condition()
        self._hit_counts: dict[tuple[str, When], int] = {}

    def make_slow(self, operation: str, seconds: float, when: When = When.BEFORE) -> None:
        self._faults[operation, when] = Fault(seconds=seconds)

    def make_stuck(self, operation: str, when: When = When.BEFORE) -> None:
        """Make the operation wait until it is cancelled or `heal` is called."""
        self._faults[operation, when] = Fault(stuck=True)

    def make_fail(self, operation: str, error: Exception, when: When = When.BEFORE) -> None:
        self._faults[operation, when] = Fault(error=error)

    def heal(self) -> None:
        """End all faults; stuck operations continue."""
        self._faults.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    async def wait_until_hit(self, operation: str, when: When = When.BEFORE) -> None:
        """Return when an operation has hit its fault."""
        async with self._hit:
            await self._hit.wait_for(lambda: self._hit_counts.get((operation, when), 0) > 0)

    async def hit(self, operation: str, when: When) -> None:
        """Apply the fault that is set for this point of the operation, if any."""
        fault = self._faults.get((operation, when))
        if fault is None:
            return
        healed = self._healed
        async with self._hit:
            self._hit_counts[operation, when] = self._hit_counts.get((operation, when), 0) + 1
            self._hit.notify_all()
        if fault.error is not None:
            raise fault.error
        if fault.stuck:
            await healed.wait()
        await asyncio.sleep(fault.seconds)
