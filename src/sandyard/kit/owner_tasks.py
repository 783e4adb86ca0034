"""Run work of many owners concurrently. Each owner gets a share, so that slow work of one does not delay the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from weakref import WeakValueDictionary

from sandyard.kit.tasks import TaskSet


class OwnerSlots:
    """Limit concurrent work to `total`, and to `per_owner` of each owner."""

    def __init__(self, total: int, per_owner: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._per_owner = per_owner
        self._owners: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def slot(self, owner: str) -> AsyncIterator[None]:
        """Wait for one of the owner's slots, then for one of all."""
        owner_slots = self._owners.setdefault(owner, asyncio.Semaphore(self._per_owner))
        async with owner_slots, self._total:
            yield


class OwnerTasks:
    """Run work in the background within these limits, at most once at a time for each key."""

    def __init__(self, tasks: TaskSet, total: int, per_owner: int) -> None:
        self._tasks = tasks
        self._slots = OwnerSlots(total, per_owner)
        self.running: dict[str, asyncio.Task[None]] = {}
        """Tasks by key, including those that wait for a slot."""

    def start(self, key: str, owner: str, work: Callable[[], Awaitable[None]]) -> None:
        """Start the work when a slot is free. Does nothing if work with this key has not ended yet."""
        if key not in self.running:
            task = self.running[key] = self._tasks.spawn(self._run(owner, work))
            task.add_done_callback(lambda _: self.running.pop(key))

    async def wait(self) -> None:
        """Wait until no task is left."""
        while self.running:
            await asyncio.wait(self.running.values())

    async def _run(self, owner: str, work: Callable[[], Awaitable[None]]) -> None:
        async with self._slots.slot(owner):
            await work()
