"""Starts sandboxes: what one needs is created concurrently where possible, and either everything or nothing exists at the
end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar, cast

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.namespace import policies
from sandyard.engine.drivers.namespace.errors import translate_os_error
from sandyard.engine.drivers.namespace.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.namespace.forker import ZygoteDiedError
from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.launcher import DescriptorList, NetSlot, Plan
from sandyard.engine.drivers.namespace.record import Life, Record
from sandyard.kit.errors import SandyardError

_AHEAD = 128  # user namespaces created in advance, about 2 kB of kernel memory each

T = TypeVar("T")
U = TypeVar("U")


class Starter:
    def __init__(self, host: Host, watcher: ExitWatcher) -> None:
        self._host = host
        self._watcher = watcher
        self._under_way = 0
        self._preparing: asyncio.Task[None] | None = None

    async def start(self, record: Record, policy: NetworkPolicy, fill: Callable[[], Awaitable[None]]) -> None:
        """Start a sandbox. `fill` creates its directory in the store. A failure leaves neither slot nor process; the
        caller removes that directory. Must not be cancelled: parts of it run in other processes and threads and cannot
        be interrupted."""
        host = self._host
        slot = host.slots.take()
        seats: DescriptorList = []
        self._under_way += 1
        try:
            policies.create_directory(host.run / record.id, policy)
            together = asyncio.ensure_future(_gather_both(self._join(slot, policy), fill()))
            await asyncio.sleep(0)  # both run in threads by now, so create the cgroups in the meantime
            try:
                host.launcher.reserve(record.id, record.limits, seats)
            finally:
                net, _ = await together
            life, pidfd = await self._launch(
                Plan(record.id, slot, record.layers, record.limits, net, record.mounts), seats
            )
            self._watcher.watch(record, life, pidfd, _take(seats, "stderr"), zygote_reports=True)
        except BaseException as error:
            await self._clear(record.id, seats)
            remove_run_directory(host.run / record.id)
            await self._watcher.free_slot(slot)
            if isinstance(error, OSError):
                raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
            raise
        finally:
            _close(seats)
            self._under_way -= 1
        self.prepare()

    @contextlib.asynccontextmanager
    async def hold_namespaces(self, record: Record, policy: NetworkPolicy, slot: int) -> AsyncIterator[int]:
        """Create everything of a sandbox except its processes, in a slot that belongs to the caller, who also cleans up
        after a failure. Yields the pid of a process that is in all its namespaces and ends with the context."""
        host = self._host
        seats: DescriptorList = []
        pidfd = -1
        self._under_way += 1
        try:
            policies.create_directory(host.run / record.id, policy)
            net, _ = await _gather_both(self._join(slot, policy), host.store.renew(record.id, record.limits.disk_mb))
            host.launcher.reserve(record.id, record.limits, seats)
            plan = Plan(record.id, slot, record.layers, record.limits, net, record.mounts, hold=True)
            life, pidfd = await self._launch(plan, seats)
            yield life.pid
        except OSError as error:
            raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
        finally:
            _close(seats)
            self._under_way -= 1
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)

    async def _join(self, slot: int, policy: NetworkPolicy) -> NetSlot | None:
        network = self._host.network
        if network is None:
            return None
        net = await network.acquire(slot)
        if policy != NetworkPolicy():  # the default is already applied
            await network.set_policy(slot, policy)
        return net

    async def _launch(self, plan: Plan, seats: DescriptorList) -> tuple[Life, int]:
        launcher, store = self._host.launcher, self._host.store
        try:
            return await launcher.start(plan, seats, store)
        except ZygoteDiedError:  # retry once with a new zygote
            await self._clear(plan.id, seats)
            await store.renew(plan.id, plan.limits.disk_mb)  # it may already have been mounted
            launcher.reserve(plan.id, plan.limits, seats)
            return await launcher.start(plan, seats, store)

    async def _clear(self, sandbox: str, seats: DescriptorList) -> None:
        """Remove what `reserve` created."""
        _close(seats)
        await self._host.cgroups.clear(sandbox)
        (self._host.run / sandbox / "agent.sock").unlink(missing_ok=True)

    # Ahead ------------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create user namespaces for the next sandboxes while the engine is idle."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        with contextlib.suppress(SandyardError):
            for slot in self._host.launcher.list_unprepared(self._host.slots.list_next(_AHEAD)):
                while self._under_way:  # noqa: ASYNC110 - nobody waits for this, so nobody should have to wake it
                    await asyncio.sleep(0.02)
                await self._host.launcher.prepare(slot)

    def close(self) -> None:
        if self._preparing is not None:
            self._preparing.cancel()


async def _gather_both(first: Awaitable[T], second: Awaitable[U]) -> tuple[T, U]:
    """Run both concurrently and to completion, even if one fails."""
    one, two = await asyncio.gather(first, second, return_exceptions=True)
    for result in (one, two):
        if isinstance(result, BaseException):
            raise result
    return cast("T", one), cast("U", two)


def _take(seats: DescriptorList, name: str) -> int:
    """Remove one descriptor from the list and return it."""
    seat = next(seat for seat in seats if seat[0] == name)
    seats.remove(seat)
    return seat[1]


def _close(seats: DescriptorList) -> None:
    for _, fd in seats:
        os.close(fd)
    seats.clear()
