"""A pool of sandboxes created in advance. They have no record: after a crash the driver removes them as leftovers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field

from sandyard.engine.contract import Handle, Isolation, Layers, Limits, Spec
from sandyard.engine.sandboxes.agent import send_identity
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.capacity import Capacity
from sandyard.engine.sandboxes.model import Defaults, StartCommand, Template
from sandyard.engine.sandboxes.remover import SandboxRemover
from sandyard.engine.sandboxes.start_command import run_start_command
from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

RETRY_S = 2.0
QUIET_PERIOD_S = 0.1
ENOUGH_FRACTION = 0.25  # fraction of the pool; below it, refilling does not wait for a quiet moment
SANDBOXES_PER_CLAIM = 4
MEMORY_MARGIN = 1.25  # the pool shrinks before creates are refused


def make_sandbox_id() -> str:
    return make_random_id("i", 20)


@dataclass(slots=True)
class TemplatePool:
    """The pooled sandboxes of one template and isolation level, with or without containers. They have the template's limits
    and the default network policy."""

    template: Template
    limits: Limits
    isolation: Isolation
    containers: bool
    used_at: float
    full_size: bool = False  # at full size; otherwise it grows with the number of claims
    claims: int = 0
    claimed_at: float = float("-inf")
    ready: deque[Handle] = field(default_factory=deque)
    watches: dict[str, asyncio.Task[None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The number of ready sandboxes of a template, and the number that there should be."""

    template: str
    isolation: Isolation
    containers: bool
    ready: int
    target: int


PoolKey = tuple[str, Layers, frozenset[tuple[str, str]], Defaults, StartCommand | None, Limits, Isolation, bool]


class Pool:
    """The pools of all templates. They are refilled by one task, one sandbox at a time, while no client is waiting for
    something else."""

    def __init__(
        self,
        calls: DriverCalls,
        remover: SandboxRemover,
        capacity: Capacity,
        clock: Clock,
        *,
        size: int,
        started_size: int,
        gvisor_size: int,
        idle_s: float,
        start_timeout_s: float,
        count_taken: Callable[[], int],
        max_sandboxes: int,
    ) -> None:
        self._calls = calls
        self._remover = remover
        self._capacity = capacity
        self._clock = clock
        self._size = size
        self._started_size = started_size  # for templates with a start command
        self._gvisor_size = gvisor_size
        self._idle_s = idle_s
        self._start_timeout_s = start_timeout_s
        self._count_taken = count_taken  # number of sandboxes that are running, being created or being removed
        self._max_sandboxes = max_sandboxes  # maximum number of sandboxes, including pooled ones
        self._pools: dict[PoolKey, TemplatePool] = {}
        self._refill_needed = asyncio.Event()
        self._no_client_creates = asyncio.Event()
        self._no_client_creates.set()
        self._client_creates = 0
        self._closed = False
        self._adding = asyncio.Lock()

    @property
    def ready_count(self) -> int:
        return sum(len(pool.ready) for pool in self._pools.values())

    def list_status(self) -> list[PoolStatus]:
        """Return the status of each pool."""
        return [
            PoolStatus(
                pool.template.aliases[0] if pool.template.aliases else pool.template.id,
                pool.isolation,
                pool.containers,
                len(pool.ready),
                self._get_target_size(pool),
            )
            for pool in self._pools.values()
        ]

    @property
    def list_snapshots(self) -> set[str]:
        """Return the snapshots that pooled sandboxes are based on."""
        return {used for pool in self._pools.values() for used in pool.template.snapshots}

    def claim(self, template: Template, limits: Limits, isolation: Isolation, *, containers: bool) -> Handle | None:
        """Return a pooled sandbox, now owned by the caller, or None. With gVisor it is frozen. Starts a pool for a template
        that has none, but not for a client's snapshot: there may be any number of them, and each may be deleted at any
        time."""
        if self._get_max_size(template, isolation) == 0 or not template.can_be_pooled:
            return None
        pool = self.keep_pooled(template, limits, isolation, containers=containers)
        pool.claims += 1
        self._refill_needed.set()
        if not pool.ready:
            return None
        pool.claimed_at = pool.used_at
        handle = pool.ready.popleft()
        pool.watches.pop(handle.id).cancel()
        return handle

    def keep_pooled(
        self, template: Template, limits: Limits, isolation: Isolation, *, containers: bool, full_size: bool = False
    ) -> TemplatePool:
        """Keep sandboxes of this template ready, and return their pool. It grows with the number of claims, or, with
        `full_size`, holds as many as it may from the beginning."""
        env = frozenset(template.env.items())  # a new build of a template may differ only in its environment
        key = (template.id, template.layers, env, template.defaults, template.start, limits, isolation, containers)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = TemplatePool(template, limits, isolation, containers, self._clock.now())
            self._refill_needed.set()
        pool.used_at = self._clock.now()
        pool.full_size = pool.full_size or full_size
        return pool

    async def run_client_create(self, create: Callable[[], Awaitable[Handle]]) -> Handle:
        """Create a sandbox for a client. Refilling waits until this is done."""
        self._client_creates += 1
        self._no_client_creates.clear()
        try:
            return await create()
        finally:
            self._client_creates -= 1
            if self._client_creates == 0:
                self._no_client_creates.set()

    def discard(self, sandbox_ids: Collection[str]) -> None:
        """Remove these sandboxes if they are in the pool. Others are created in their place."""
        for pool in self._pools.values():
            for handle in [handle for handle in pool.ready if handle.id in sandbox_ids]:
                pool.ready.remove(handle)
                pool.watches.pop(handle.id).cancel()
                self._remover.discard(handle)
        self._refill_needed.set()

    async def drain_and_wait(self) -> int:
        """Empty the pool and wait until the driver has removed everything. Return the number of sandboxes."""
        handles = [handle for pool in self._pools.values() for handle in pool.ready]
        for pool in self._pools.values():
            for watch in pool.watches.values():
                watch.cancel()
            pool.watches.clear()
            pool.ready.clear()
        await asyncio.gather(*map(self._kill_pooled, handles))
        return len(handles)

    async def _kill_pooled(self, handle: Handle) -> None:
        try:
            await self._calls.run("kill", handle.id, self._calls.driver.kill(handle))
        except SandyardError:
            self._remover.discard(handle)

    def drain(self) -> int:
        """Empty the pool in the background. Return the number of sandboxes."""
        drained = self.ready_count
        for pool in self._pools.values():
            self._drain_pool(pool)
        return drained

    def tidy(self) -> None:
        """Drop the pools of templates that were not used lately, and everything if memory is low. Called every few
        seconds."""
        oldest_use = self._clock.now() - self._idle_s
        for key in [key for key, pool in self._pools.items() if pool.used_at < oldest_use]:
            self._drain_pool(self._pools.pop(key))
        if self._capacity.is_memory_low(MEMORY_MARGIN):
            drained = self.drain()
            if drained:
                log.warning("pool_drained", sandboxes=drained, reason="memory is low")
        else:
            self._refill_needed.set()

    async def run(self) -> None:
        """Refill the pools until cancelled or closed."""
        while True:
            await self._refill_needed.wait()
            self._refill_needed.clear()
            while (pool := self._find_pool_to_refill()) is not None:
                await self._wait_until_quiet(pool)
                if self._closed:
                    return
                try:
                    async with self._adding:
                        await self._add(pool)
                except SandyardError as error:
                    log.warning("pool_refill_failed", template=pool.template.id, reason=error.message)
                    await self._clock.sleep(RETRY_S)
                await asyncio.sleep(0)

    async def _wait_until_quiet(self, pool: TemplatePool) -> None:
        """Wait until creating a sandbox does not delay clients. While the pool has enough, that is a gap between clients'
        requests, so that the first command of a claimed sandbox does not compete with the creation of the next one."""
        await self._no_client_creates.wait()
        enough = self._get_target_size(pool) * ENOUGH_FRACTION
        while len(pool.ready) >= enough and pool.claimed_at > self._clock.now() - QUIET_PERIOD_S:
            await self._clock.sleep(QUIET_PERIOD_S)
        await self._no_client_creates.wait()

    async def stop_refilling(self, timeout_s: float) -> None:
        """Stop refilling. Waits for the sandbox being created, because it would be untracked if abandoned half-way."""
        self._closed = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._adding:
                pass

    async def close(self) -> None:
        """Empty the pool and wait until the driver has removed everything."""
        self._closed = True
        await self.drain_and_wait()
        self._pools.clear()

    def _find_pool_to_refill(self) -> TemplatePool | None:
        """Return the pool to refill next, or None if all are full or the machine has no room."""
        short = [pool for pool in self._pools.values() if len(pool.ready) < self._get_target_size(pool)]
        pool = min(short, key=lambda pool: len(pool.ready), default=None)
        if pool is None:
            return None
        if self._count_taken() + self.ready_count >= self._max_sandboxes or self._capacity.is_memory_low(MEMORY_MARGIN):
            return None
        return pool

    async def _add(self, pool: TemplatePool) -> None:
        """Create a sandbox and add it to the pool."""
        spec = Spec(
            make_sandbox_id(),
            pool.template.layers,
            pool.limits,
            isolation=pool.isolation,
            containers=pool.containers,
        )

        async def discard(handle: Handle) -> None:
            self._remover.discard(handle)

        handle = await self._calls.run("create", spec.id, self._calls.driver.create(spec), if_late=discard)
        try:
            await send_identity(self._calls, handle, pool.template.id, pool.template.env, pool.template.defaults)
            if pool.template.start is not None:
                await run_start_command(self._calls, handle, pool.template.start, self._start_timeout_s)
            if pool.isolation is Isolation.GVISOR:  # its kernel uses 3 % of a processor even if nothing runs in it
                await self._calls.run("freeze", handle.id, self._calls.driver.freeze(handle))
        except BaseException:
            self._remover.discard(handle)
            raise
        if self._closed or pool not in self._pools.values():
            self._remover.discard(handle)
            return
        pool.ready.append(handle)
        pool.watches[handle.id] = asyncio.ensure_future(self._watch(pool, handle))

    async def _watch(self, pool: TemplatePool, handle: Handle) -> None:
        try:
            reason = await self._calls.driver.wait_for_exit(handle)
        except SandyardError as error:
            reason = error.message
        log.warning("pooled_sandbox_ended", sandbox=handle.id, reason=reason)
        pool.ready.remove(handle)
        pool.watches.pop(handle.id, None)
        self._remover.discard(handle)
        self._refill_needed.set()

    def _get_target_size(self, pool: TemplatePool) -> int:
        max_size = self._get_max_size(pool.template, pool.isolation)
        return max_size if pool.full_size else min(max_size, SANDBOXES_PER_CLAIM * pool.claims)

    def _get_max_size(self, template: Template, isolation: Isolation) -> int:
        size = self._size if isolation is Isolation.NAMESPACE else min(self._size, self._gvisor_size)
        return size if template.start is None else min(size, self._started_size)

    def _drain_pool(self, pool: TemplatePool) -> None:
        """Remove all sandboxes of one pool in the background."""
        for watch in pool.watches.values():
            watch.cancel()
        pool.watches.clear()
        while pool.ready:
            self._remover.discard(pool.ready.popleft())
