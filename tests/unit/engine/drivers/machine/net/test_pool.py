from __future__ import annotations

import asyncio

import pytest

from sandyard.engine.drivers.machine.net.pool import Pool
from sandyard.kit.errors import BusyError


class Factory:
    """Produce consecutive numbers. Waits for `gate`; fails while `broken` is set."""

    def __init__(self) -> None:
        self.created = 0
        self.broken = False
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> int:
        await self.gate.wait()
        if self.broken:
            raise RuntimeError("broken")
        self.created += 1
        return self.created


async def wait_for_size(pool: Pool, size: int) -> None:
    while len(pool) < size:
        await asyncio.sleep(0.001)


async def test_the_pool_fills_and_refills() -> None:
    factory = Factory()
    pool = Pool(3, factory)
    pool.fill()
    await wait_for_size(pool, 3)
    assert await pool.take() == 1
    for _ in range(10):
        await asyncio.sleep(0)
    assert factory.created == 3, "the pool must not refill while enough items are left"
    assert await pool.take() == 2
    await wait_for_size(pool, 3)
    assert await pool.take() == 3
    async with asyncio.timeout(5):
        await wait_for_size(pool, 3)
    assert await pool.close() == [4, 5, 6]


async def test_more_takers_than_items_are_all_served() -> None:
    factory = Factory()
    pool = Pool(1, factory)
    assert sorted(await asyncio.gather(*(pool.take() for _ in range(10)))) == list(range(1, 11))
    await pool.close()


async def test_failures_reach_the_takers_and_stop_when_the_cause_is_gone() -> None:
    factory = Factory()
    factory.broken = True
    pool = Pool(2, factory)
    results = await asyncio.gather(pool.take(), pool.take(), return_exceptions=True)
    assert [str(result) for result in results] == ["broken", "broken"]
    factory.broken = False
    assert await pool.take() == 1
    await pool.close()


async def test_a_cancelled_taker_loses_no_item() -> None:
    factory = Factory()
    factory.gate.clear()
    pool = Pool(0, factory)
    cancelled = asyncio.create_task(pool.take())
    remaining = asyncio.create_task(pool.take())
    await asyncio.sleep(0)
    cancelled.cancel()
    factory.gate.set()
    assert await remaining == 1
    assert await pool.close() == []


async def test_closing_fails_the_takers_that_still_wait() -> None:
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
