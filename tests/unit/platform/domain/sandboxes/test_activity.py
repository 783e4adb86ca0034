"""Activity of sandboxes."""

from __future__ import annotations

from datetime import UTC, datetime

from sandyard.kit.clock import ManualClock
from sandyard.platform.domain.sandboxes.activity import Activity


async def test_idle_since_last_use() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    assert activity.idle_for("a") == 0, "an unknown sandbox is not idle"
    with activity.using("a"):
        await clock.advance(100)
        assert activity.idle_for("a") == 0
        with activity.using("a"):
            await clock.advance(1)
        assert activity.idle_for("a") == 0, "one of two users is left"
    await clock.advance(30)
    assert activity.idle_for("a") == 30
    activity.touch("a")
    assert activity.idle_for("a") == 0


async def test_stored_time_counts_until_next_use() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    activity.load("a", datetime.fromtimestamp(clock.now() - 500, UTC))
    assert activity.idle_for("a") == 500
    activity.touch("a")
    activity.load("a", datetime.fromtimestamp(clock.now() - 500, UTC))
    assert activity.idle_for("a") == 0
    activity.forget("a")
    assert activity.take_unwritten() == {}


async def test_returns_unwritten_uses_once() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    activity.touch("a")
    assert activity.take_unwritten() == {"a": datetime.fromtimestamp(clock.now(), UTC)}
    assert activity.take_unwritten() == {}
    with activity.using("a"):
        await clock.advance(5)
        assert activity.take_unwritten() == {"a": datetime.fromtimestamp(clock.now(), UTC)}, (
            "a sandbox in use counts as used now"
        )
