from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from sandyard.kit.owner_tasks import OwnerTasks
from sandyard.kit.tasks import TaskSet


class Work:
    """Work that begins and then waits until it may end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go = asyncio.Event()

    def make_job(self, name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.begun.append(name)
            await self.go.wait()

        return run


@pytest.fixture
async def tasks() -> AsyncIterator[TaskSet]:
    made = TaskSet("test")
    yield made
    await made.cancel()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_owner_with_stuck_work_delays_only_their_own(tasks: TaskSet) -> None:
    limited, blocked, quick = OwnerTasks(tasks, total=3, per_owner=2), Work(), Work()
    quick.go.set()
    for number in range(4):
        limited.start(f"ann {number}", "ann", blocked.make_job(f"ann {number}"))
    for number in range(4):
        limited.start(f"bob {number}", "bob", quick.make_job(f"bob {number}"))
    while len(quick.begun) < 4:
        await asyncio.sleep(0)
    assert blocked.begun == ["ann 0", "ann 1"]
    blocked.go.set()
    await limited.wait()
    assert blocked.begun == ["ann 0", "ann 1", "ann 2", "ann 3"] and not limited.running


async def test_total_is_limited(tasks: TaskSet) -> None:
    limited, work = OwnerTasks(tasks, total=3, per_owner=2), Work()
    for owner in "abcde":
        limited.start(owner, owner, work.make_job(owner))
    await settle()
    assert work.begun == ["a", "b", "c"]


async def test_key_runs_once_at_a_time(tasks: TaskSet) -> None:
    limited, work = OwnerTasks(tasks, total=3, per_owner=2), Work()
    for _ in range(2):
        limited.start("key", "ann", work.make_job("first"))
    await settle()
    work.go.set()
    await limited.wait()
    limited.start("key", "ann", work.make_job("second"))
    await limited.wait()
    assert work.begun == ["first", "second"]


async def test_failed_and_cancelled_work_frees_its_slot(tasks: TaskSet) -> None:
    limited, blocked, work = OwnerTasks(tasks, total=1, per_owner=1), Work(), Work()

    async def fail() -> None:
        raise ValueError

    limited.start("fails", "ann", fail)
    limited.start("stuck", "ann", blocked.make_job("stuck"))
    limited.start("waits", "ann", blocked.make_job("waits"))
    await settle()
    limited.running["waits"].cancel()
    limited.running["stuck"].cancel()
    limited.start("next", "ann", work.make_job("next"))
    work.go.set()
    await limited.wait()
    assert (blocked.begun, work.begun) == (["stuck"], ["next"])
