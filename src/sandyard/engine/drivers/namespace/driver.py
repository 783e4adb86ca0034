"""The namespace driver: sandboxes made of Linux namespaces, overlay and cgroups. See `contract.Driver` for the contract
of each operation.

With root: separate user, pid, mount, net, ipc, uts and cgroup namespaces, copy-on-write storage with disk limits, and a
network with policies. Without root: the same structure with what the kernel allows a user; `capabilities.missing` lists
what is not available.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sandyard.engine.contract import (
    AGENT_PORT,
    Capabilities,
    Condition,
    Denied,
    Hairpin,
    Handle,
    Layers,
    NetworkPolicy,
    Spec,
    Stats,
)
from sandyard.engine.drivers.machine import policies, processes
from sandyard.engine.drivers.machine.cgroups import SocketMemory
from sandyard.engine.drivers.machine.store.base import VOLUMES
from sandyard.engine.drivers.namespace import adoption, connections, pause
from sandyard.engine.drivers.namespace.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.namespace.host import DriverOptions, Host
from sandyard.engine.drivers.namespace.kernel_memory import KernelMemoryWatcher
from sandyard.engine.drivers.namespace.record import DRIVER_NAME, Record, parse_record
from sandyard.engine.drivers.namespace.starter import Starter
from sandyard.engine.drivers.namespace.suspender import Suspender
from sandyard.kit.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_KILL_TIMEOUT_S = 15.0


T = TypeVar("T")


class NamespaceDriver:
    """Runs sandboxes on this machine. `open` must be called first."""

    name = DRIVER_NAME
    capabilities: Capabilities

    def __init__(self, options: DriverOptions) -> None:
        self._options = options
        self._host: Host | None = None
        self._watcher: ExitWatcher
        self._starter: Starter
        self._suspender: Suspender
        self._records: dict[str, Record] = {}
        self._kernel_memory = KernelMemoryWatcher(
            options.kernel_memory, self._list_first_processes, self._read_socket_memory, self._kill_sandbox
        )

    # The host ---------------------------------------------------------------------------------------------------------------

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        if self._host is None:
            host = Host(self._options, self._on_exit)
            self._watcher = ExitWatcher(host)
            self._starter = Starter(host, self._watcher)
            self._suspender = Suspender(host, self._watcher, self._starter)
            await host.open()
            self._host = host
        found = await adoption.take_over(
            self._host, self._watcher, self._suspender, self._records, keep=keep, snapshots=snapshots
        )
        self._host.mark_adopted()
        self._update_capabilities()
        self._suspender.start_trial(self._update_capabilities)
        self._starter.prepare()
        self._kernel_memory.start()
        return found

    def _list_first_processes(self) -> dict[str, int]:
        """Return the first processes of running sandboxes. Frozen ones use nothing more, and with cgroup 1 their
        processes cannot die."""
        running = (record for record in self._records.values() if record.alive and not record.frozen)
        return {record.id: record.life.pid for record in running if record.life is not None}

    def _read_socket_memory(self, sandbox: str) -> SocketMemory | None:
        return self.open_host.cgroups.read_socket_memory(sandbox)

    def _kill_sandbox(self, sandbox: str) -> None:
        """End a sandbox whose processes could not be ended one by one, unless it was frozen in the meantime."""
        record = self._records.get(sandbox)
        if record is None or not record.alive or record.pidfd < 0 or record.frozen:
            return
        record.end_reason = record.end_reason or "killed: it used too much kernel memory, and its processes did not end"
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(record.pidfd, signal.SIGKILL)

    def _update_capabilities(self) -> None:
        if self._host is not None:
            self.capabilities = self._suspender.get_capabilities()

    async def wait_for_capabilities(self) -> Capabilities:
        """Return the capabilities after everything has been tested."""
        await self._suspender.wait_for_trial()
        return self.capabilities

    def _on_exit(self, pid: int, code: int) -> None:
        self._watcher.on_exit(pid, code)

    async def close(self) -> None:
        if self._host is None:
            return
        host, self._host = self._host, None
        await self._kernel_memory.stop()
        self._starter.close()
        await self._suspender.close()
        await self._watcher.wait_for_tasks()
        running = any(record.alive for record in self._records.values())
        self._watcher.stop_watching()
        self._records.clear()
        await host.close(everything_ended=not running, keep_ids=self._suspender.has_any)

    @property
    def hairpin(self) -> Hairpin | None:
        network = self.open_host.network
        return network.hairpin if network is not None else None

    def check_room(self) -> None:
        self.open_host.store.check_room()

    async def wait_for_failure(self) -> str:
        return await self.open_host.store.wait_for_failure()

    @property
    def open_host(self) -> Host:
        if self._host is None:
            raise SandyardError("The driver is not open.")
        return self._host

    # Creation ----------------------------------------------------------------------------------------------------------------

    async def create(self, spec: Spec) -> Handle:
        self._check_new_sandbox(spec)

        async def prepare_files() -> None:
            await self.open_host.store.create(spec.id, spec.limits.disk_mb)

        record = Record(spec.id, spec.layers, spec.limits, spec.mounts)
        return await self._run_to_completion(self._create_sandbox(record, spec.network, prepare_files), self.kill)

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        record = self._get_record(handle)
        if record.alive:
            raise ConflictError(f"The sandbox {handle.id} is running.")
        if self._suspender.has(handle.id):
            raise ConflictError(f"The memory of the sandbox {handle.id} is on disk. Restore it, or stop it first.")
        host = self.open_host
        if not host.store.has(handle.id):
            raise NotFoundError(f"The file system of the sandbox {handle.id} no longer exists.")
        self._check_volumes(spec)
        host.memory.check()

        async def prepare_files() -> None:
            await host.store.renew(record.id, spec.limits.disk_mb)

        async def work() -> Handle:
            new = Record(record.id, record.layers, spec.limits, spec.mounts)
            await self._starter.start(new, spec.network, prepare_files)
            self._records[record.id] = new
            return new.make_handle()

        return await self._run_to_completion(work(), self.stop)

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        original = self._get_record(handle)
        self._check_new_sandbox(spec)

        async def prepare_files() -> None:
            async with self._freeze_during(original) as stopped:
                await self.open_host.store.copy(original.id, spec.id, spec.limits.disk_mb, stopped=stopped)

        record = Record(spec.id, original.layers, spec.limits, spec.mounts)
        return await self._run_to_completion(self._create_sandbox(record, spec.network, prepare_files), self.kill)

    def _check_new_sandbox(self, spec: Spec) -> None:
        host = self.open_host
        self._check_rules(spec.network)
        if not _ID_PATTERN.fullmatch(spec.id):
            raise InvalidInputError(f"{spec.id!r} is not a valid sandbox id.")
        if spec.id in self._records:
            raise ConflictError(f"Sandbox {spec.id} already exists.")
        self._check_volumes(spec)
        host.memory.check()
        host.store.check_room()

    def _check_volumes(self, spec: Spec) -> None:
        for mount in spec.mounts:
            if not self.volume_path(mount.volume).is_dir():
                raise NotFoundError(f"Volume {mount.volume} not found.")

    def _check_rules(self, policy: NetworkPolicy) -> None:
        if policy.rules and self.open_host.network is None:
            raise UnsupportedError(
                "Network rules require an engine that runs as root, because sandboxes otherwise have no network in which headers could "
                "be added to requests. Leave out network.rules."
            )

    async def _run_to_completion(self, work: Coroutine[Any, Any, T], undo: Callable[[T], Awaitable[object]]) -> T:
        """Run an operation to its end even if the caller is cancelled, and then undo it: parts of it run in other
        processes and threads and cannot be interrupted."""
        task = self._watcher.track(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:

            async def finish() -> None:
                with contextlib.suppress(SandyardError):
                    await undo(await task)

            await asyncio.shield(self._watcher.track(finish()))
            raise

    async def _create_sandbox(
        self, record: Record, policy: NetworkPolicy, prepare_files: Callable[[], Awaitable[None]]
    ) -> Handle:
        """Create a sandbox. Its record exists in the meantime, so that the id is taken; on failure nothing is left."""
        self._records[record.id] = record
        try:
            await self._starter.start(record, policy, prepare_files)
        except BaseException:
            self._records.pop(record.id, None)
            await self._remove_files(record.id)
            raise
        return record.make_handle()

    async def _remove_files(self, sandbox: str) -> None:
        host = self.open_host
        remove_run_directory(host.run_dir / sandbox)
        await host.store.remove(sandbox)

    # State ------------------------------------------------------------------------------------------------------------------

    def _get_record(self, handle: Handle) -> Record:
        """Return the record. A handle that this driver object does not know is looked up on the host, like in
        `open`."""
        known = self._records.get(handle.id)
        if known is not None:
            return known
        found = parse_record(handle)
        if not self.open_host.store.has(handle.id):
            raise NotFoundError(f"Sandbox {handle.id} not found.")
        return found

    async def condition(self, handle: Handle) -> Condition:
        record = self._records.get(handle.id)
        if record is not None and record.alive:
            return Condition.FROZEN if pause.is_paused(self.open_host, record) else Condition.RUNNING
        if self._suspender.has(handle.id) and self.open_host.store.has(handle.id):
            return Condition.SUSPENDED
        return Condition.STOPPED if self.open_host.store.has(handle.id) else Condition.ABSENT

    async def wait_for_exit(self, handle: Handle) -> str:
        record = self._records.get(handle.id)
        if record is None or record.life is None:
            return "it is not running"
        return await asyncio.shield(record.ended)

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        record = self._records.get(handle.id)
        if record is None or not record.alive or record.life is None:
            raise UnreachableError(f"The sandbox {handle.id} is not running.")
        if record.frozen:
            raise UnreachableError(f"The sandbox {handle.id} is paused.")
        path = self.open_host.get_agent_path(record.id)
        if port == AGENT_PORT:
            return await connections.connect_agent(path, record.id)
        if self.open_host.rootless:
            return await connections.connect_port_through_agent(path, record.id, port)
        return await connections.connect_port_from_outside(record.life.pid, port)

    async def stats(self, handle: Handle) -> Stats:
        record, host = self._get_record(handle), self.open_host
        usage = host.cgroups.read_usage(record.id)
        cpu, memory = usage.cpu_seconds, usage.memory
        if record.alive and record.life is not None and not host.cgroups.reports_usage:
            measured_cpu, measured_memory = processes.measure_usage(record.life.pid)
            cpu, memory = cpu or measured_cpu, memory or measured_memory
        return Stats(
            cpu_seconds=cpu,
            cpu_count=record.limits.cpu_count,
            memory_used=memory,
            memory_cache=usage.cache,
            memory_total=record.limits.memory_mb << 20,
            disk_used=await host.store.measure_usage(record.id),
            disk_total=record.limits.disk_mb << 20,
        )

    # Pausing and copying --------------------------------------------------------------------------------------------------------

    def _get_running(self, handle: Handle) -> Record:
        record = self._get_record(handle)
        if not record.alive:
            raise ConflictError(f"The sandbox {handle.id} is not running.")
        return record

    async def freeze(self, handle: Handle) -> None:
        await pause.freeze(self.open_host, self._get_running(handle))

    async def thaw(self, handle: Handle) -> None:
        pause.thaw(self.open_host, self._get_running(handle))

    @contextlib.asynccontextmanager
    async def _freeze_during(self, record: Record) -> AsyncIterator[bool]:
        """Freeze the sandbox while the block runs, and restore its condition afterwards. Yields whether it is
        stopped."""
        if not record.alive:
            yield not self._suspender.has(record.id)  # its memory depends on its files
        elif pause.is_paused(self.open_host, record):
            yield False
        else:
            await pause.freeze(self.open_host, record)
            try:
                yield False
            finally:
                pause.thaw(self.open_host, record)

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        if not _ID_PATTERN.fullmatch(snapshot_id):
            raise InvalidInputError(f"{snapshot_id!r} is not a valid snapshot id.")
        record, store = self._get_record(handle), self.open_host.store
        store.check_room()

        async def work() -> Layers:
            try:
                async with self._freeze_during(record) as stopped:
                    top = await store.snapshot(record.id, snapshot_id, stopped=stopped)
            except BaseException:
                await store.remove_snapshot(snapshot_id)
                raise
            return (*top, *record.layers)

        return await self._run_to_completion(work(), lambda _: store.remove_snapshot(snapshot_id))

    async def delete_snapshot(self, snapshot_id: str) -> None:
        await self.open_host.store.remove_snapshot(snapshot_id)

    async def suspend(self, handle: Handle) -> Handle:
        async def keep_suspended(_: Handle) -> None:
            """Do nothing: it may stay suspended."""

        return await self._run_to_completion(
            self._suspender.suspend(self._get_running(handle), self._end_processes), keep_suspended
        )

    async def restore(self, handle: Handle) -> Handle:
        record = self._get_record(handle)
        if record.alive or not self._suspender.has(handle.id):
            raise ConflictError(f"The sandbox {handle.id} is not suspended.")
        new = record.renew()

        async def work() -> Handle:
            restored = await self._suspender.restore(new)
            self._records[new.id] = new
            return restored

        async def undo(restored: Handle) -> None:
            await self.freeze(restored)
            await self.suspend(restored)

        return await self._run_to_completion(work(), undo)

    # Stopping -----------------------------------------------------------------------------------------------------------------------

    async def stop(self, handle: Handle) -> Handle:
        record = self._get_record(handle)
        if record.alive:
            await self._end_processes(record, "stopped")
            self._watcher.track(self.open_host.store.flush())  # its files are all that remains of it
        await self._suspender.delete_images(record.id)
        return record.renew().make_handle()

    async def kill(self, handle: Handle) -> None:
        record = self._records.get(handle.id)
        if record is not None:
            await self._end_processes(record, "killed")
            self._records.pop(record.id, None)
        await self._suspender.delete_images(handle.id)
        await self._remove_files(handle.id)

    async def _end_processes(self, record: Record, reason: str) -> None:
        """End all processes and return when none is left. The slot's resources are freed in the background."""
        if not record.alive:
            return
        record.end_reason = record.end_reason or reason
        with contextlib.suppress(ProcessLookupError):
            if record.pidfd >= 0:  # ending the first process ends all others, including those in no cgroup
                signal.pidfd_send_signal(record.pidfd, signal.SIGKILL)
        self.open_host.cgroups.kill(record.id)
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                await asyncio.shield(record.ended)
        except TimeoutError:
            raise SandyardError(f"Could not end the processes of the sandbox {record.id}.") from None

    # Volumes ----------------------------------------------------------------------------------------------------------------------

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        self.open_host.store.check_room()
        await self.open_host.store.create_volume(_check_volume_id(volume_id), size_mb)

    async def delete_volume(self, volume_id: str) -> None:
        await self.open_host.store.remove_volume(_check_volume_id(volume_id))

    def volume_path(self, volume_id: str) -> Path:
        return self.open_host.store.path / VOLUMES / _check_volume_id(volume_id)

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        record, host = self._get_running(handle), self.open_host
        self._check_rules(policy)
        if host.network is not None and record.life is not None:
            await host.network.set_policy(record.life.slot, policy)
        policies.save(host.run_dir / record.id, policy)

    async def take_denied(self, handle: Handle) -> Collection[Denied]:
        record, network = self._get_running(handle), self.open_host.network
        if network is None or record.life is None:
            return ()
        return await network.take_denied(record.life.slot)


def _check_volume_id(volume_id: str) -> str:
    if not _ID_PATTERN.fullmatch(volume_id):
        raise InvalidInputError(f"{volume_id!r} is not a valid volume id.")
    return volume_id
