"""Requests of sandboxes to public names: each is asked for by name, and none comes faster than its sandbox may ask."""

from __future__ import annotations

import pytest

from sandyard.engine.e2b.dataplane import hairpin
from sandyard.engine.e2b.dataplane.hairpin import BURST, PATIENCE_SECONDS, RATE, Pace


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def time(self) -> float:
        return self.now


async def test_a_sandbox_that_asks_without_end_waits_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pauses = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(hairpin, "now", clock.time)
    monkeypatch.setattr(hairpin.asyncio, "sleep", sleep)
    pace = Pace()
    assert all([await pace.wait("greedy") for _ in range(BURST)])
    assert pauses == [], "a page with much on it is nothing unusual"
    most = int(PATIENCE_SECONDS * RATE)
    answers = [await pace.wait("greedy") for _ in range(most + 100)]
    assert abs(answers.count(True) - most) <= 2
    assert max(pauses) <= PATIENCE_SECONDS
    assert not answers[-1]
    assert await pace.wait("another")
    clock.now += PATIENCE_SECONDS
    assert await pace.wait("greedy"), "and goes on later"
