"""A pool of sandboxes created in advance. They have no record: after a crash the driver removes them as leftovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandyard.engine.contract import Handle, Layers, Limits, NetworkPolicy, Spec
from sandyard.engine.sandboxes import guest, starting
from sandyard.engine.sandboxes.calls import Calls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.model import Defaults, Start, Template
from sandyard.engine.sandboxes.undertaker import Undertaker
from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

RETRY_S = 2.0
QUIET_S = 0.1
ENOUGH = 0.25  # fraction of the pool; below it, refilling does not wait for a quiet moment
A_FEW = 4
MEMORY_MARGIN = 1.25  # the pool shrinks before creates are refused


def new_sandbox_id() -> str:
    return random_id("i", 20)


@dataclass(slots=True)
class Shelf:
    """The pooled sandboxes of one template, with its own limits and the default network policy."""

    template: Template
    limits: Limits
    used_at: float
    whole: bool = False  # at full size; otherwise it grows with the number of claims
    claims: int = 0
    claimed_at: float = float("-inf")
    ready: deque[Handle] = field(default_factory=deque)
    watches: dict[str, asyncio.Task[None]] = field(default_factory=dict)


ShelfKey = tuple[str, Layers, frozenset[tuple[str, str]], Defaults, Start | None, Limits]


class Pool:
    """Refilled by one task, one sandbox at a time, while no client is waiting for something else."""

    def __init__(
        self,
        calls: Calls,
        undertaker: Undertaker,
        capacity: Capacity,
        clock: Clock,
        *,
        size: int,
        started_size: int,
        idle_s: float,
        start_patience_s: float,
        taken: Callable[[], int],
        room: int,
    ) -> None:
        self._calls = calls
        self._undertaker = undertaker
        self._capacity = capacity
        self._clock = clock
        self._size = size
        self._started_size = started_size  # for templates with a start command
        self._idle_s = idle_s
        self._start_patience_s = start_patience_s
        self._taken = taken  # number of sandboxes that already count
        self._room = room  # maximum number of sandboxes, including pooled ones
        self._shelves: dict[ShelfKey, Shelf] = {}
        self._wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._creating = 0
        self._closed = False
        self._adding = asyncio.Lock()

    @property
    def ready(self) -> int:
        return sum(len(shelf.ready) for shelf in self._shelves.values())

    @property
    def snapshots(self) -> set[str]:
        """Return the snapshots that pooled sandboxes are based on."""
        return {used for shelf in self._shelves.values() for used in shelf.template.snapshots}

    def claim(self, template: Template, limits: Limits) -> Handle | None:
        """Return a pooled sandbox, now owned by the caller, or None. Starts a shelf for a template that has none, but
        not for a client's snapshot: there may be any number of them, and each may be deleted at any time."""
        if self._most(template) == 0 or not template.lasting:
            return None
        shelf = self.want(template, limits)
        shelf.claims += 1
        self._wanted.set()
        if not shelf.ready:
            return None
        shelf.claimed_at = shelf.used_at
        handle = shelf.ready.popleft()
        shelf.watches.pop(handle.id).cancel()
        return handle

    def want(self, template: Template, limits: Limits, *, whole: bool = False) -> Shelf:
        """Keep sandboxes of this template in the pool: a few for each one claimed, or as many as a shelf holds."""
        known = frozenset(template.env.items())  # a new build of a template may differ only in its environment
        key = (template.id, template.layers, known, template.defaults, template.start, limits)
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = Shelf(template, limits, self._clock.now())
            self._wanted.set()
        shelf.used_at = self._clock.now()
        shelf.whole = shelf.whole or whole
        return shelf

    async def create(self, make: Callable[[], Awaitable[Handle]]) -> Handle:
        """Run a client's create; refilling waits in the meantime."""
        self._creating += 1
        self._idle.clear()
        try:
            return await make()
        finally:
            self._creating -= 1
            if self._creating == 0:
                self._idle.set()

    async def give_back(self) -> int:
        """Empty the pool and wait until the driver has removed everything. Return the number of sandboxes."""
        handles = [handle for shelf in self._shelves.values() for handle in shelf.ready]
        for shelf in self._shelves.values():
            for watch in shelf.watches.values():
                watch.cancel()
            shelf.watches.clear()
            shelf.ready.clear()
        await asyncio.gather(*map(self._give_one_back, handles))
        return len(handles)

    async def _give_one_back(self, handle: Handle) -> None:
        try:
            await self._calls.run("kill", handle.id, self._calls.driver.kill(handle))
        except SandyardError:
            self._undertaker.discard(handle)

    def drain(self) -> int:
        """Empty the pool in the background. Return the number of sandboxes."""
        drained = self.ready
        for shelf in self._shelves.values():
            self._empty(shelf)
        return drained

    def tidy(self) -> None:
        """Drop shelves that were not used lately, and everything if memory is low. Called every few seconds."""
        limit = self._clock.now() - self._idle_s
        for key in [key for key, shelf in self._shelves.items() if shelf.used_at < limit]:
            self._empty(self._shelves.pop(key))
        if self._capacity.memory_low(MEMORY_MARGIN):
            drained = self.drain()
            if drained:
                log.warning("pool_drained", sandboxes=drained, reason="memory is low")
        else:
            self._wanted.set()

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (shelf := self._neediest()) is not None:
                await self._quiet(shelf)
                if self._closed:
                    return
                try:
                    async with self._adding:
                        await self._add(shelf)
                except SandyardError as error:
                    log.warning("pool_refill_failed", template=shelf.template.id, reason=error.message)
                    await self._clock.sleep(RETRY_S)
                await asyncio.sleep(0)

    async def _quiet(self, shelf: Shelf) -> None:
        """Wait until creating a sandbox delays nobody. While the pool has enough, that is a gap between clients'
        requests, so that the first command of a claimed sandbox does not compete with the creation of the next one."""
        await self._idle.wait()
        enough = self._wanted_of(shelf) * ENOUGH
        while len(shelf.ready) >= enough and shelf.claimed_at > self._clock.now() - QUIET_S:
            await self._clock.sleep(QUIET_S)
        await self._idle.wait()

    async def stop_filling(self, patience_s: float) -> None:
        """Stop refilling. Waits for the sandbox being created, because it would be untracked if abandoned half-way."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s), self._adding:
                pass

    async def close(self) -> None:
        """Empty the pool and wait until the driver has removed everything."""
        self._closed = True
        await self.give_back()
        self._shelves.clear()

    def _neediest(self) -> Shelf | None:
        lacking = [shelf for shelf in self._shelves.values() if len(shelf.ready) < self._wanted_of(shelf)]
        shelf = min(lacking, key=lambda shelf: len(shelf.ready), default=None)
        if shelf is None:
            return None
        if self._taken() + self.ready >= self._room or self._capacity.memory_low(MEMORY_MARGIN):
            return None
        return shelf

    async def _add(self, shelf: Shelf) -> None:
        spec = Spec(new_sandbox_id(), shelf.template.layers, shelf.limits, NetworkPolicy())

        async def discard(handle: Handle) -> None:
            self._undertaker.discard(handle)

        handle = await self._calls.run("create", spec.id, self._calls.driver.create(spec), if_late=discard)
        try:
            await guest.initialise(self._calls, handle, shelf.template.id, shelf.template.env, shelf.template.defaults)
            if shelf.template.start is not None:
                await starting.start(self._calls, handle, shelf.template.start, self._start_patience_s)
        except BaseException:
            self._undertaker.discard(handle)
            raise
        if self._closed or shelf not in self._shelves.values():
            self._undertaker.discard(handle)
            return
        shelf.ready.append(handle)
        shelf.watches[handle.id] = asyncio.ensure_future(self._watch(shelf, handle))

    async def _watch(self, shelf: Shelf, handle: Handle) -> None:
        try:
            reason = await self._calls.driver.exited(handle)
        except SandyardError as error:
            reason = error.message
        log.warning("pooled_sandbox_ended", sandbox=handle.id, reason=reason)
        shelf.ready.remove(handle)
        shelf.watches.pop(handle.id, None)
        self._undertaker.discard(handle)
        self._wanted.set()

    def _wanted_of(self, shelf: Shelf) -> int:
        most = self._most(shelf.template)
        return most if shelf.whole else min(most, A_FEW * shelf.claims)

    def _most(self, template: Template) -> int:
        return self._size if template.start is None else min(self._size, self._started_size)

    def _empty(self, shelf: Shelf) -> None:
        for watch in shelf.watches.values():
            watch.cancel()
        shelf.watches.clear()
        while shelf.ready:
            self._undertaker.discard(shelf.ready.popleft())
