"""Who uses which sandbox."""

from __future__ import annotations

from datetime import UTC, datetime

from sandyard.kit.clock import ManualClock
from sandyard.platform.domain.sandboxes.activity import Activity


async def test_a_sandbox_is_idle_from_its_last_use_on() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    assert activity.idle_for("a") == 0, "of what is not known nothing is concluded"
    with activity.using("a"):
        await clock.advance(100)
        assert activity.idle_for("a") == 0
        with activity.using("a"):
            await clock.advance(1)
        assert activity.idle_for("a") == 0, "one of two has gone"
    await clock.advance(30)
    assert activity.idle_for("a") == 30
    activity.touch("a")
    assert activity.idle_for("a") == 0


async def test_what_the_database_says_counts_until_it_is_used() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    activity.know("a", datetime.fromtimestamp(clock.now() - 500, UTC))
    assert activity.idle_for("a") == 500
    activity.touch("a")
    activity.know("a", datetime.fromtimestamp(clock.now() - 500, UTC))
    assert activity.idle_for("a") == 0
    activity.forget("a")
    assert activity.unwritten() == {}


async def test_uses_are_written_once() -> None:
    clock = ManualClock()
    activity = Activity(clock)
    activity.touch("a")
    assert activity.unwritten() == {"a": datetime.fromtimestamp(clock.now(), UTC)}
    assert activity.unwritten() == {}
    with activity.using("a"):
        await clock.advance(5)
        assert activity.unwritten() == {"a": datetime.fromtimestamp(clock.now(), UTC)}, "one in use is used now"
