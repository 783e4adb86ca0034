"""Start sandboxes: what one needs is created concurrently where possible, and either everything or nothing exists at
the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar, cast

from sandyard.engine.contract import NetworkPolicy
from sandyard.engine.drivers.machine import policies
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.namespace.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.namespace.forker import ZygoteDiedError
from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.launcher import DescriptorList, NetSlot, StartPlan
from sandyard.engine.drivers.namespace.record import Life, Record
from sandyard.kit.errors import SandyardError

_PREPARED_NAMESPACES = 128  # user namespaces created in advance, about 2 kB of kernel memory each

T = TypeVar("T")
U = TypeVar("U")


class Starter:
    """Starts sandboxes and creates user namespaces for the next ones in advance."""

    def __init__(self, host: Host, watcher: ExitWatcher) -> None:
        self._host = host
        self._watcher = watcher
        self._active_starts = 0
        self._preparing: asyncio.Task[None] | None = None

    async def start(self, record: Record, policy: NetworkPolicy, prepare_files: Callable[[], Awaitable[None]]) -> None:
        """Start a sandbox. `prepare_files` creates its directory in the store. A failure leaves neither slot nor
        process; the caller removes that directory. Must not be cancelled: parts of it run in other processes and
        threads and cannot be interrupted."""
        host = self._host
        slot = host.slots.take()
        descriptors: DescriptorList = []
        self._active_starts += 1
        try:
            policies.create_directory(host.run_dir / record.id, policy)
            preparation = asyncio.ensure_future(_gather_both(self._acquire_network(slot, policy), prepare_files()))
            await asyncio.sleep(0)  # both run in threads by now, so create the cgroups in the meantime
            try:
                host.launcher.create_resources(record.id, record.limits, descriptors)
            finally:
                net, _ = await preparation
            life, pidfd = await self._launch(
                StartPlan(record.id, slot, record.layers, record.limits, net, record.mounts), descriptors
            )
            self._watcher.watch(record, life, pidfd, _pop_descriptor(descriptors, "stderr"), zygote_reports=True)
        except BaseException as error:
            await self._remove_resources(record.id, descriptors)
            remove_run_directory(host.run_dir / record.id)
            await self._watcher.free_slot(slot)
            if isinstance(error, OSError):
                raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
            raise
        finally:
            _close_all(descriptors)
            self._active_starts -= 1
        self.prepare()

    @contextlib.asynccontextmanager
    async def hold_namespaces(self, record: Record, policy: NetworkPolicy, slot: int) -> AsyncIterator[int]:
        """Create everything of a sandbox except its processes, in a slot that belongs to the caller, who also cleans up
        after a failure. Yields the pid of a process that is in all its namespaces and ends with the context."""
        host = self._host
        descriptors: DescriptorList = []
        pidfd = -1
        self._active_starts += 1
        try:
            policies.create_directory(host.run_dir / record.id, policy)
            net, _ = await _gather_both(
                self._acquire_network(slot, policy), host.store.renew(record.id, record.limits.disk_mb)
            )
            host.launcher.create_resources(record.id, record.limits, descriptors)
            plan = StartPlan(record.id, slot, record.layers, record.limits, net, record.mounts, hold=True)
            life, pidfd = await self._launch(plan, descriptors)
            yield life.pid
        except OSError as error:
            raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
        finally:
            _close_all(descriptors)
            self._active_starts -= 1
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)

    async def _acquire_network(self, slot: int, policy: NetworkPolicy) -> NetSlot | None:
        network = self._host.network
        if network is None:
            return None
        net = await network.acquire(slot)
        if policy != NetworkPolicy():  # the default is already applied
            await network.set_policy(slot, policy)
        return net

    async def _launch(self, plan: StartPlan, descriptors: DescriptorList) -> tuple[Life, int]:
        launcher, store = self._host.launcher, self._host.store
        try:
            return await launcher.start(plan, descriptors, store)
        except ZygoteDiedError:  # retry once with a new zygote
            await self._remove_resources(plan.id, descriptors)
            await store.renew(plan.id, plan.limits.disk_mb)  # it may already have been mounted
            launcher.create_resources(plan.id, plan.limits, descriptors)
            return await launcher.start(plan, descriptors, store)

    async def _remove_resources(self, sandbox: str, descriptors: DescriptorList) -> None:
        """Remove what `create_resources` created."""
        _close_all(descriptors)
        await self._host.cgroups.clear(sandbox)
        (self._host.run_dir / sandbox / "agent.sock").unlink(missing_ok=True)

    # Preparation ------------------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Create user namespaces for the next sandboxes while the engine is idle."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        with contextlib.suppress(SandyardError):
            for slot in self._host.launcher.list_unprepared(self._host.slots.list_next(_PREPARED_NAMESPACES)):
                while self._active_starts:  # noqa: ASYNC110 - nobody waits for this
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


def _pop_descriptor(descriptors: DescriptorList, name: str) -> int:
    """Remove one descriptor from the list and return it."""
    descriptor = next(descriptor for descriptor in descriptors if descriptor[0] == name)
    descriptors.remove(descriptor)
    return descriptor[1]


def _close_all(descriptors: DescriptorList) -> None:
    for _, fd in descriptors:
        os.close(fd)
    descriptors.clear()
