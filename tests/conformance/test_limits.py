"""The resource limits of a sandbox: reaching one harms neither the sandbox, its guest agent nor others."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandyard.engine.contract import Condition, Limits
from sandyard.kit.errors import FullError
from tests.conformance import tiny
from tests.conformance.harness import DriverHarness, make_driver


def _require_limit(harness: DriverHarness, limit: str) -> None:
    if limit not in harness.driver.capabilities.limits:
        pytest.skip(f"no {limit} limit: {harness.driver.capabilities.missing.get(limit)}")


async def test_only_the_process_that_exceeds_the_memory_limit_is_killed(harness: DriverHarness) -> None:
    _require_limit(harness, "memory")
    if harness.kind == "gvisor":
        pytest.skip("the host cannot kill single processes of a gVisor sandbox")
    handle, agent = await harness.create(limits=Limits(memory_mb=128))
    small = await agent.start("sleep 1000")
    greedy = f"{tiny.PYTHON} -I -S -c 'x = bytearray(400 << 20); print(len(x))'"
    result = await agent.run(greedy)
    assert result.out == ""
    assert result.code != 0
    assert await agent.health() == 204
    assert (await agent.run(f"kill -0 {small}")).code == 0
    stats = await harness.driver.get_stats(handle)
    assert (stats.memory_total, stats.oom_kills) == (128 << 20, 1)
    assert (await agent.run(f"{tiny.PYTHON} -I -S -c 'x = bytearray(40 << 20); print(len(x))'")).code == 0


async def test_a_fork_bomb_does_not_affect_other_sandboxes(harness: DriverHarness) -> None:
    _require_limit(harness, "pids")
    handle, agent = await harness.create(limits=Limits(pids=60))
    bomb = "for i in $(seq 200); do sleep 100 & done"
    result = await agent.run(f"({bomb}) 2>&1 >/dev/null | head -n 1")
    assert result.out
    assert await agent.health() == 204
    _, other = await harness.create()
    assert (await other.run("true")).code == 0
    await harness.driver.kill(handle)
    assert await harness.driver.get_condition(handle) is Condition.ABSENT


async def test_a_full_disk_can_be_freed_by_deleting_files(harness: DriverHarness) -> None:
    _require_limit(harness, "disk")
    _, agent = await harness.create(limits=Limits(disk_mb=64))
    _, other = await harness.create(limits=Limits(disk_mb=64))
    filled = await agent.run("dd if=/dev/urandom of=big bs=1M count=200 conv=fsync")
    assert filled.code != 0
    assert "quota" in filled.err or "No space" in filled.err
    size = int((await agent.run("stat -c %s big")).out)
    assert 32 << 20 < size <= 64 << 20
    assert await agent.health() == 204
    assert (await other.run("dd if=/dev/urandom of=big bs=1M count=30 conv=fsync")).code == 0
    assert (await agent.run("rm big")).code == 0
    async with asyncio.timeout(60):
        while (await agent.run("sync; dd if=/dev/urandom of=again bs=1M count=30 conv=fsync")).code:
            await asyncio.sleep(0.2)


async def test_the_cpu_limit_is_enforced(harness: DriverHarness) -> None:
    _require_limit(harness, "cpu")
    handle, agent = await harness.create(limits=Limits(cpu_count=1))
    started = time.monotonic()
    before = (await harness.driver.get_stats(handle)).cpu_seconds
    for _ in range(4):
        await agent.start("while :; do :; done")
    await asyncio.sleep(1.5)
    used = (await harness.driver.get_stats(handle)).cpu_seconds - before
    assert used <= (time.monotonic() - started) * 1.0 + 0.35


async def test_a_create_without_a_free_slot_fails_with_a_clear_error(harness: DriverHarness) -> None:
    if not harness.real:
        pytest.skip("the fake driver has no slots")
    if harness.kind == "cluster":
        pytest.skip("the host has a driver of its own")
    driver = make_driver(harness.kind, harness.data_dir, harness.layers, max_slots=2)
    await harness.close()
    await driver.open([], [])
    try:
        handles = [await driver.create(harness.spec()) for _ in range(2)]
        with pytest.raises(FullError, match="slots"):
            await driver.create(harness.spec("toomany"))
        assert harness.traces("toomany") == []
        await driver.kill(handles[0])
        async with asyncio.timeout(10):
            while True:
                try:
                    await driver.create(harness.spec())
                except FullError:
                    await asyncio.sleep(0.01)
                else:
                    break
    finally:
        await driver.close()
