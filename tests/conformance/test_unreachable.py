"""Sandboxes on a host that is unreachable for a while: they are unknown, never gone, and in doubt when it is back."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.kit.errors import UnreachableError
from tests.conformance.harness import DriverHarness


def get_remote_driver(harness: DriverHarness) -> FakeDriver:
    """Return the driver, or skip the test if its sandboxes are on this machine."""
    if not isinstance(harness.driver, FakeDriver):
        pytest.skip("this driver's sandboxes cannot be out of reach")
    return harness.driver


async def test_sandboxes_that_cannot_be_reached_are_unknown_and_not_gone(harness: DriverHarness) -> None:
    driver = get_remote_driver(harness)
    handle, agent = await harness.create()
    driver.disconnect()
    for operation in (driver.get_condition, driver.freeze, driver.stop, driver.get_stats, driver.kill):
        with pytest.raises(UnreachableError):
            await operation(handle)
    with pytest.raises(UnreachableError):
        await driver.connect(handle, AGENT_PORT)
    await driver.reconnect()
    assert await driver.get_condition(handle) is Condition.RUNNING
    assert await agent.health() == 204


@pytest.mark.parametrize("restarted", [False, True])
async def test_sandboxes_are_in_doubt_when_their_host_is_back(harness: DriverHarness, restarted: bool) -> None:
    driver = get_remote_driver(harness)
    reported: list[tuple[set[str], str]] = []

    def on_doubt(sandbox_ids: Collection[str], reason: str) -> None:
        reported.append((set(sandbox_ids), reason))

    driver.on_doubt = on_doubt
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    stopped = await driver.stop((await harness.create())[0])
    driver.disconnect()
    await driver.reconnect(restarted=restarted)
    ((sandbox_ids, reason),) = reported
    assert sandbox_ids == {handle.id, stopped.id} and reason
    assert await driver.get_condition(stopped) is Condition.STOPPED
    if restarted:
        assert await driver.get_condition(handle) is Condition.STOPPED
        handle = await driver.boot(handle, harness.spec(handle.id))
    assert await driver.get_condition(handle) is Condition.RUNNING
    assert await harness.agent(handle).read("file") == "kept\n"
