from __future__ import annotations

import asyncio

import pytest

from sandyard.platform.domain.git.repository_queue import RepositoryQueue


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_enters_empty_queue() -> None:
    turns = RepositoryQueue()
    assert turns.enter("repo", id="a", requester="one").done()
    assert turns.get_position("repo", "a") == 0
    turns.leave("repo", "a")
    assert turns.get_position("repo", "a") is None


async def test_one_at_a_time() -> None:
    turns, inside, most = RepositoryQueue(), 0, 0

    async def work(number: int) -> None:
        nonlocal inside, most
        await turns.enter("repo", id=str(number), requester=str(number % 7))
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        turns.leave("repo", str(number))

    await asyncio.gather(*(work(number) for number in range(100)))
    assert (most, inside) == (1, 0)


async def test_repositories_do_not_wait_for_each_other() -> None:
    turns = RepositoryQueue()
    turns.enter("repo", id="a", requester="one")
    assert turns.enter("other", id="b", requester="two").done()


async def test_serves_waiters_fairly() -> None:
    """One caller with ten requests does not make the others wait for all of them."""
    turns, served = RepositoryQueue(), []
    turns.enter("repo", id="a", requester="greedy")

    async def work(name: str, who: str) -> None:
        await turns.enter("repo", id=name, requester=who)
        served.append(name)
        turns.leave("repo", name)

    names = [(f"greedy-{number}", "greedy") for number in range(4)] + [("b", "b"), ("c", "c")]
    tasks = [asyncio.ensure_future(work(*item)) for item in names]
    await settle()
    expected = ["b", "c", "greedy-0", "greedy-1", "greedy-2", "greedy-3"]
    assert [turns.get_position("repo", name) for name in expected] == [1, 2, 3, 4, 5, 6]
    turns.leave("repo", "a")
    await asyncio.gather(*tasks)
    assert served == expected


async def test_skips_waiter_that_left() -> None:
    turns = RepositoryQueue()
    turns.enter("repo", id="a", requester="a")
    gone, stays = turns.enter("repo", id="b", requester="b"), turns.enter("repo", id="c", requester="c")
    turns.leave("repo", "b")
    turns.leave("repo", "a")
    assert stays.done() and not gone.done()


@pytest.mark.parametrize("when", ["waiting", "served"])
async def test_cancelled_waiter_leaves(when: str) -> None:
    """A cancelled waiter leaves, and the next one is served."""
    turns = RepositoryQueue()
    turns.enter("repo", id="a", requester="a")

    async def wait() -> None:
        turn = turns.enter("repo", id="b", requester="b")
        try:
            await turn
        finally:
            turns.leave("repo", "b")

    task = asyncio.ensure_future(wait())
    await settle()
    last = turns.enter("repo", id="c", requester="c")
    if when == "served":
        task.cancel()
        turns.leave("repo", "a")
    else:
        task.cancel()
        await settle()
        turns.leave("repo", "a")
    await settle()
    assert task.cancelled() and last.done()


async def test_entries_of_equal_rank_are_served_in_the_order_of_arrival() -> None:
    """Whatever their ids."""
    turns = RepositoryQueue()
    turns.enter("repo", id="z", requester="first")
    early, late = turns.enter("repo", id="y", requester="ann"), turns.enter("repo", id="x", requester="ben")
    assert (turns.get_position("repo", "y"), turns.get_position("repo", "x")) == (1, 2)
    turns.leave("repo", "z")
    assert early.done() and not late.done()


async def test_after_a_time_only_the_same_requester_waits() -> None:
    turns = RepositoryQueue(exclusive_s=0)
    turns.enter("repo", id="slow", requester="ann")
    same, other = turns.enter("repo", id="a", requester="ann"), turns.enter("repo", id="b", requester="ben")
    assert not other.done()
    async with asyncio.timeout(10):
        await other
    assert not same.done()
    turns.leave("repo", "b")
    assert not same.done() and turns.get_position("repo", "slow") == 0
    turns.leave("repo", "slow")
    assert same.done()
    turns.leave("repo", "a")
    assert turns.enter("repo", id="c", requester="ann").done()
