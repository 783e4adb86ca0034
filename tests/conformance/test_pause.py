"""Freeze and thaw: processes stand still, and go on as if nothing had been."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError
from tests.conformance.yard import Yard

_TICKS = "while :; do date +%s%N >> ticks; sleep 0.02; done"


async def test_frozen_processes_stand_still(yard: Yard) -> None:
    """A clock that writes every 20 ms has a hole as long as the pause."""
    handle, agent = await yard.create()
    await agent.begin(_TICKS)
    while len((await agent.run("cat ticks")).out.split()) < 3:
        await asyncio.sleep(0.02)
    await yard.driver.freeze(handle)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    await asyncio.sleep(0.7)
    await yard.driver.thaw(handle)
    assert await yard.driver.condition(handle) is Condition.RUNNING
    seen = len((await agent.run("cat ticks")).out.split())
    while len(ticks := (await agent.run("cat ticks")).out.split()) < seen + 2:
        await asyncio.sleep(0.02)
    times = [int(tick) for tick in ticks if tick.isdigit()]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert max(gaps) > 0.65e9


async def test_the_very_processes_go_on(yard: Yard) -> None:
    handle, agent = await yard.create()
    pid = await agent.begin("trap 'echo told > told; exit' TERM; while :; do sleep 0.05; done")
    await yard.driver.freeze(handle)
    await yard.driver.thaw(handle)
    assert (await agent.run(f"kill -TERM {pid}")).code == 0
    async with asyncio.timeout(20):
        while (await agent.run("cat told")).out != "told\n":
            await asyncio.sleep(0.05)


async def test_a_frozen_sandbox_is_not_reachable_and_not_woken(yard: Yard) -> None:
    handle, agent = await yard.create()
    await yard.driver.freeze(handle)
    for port in (AGENT_PORT, 8080):
        with pytest.raises(UnreachableError):
            await yard.driver.connect(handle, port)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    await yard.driver.thaw(handle)
    assert await agent.health() == 204


async def test_freezing_and_thawing_may_be_repeated(yard: Yard) -> None:
    handle, agent = await yard.create()
    for _ in range(2):
        await yard.driver.freeze(handle)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    for _ in range(2):
        await yard.driver.thaw(handle)
    assert await agent.health() == 204


async def test_many_busy_processes_freeze(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("for i in $(seq 30); do (while :; do :; done) & done >/dev/null 2>&1; sleep 0.1")
    await yard.driver.freeze(handle)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    await yard.driver.kill(handle)
    assert await yard.driver.condition(handle) is Condition.ABSENT


async def test_only_what_runs_can_be_frozen(yard: Yard) -> None:
    handle, _ = await yard.create()
    stopped = await yard.driver.stop(handle)
    with pytest.raises(ConflictError):
        await yard.driver.freeze(stopped)
    with pytest.raises(ConflictError):
        await yard.driver.thaw(stopped)
    await yard.driver.kill(stopped)
    with pytest.raises(SandyardError):
        await yard.driver.freeze(stopped)


async def test_a_frozen_sandbox_can_be_stopped(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo kept > file")
    await yard.driver.freeze(handle)
    booted = await yard.driver.boot(await yard.driver.stop(handle), yard.spec(handle.id))
    assert await yard.agent(booted).read("file") == "kept\n"
