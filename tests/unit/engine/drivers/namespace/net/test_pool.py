from __future__ import annotations

import asyncio

import pytest

from sandyard.engine.drivers.namespace.net.pool import Pool
from sandyard.kit.errors import BusyError


class Factory:
    """Makes numbers; waits for `gate`, and fails while `broken`."""

    def __init__(self) -> None:
        self.made = 0
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        await self.gate.wait()
        if self.broken:
            raise RuntimeError("broken")
        self.made += 1
        return self.made


async def settle(pool: Pool, size: int) -> None:
    while len(pool) < size:
        await asyncio.sleep(0.001)


async def test_it_fills_and_refills() -> None:
    factory = Factory()
    pool = Pool(3, factory)
    pool.fill()
    await settle(pool, 3)
    assert await pool.take() == 1
    for _ in range(10):
        await asyncio.sleep(0)
    assert factory.made == 3, "it does not hurry while there are enough"
    assert await pool.take() == 2
    await settle(pool, 3)
    assert await pool.take() == 3
    async with asyncio.timeout(5):
        await settle(pool, 3)
    assert await pool.close() == [4, 5, 6]


async def test_more_takers_than_there_are() -> None:
    factory = Factory()
    pool = Pool(1, factory)
    assert sorted(await asyncio.gather(*(pool.take() for _ in range(10)))) == list(range(1, 11))
    await pool.close()


async def test_failures_reach_the_takers_and_end_with_their_cause() -> None:
    factory = Factory()
    factory.broken = True
    pool = Pool(2, factory)
    results = await asyncio.gather(pool.take(), pool.take(), return_exceptions=True)
    assert [str(result) for result in results] == ["broken", "broken"]
    factory.broken = False
    assert await pool.take() == 1
    await pool.close()


async def test_a_taker_that_leaves_loses_nothing() -> None:
    factory = Factory()
    factory.gate.clear()
    pool = Pool(0, factory)
    impatient = asyncio.create_task(pool.take())
    patient = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    impatient.cancel()
    factory.gate.set()
    assert await patient == 1
    assert await pool.close() == []


async def test_closing_ends_the_waiting() -> None:
    factory = Factory()
    factory.gate.clear()
    pool = Pool(1, factory)
    waiting = [asyncio.create_task(pool.take()) for _ in range(2)]
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close())
    await asyncio.sleep(0)
    factory.gate.set()
    await closing
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results[0] == 1
    with pytest.raises(BusyError):
        raise results[1]  # type: ignore[misc]
