"""What one sandbox may take, and that it is told so without harm to itself, its agent or others."""

from __future__ import annotations

import asyncio
import time

import pytest

from sandyard.engine.contract import Condition, Limits
from sandyard.kit.errors import FullError
from tests.conformance import tiny
from tests.conformance.yard import Yard


def _needs(yard: Yard, limit: str) -> None:
    if limit not in yard.driver.capabilities.limits:
        pytest.skip(f"no {limit} limit: {yard.driver.capabilities.missing.get(limit)}")


async def test_a_process_that_takes_too_much_memory_is_killed_alone(yard: Yard) -> None:
    _needs(yard, "memory")
    handle, agent = await yard.create(limits=Limits(memory_mb=128))
    small = await agent.begin("sleep 1000")
    greedy = f"{tiny.PYTHON} -I -S -c 'x = bytearray(400 << 20); print(len(x))'"
    done = await agent.run(greedy)
    assert done.out == ""
    assert done.code != 0
    assert await agent.health() == 204
    assert (await agent.run(f"kill -0 {small}")).code == 0
    assert (await yard.driver.stats(handle)).memory_total == 128 << 20
    assert (await agent.run(f"{tiny.PYTHON} -I -S -c 'x = bytearray(40 << 20); print(len(x))'")).code == 0


async def test_a_fork_bomb_stays_inside(yard: Yard) -> None:
    _needs(yard, "pids")
    handle, agent = await yard.create(limits=Limits(pids=60))
    bomb = "for i in $(seq 200); do sleep 100 & done"
    done = await agent.run(f"({bomb}) 2>&1 >/dev/null | head -n 1")
    assert done.out
    assert await agent.health() == 204
    _, other = await yard.create()
    assert (await other.run("true")).code == 0
    await yard.driver.kill(handle)
    assert await yard.driver.condition(handle) is Condition.ABSENT


async def test_a_disk_that_is_full_can_be_emptied(yard: Yard) -> None:
    _needs(yard, "disk")
    _, agent = await yard.create(limits=Limits(disk_mb=64))
    _, other = await yard.create(limits=Limits(disk_mb=64))
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


async def test_the_cpu_limit_holds(yard: Yard) -> None:
    _needs(yard, "cpu")
    handle, agent = await yard.create(limits=Limits(cpu_count=1))
    begin = time.monotonic()
    before = (await yard.driver.stats(handle)).cpu_seconds
    for _ in range(4):
        await agent.begin("while :; do :; done")
    await asyncio.sleep(1.5)
    used = (await yard.driver.stats(handle)).cpu_seconds - before
    assert used <= (time.monotonic() - begin) * 1.0 + 0.35


async def test_slots_run_out_with_a_clear_word(yard: Yard) -> None:
    if not yard.real:
        pytest.skip("it has no slots")
    from sandyard.engine.drivers.namespace.driver import NamespaceDriver  # noqa: PLC0415
    from sandyard.engine.drivers.namespace.host import Options  # noqa: PLC0415

    driver = NamespaceDriver(
        Options(yard.data_dir, max_slots=2, store="plain" if yard.kind == "namespace-plain" else "auto")
    )
    await yard.close()
    await driver.open([], [])
    try:
        made = [await driver.create(yard.spec()) for _ in range(2)]
        with pytest.raises(FullError, match="slots"):
            await driver.create(yard.spec("toomany"))
        assert yard.traces("toomany") == []
        await driver.kill(made[0])
        async with asyncio.timeout(10):
            while True:
                try:
                    await driver.create(yard.spec())
                except FullError:
                    await asyncio.sleep(0.01)
                else:
                    break
    finally:
        await driver.close()
