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
    """Faults by operation, each until `heal`. An operation hits its faults before it does anything, and again when it
    is done."""

    def __init__(self) -> None:
        self._faults: dict[tuple[str, When], Fault] = {}
        self._healed = asyncio.Event()
        self._met = asyncio.Condition()
        self._meetings: dict[tuple[str, When], int] = {}

    def make_slow(self, verb: str, seconds: float, when: When = When.BEFORE) -> None:
        self._faults[verb, when] = Fault(seconds=seconds)

    def make_stuck(self, verb: str, when: When = When.BEFORE) -> None:
        """Let the operation wait until it is cancelled or healed."""
        self._faults[verb, when] = Fault(stuck=True)

    def make_fail(self, verb: str, error: Exception, when: When = When.BEFORE) -> None:
        self._faults[verb, when] = Fault(error=error)

    def heal(self) -> None:
        """End all faults; stuck operations continue."""
        self._faults.clear()
        self._healed.set()
        self._healed = asyncio.Event()

    async def wait_until_hit(self, verb: str, when: When = When.BEFORE) -> None:
        """Return when an operation has hit its fault."""
        async with self._met:
            await self._met.wait_for(lambda: self._meetings.get((verb, when), 0) > 0)

    async def hit(self, verb: str, when: When) -> None:
        fault = self._faults.get((verb, when))
        if fault is None:
            return
        healed = self._healed
        async with self._met:
            self._meetings[verb, when] = self._meetings.get((verb, when), 0) + 1
            self._met.notify_all()
        if fault.error is not None:
            raise fault.error
        if fault.stuck:
            await healed.wait()
        await asyncio.sleep(fault.seconds)
