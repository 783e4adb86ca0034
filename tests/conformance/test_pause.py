"""Freeze and thaw: processes stop running and later continue unchanged."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError
from tests.conformance.harness import DriverHarness

_TICKS = "while :; do date +%s%N >> ticks; sleep 0.02; done"


async def test_frozen_processes_do_not_run(harness: DriverHarness) -> None:
    """A process that writes the time every 20 ms leaves a gap as long as the freeze."""
    handle, agent = await harness.create()
    await agent.start(_TICKS)
    while len((await agent.run("cat ticks")).out.split()) < 3:
        await asyncio.sleep(0.02)
    await harness.driver.freeze(handle)
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    await asyncio.sleep(0.7)
    await harness.driver.thaw(handle)
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
    seen = len((await agent.run("cat ticks")).out.split())
    while len(ticks := (await agent.run("cat ticks")).out.split()) < seen + 2:
        await asyncio.sleep(0.02)
    times = [int(tick) for tick in ticks if tick.isdigit()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) > 0.65e9


async def test_the_same_processes_continue_after_a_thaw(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    pid = await agent.start("trap 'echo stopped > stopped; exit' TERM; while :; do sleep 0.05; done")
    await harness.driver.freeze(handle)
    await harness.driver.thaw(handle)
    assert (await agent.run(f"kill -TERM {pid}")).code == 0
    async with asyncio.timeout(20):
        while (await agent.run("cat stopped")).out != "stopped\n":
            await asyncio.sleep(0.05)


async def test_connecting_to_a_frozen_sandbox_fails_and_does_not_thaw_it(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await harness.driver.freeze(handle)
    for port in (AGENT_PORT, 8080):
        with pytest.raises(UnreachableError):
            await harness.driver.connect(handle, port)
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    await harness.driver.thaw(handle)
    assert await agent.health() == 204


async def test_freeze_and_thaw_are_idempotent(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    for _ in range(2):
        await harness.driver.freeze(handle)
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    for _ in range(2):
        await harness.driver.thaw(handle)
    assert await agent.health() == 204


async def test_many_busy_processes_can_be_frozen(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("for i in $(seq 30); do (while :; do :; done) & done >/dev/null 2>&1; sleep 0.1")
    await harness.driver.freeze(handle)
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    await harness.driver.kill(handle)
    assert await harness.driver.get_condition(handle) is Condition.ABSENT


async def test_freezing_a_sandbox_that_is_not_running_fails(harness: DriverHarness) -> None:
    handle, _ = await harness.create()
    stopped = await harness.driver.stop(handle)
    with pytest.raises(ConflictError):
        await harness.driver.freeze(stopped)
    with pytest.raises(ConflictError):
        await harness.driver.thaw(stopped)
    await harness.driver.kill(stopped)
    with pytest.raises(SandyardError):
        await harness.driver.freeze(stopped)


async def test_a_frozen_sandbox_can_be_stopped(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    await harness.driver.freeze(handle)
    booted = await harness.driver.boot(await harness.driver.stop(handle), harness.spec(handle.id))
    assert await harness.agent(booted).read("file") == "kept\n"
