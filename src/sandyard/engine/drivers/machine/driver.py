"""The driver for sandboxes on this machine. See `contract.Driver` for the contract of each operation.

Each sandbox belongs to one of several runtimes, which differ in how they isolate processes. Everything else is the
same: copy-on-write storage with disk limits, and a network with policies. Without root there is what the kernel allows
a user; `capabilities.missing` lists what is not available.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from sandyard.engine.contract import (
    Capabilities,
    Condition,
    DeniedAttempt,
    DiskKind,
    DiskReport,
    DiskUse,
    Hairpin,
    Handle,
    Isolation,
    Layers,
    NetworkPolicy,
    OnDoubt,
    Room,
    Spec,
    Stats,
    ignore_doubt,
)
from sandyard.engine.drivers.machine import adoption, fuse, pause, policies, processes, starter
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.machine.machine import DriverOptions, Machine, PrivilegedFiles
from sandyard.engine.drivers.machine.record import Record, parse_record
from sandyard.engine.drivers.machine.runtime import MemoryImages, Runtime, Starter
from sandyard.engine.drivers.machine.store.base import VOLUMES
from sandyard.engine.drivers.machine.store.trees import measure_disk_usage
from sandyard.engine.drivers.room import read_room
from sandyard.engine.drivers.volume_files.files import LocalVolumeFiles, VolumeThreads
from sandyard.kit.errors import (
    ConflictError,
    FullError,
    InvalidInputError,
    NotFoundError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)
from sandyard.kit.logging import get_logger

_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_KILL_TIMEOUT_S = 15.0
_FUSE_WAIT_S = 1.0

log = get_logger(__name__)

T = TypeVar("T")


class MachineDriver:
    """Runs sandboxes on this machine, with a runtime for each isolation level. `open` must be called first."""

    name = "namespace"  # as the settings call it
    capabilities: Capabilities

    def __init__(self, options: DriverOptions, runtimes: Sequence[Runtime], privileged_files: PrivilegedFiles) -> None:
        self._options = options
        self.runtimes = {runtime.isolation.value: runtime for runtime in runtimes}
        self._privileged_files = privileged_files
        self._machine: Machine | None = None
        self._watcher: ExitWatcher
        self._records: dict[str, Record] = {}
        self._volume_threads = VolumeThreads()
        self.on_doubt: OnDoubt = ignore_doubt  # never called: the end of a sandbox is always noticed on this machine

    # The machine ------------------------------------------------------------------------------------------------------

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        for handle in keep:
            self._get_runtime(handle)
        if self._machine is None:
            self._machine = await self._open_machine()
        found = await adoption.take_over(
            self._machine, self._watcher, self.runtimes.values(), self._records, keep=keep, snapshots=snapshots
        )
        self._machine.mark_adopted()
        self._update_capabilities()
        for runtime in self.runtimes.values():
            runtime.start_background_work()
        return found

    async def _open_machine(self) -> Machine:
        machine = Machine(self._options, self._privileged_files)
        await machine.open()
        self._watcher = ExitWatcher(machine)
        try:
            for runtime in self.runtimes.values():
                await runtime.open(machine, self._watcher, self._update_capabilities)
        except BaseException:
            await machine.store.close(unmount=False)
            raise
        return machine

    def _update_capabilities(self) -> None:
        if self._machine is not None:
            known = self._machine.get_capabilities()
            for runtime in self.runtimes.values():
                known = runtime.complete_capabilities(known)
            self.capabilities = known

    async def wait_for_capabilities(self) -> Capabilities:
        """Return the capabilities after everything has been tested."""
        for runtime in self.runtimes.values():
            await runtime.wait_for_capabilities()
        return self.capabilities

    def _get_runtime(self, handle: Handle) -> Runtime:
        """Return the runtime of a sandbox. Raises InvalidInputError for a handle of another driver."""
        try:
            return self.runtimes[handle.driver]
        except KeyError:
            known = " and ".join(self.runtimes)
            raise InvalidInputError(
                f"The sandbox {handle.id} was created by the driver {handle.driver}, but this engine supports only {known}."
            ) from None

    async def close(self) -> None:
        if self._machine is None:
            return
        self._volume_threads.close()
        machine, self._machine = self._machine, None
        runtimes = self.runtimes.values()
        for runtime in runtimes:
            await runtime.stop_background_work()
        await self._watcher.wait_for_tasks()
        running = any(record.alive for record in self._records.values())
        self._watcher.stop_watching()
        self._records.clear()
        await machine.store.close(unmount=False)
        for runtime in runtimes:
            await runtime.close()
        await machine.close(everything_ended=not running, keep_ids=any(runtime.images.has_any for runtime in runtimes))

    @property
    def hairpin(self) -> Hairpin | None:
        network = self.machine.network
        return network.hairpin if network is not None else None

    def find_layers(self, layers: Layers) -> Layers:
        return self.machine.find_layers(layers)

    def get_room(self, handle: Handle | None = None) -> Room:
        full = None
        try:
            self.machine.store.check_room()
        except FullError as error:
            full = error.message
        return read_room(self._options.data_dir, full)

    async def measure_disk(self) -> DiskReport:
        stored = await self.machine.store.measure_disk()
        folders = [runtime.images.folder for runtime in self.runtimes.values()]
        memory = await asyncio.to_thread(_measure_memory, folders)
        return DiskReport((*stored.uses, memory), stored.paths | {str(folder) for folder in folders})

    async def wait_for_failure(self) -> str:
        return await self.machine.store.wait_for_failure()

    @property
    def machine(self) -> Machine:
        if self._machine is None:
            raise SandyardError("The driver is not open.")
        return self._machine

    # Creation ---------------------------------------------------------------------------------------------------------

    async def create(self, spec: Spec) -> Handle:
        self._check_new_sandbox(spec, spec.isolation)

        async def prepare_files() -> None:
            await self.machine.store.create(spec.id, spec.limits.disk_mb)

        record = Record(spec.id, spec.isolation.value, spec.layers, spec.limits, spec.mounts, spec.containers)
        return await self._run_to_completion(self._create_sandbox(record, spec.network, prepare_files), self.kill)

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        record = self._get_record(handle)
        if record.alive:
            raise ConflictError(f"The sandbox {handle.id} is running.")
        if self._get_images(record).has(handle.id):
            raise ConflictError(f"The memory of the sandbox {handle.id} is on disk. Restore it, or stop it first.")
        machine = self.machine
        if not machine.store.has(handle.id):
            raise NotFoundError(f"The file system of the sandbox {handle.id} no longer exists.")
        self._check_containers(spec, Isolation(record.driver))
        self._check_volumes(spec)
        machine.memory.check()

        async def prepare_files() -> None:
            await machine.store.renew(record.id, spec.limits.disk_mb)

        async def work() -> Handle:
            new = Record(record.id, record.driver, record.layers, spec.limits, spec.mounts, spec.containers)
            await self._start(new, spec.network, prepare_files)
            self._records[record.id] = new
            return new.make_handle()

        return await self._run_to_completion(work(), self.stop)

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        original = self._get_record(handle)
        self._check_new_sandbox(spec, Isolation(original.driver))

        async def prepare_files() -> None:
            async with self._freeze_during(original) as stopped:
                await self.machine.store.copy(original.id, spec.id, spec.limits.disk_mb, stopped=stopped)

        record = Record(spec.id, original.driver, original.layers, spec.limits, spec.mounts, spec.containers)
        return await self._run_to_completion(self._create_sandbox(record, spec.network, prepare_files), self.kill)

    async def fork_with_memory(self, handle: Handle, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        original = self._get_running(handle)
        if self._get_runtime(handle).isolation not in self.capabilities.memory_fork:
            raise UnsupportedError(
                f"The sandbox {handle.id} has the isolation level {original.driver} and cannot be forked with its memory. "
                f"Use {Isolation.GVISOR}, or fork only its files."
            )
        for spec in specs:
            self._check_new_sandbox(spec, Isolation(original.driver))

        return await self._run_to_completion(self._fork_with_memory(original, specs), self._kill_all)

    async def _fork_with_memory(self, original: Record, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        store = self.machine.store

        async def copy_files() -> None:
            for spec in specs:
                await store.copy(original.id, spec.id, spec.limits.disk_mb, stopped=False)

        async def start(spec: Spec, memory_starter: Starter) -> Handle:
            async def prepare_files() -> None:
                """Do nothing: they were copied with the memory."""

            record = replace(original.renew(), id=spec.id)
            return await self._create_sandbox(record, spec.network, prepare_files, memory_starter)

        try:
            async with self._get_images(original).copy_memory(original, copy_files) as memory_starter:
                started = (start(spec, memory_starter) for spec in specs)
                # All of them must have ended before the copy of the memory is deleted, even if one of them raises.
                outcomes = await asyncio.gather(*started, return_exceptions=True)
        except BaseException:
            for spec in specs:
                await self._remove_files(spec.id)
            raise
        results = [outcome for outcome in outcomes if isinstance(outcome, (Handle, SandyardError))]
        for outcome in outcomes:
            if isinstance(outcome, BaseException) and not isinstance(outcome, SandyardError):
                await self._kill_all(results)
                raise outcome
        return results

    async def _kill_all(self, results: Sequence[Handle | SandyardError]) -> None:
        """Kill the sandboxes among these results, all of them even if one cannot be killed."""
        kills = (self.kill(result) for result in results if isinstance(result, Handle))
        await asyncio.gather(*kills, return_exceptions=True)

    def _check_new_sandbox(self, spec: Spec, isolation: Isolation) -> None:
        machine = self.machine
        self._check_rules(spec.network)
        if not _ID_PATTERN.fullmatch(spec.id):
            raise InvalidInputError(f"{spec.id!r} is not a valid sandbox id.")
        if spec.id in self._records:
            raise ConflictError(f"Sandbox {spec.id} already exists.")
        self._check_containers(spec, isolation)
        self._check_volumes(spec)
        machine.memory.check()
        machine.store.check_room()

    def _check_containers(self, spec: Spec, isolation: Isolation) -> None:
        if spec.containers:
            self.capabilities.check_containers(isolation)

    def _check_volumes(self, spec: Spec) -> None:
        for mount in spec.mounts:
            if not self._get_volume_path(mount.volume).is_dir():
                raise NotFoundError(f"Volume {mount.volume} not found.")

    def _check_rules(self, policy: NetworkPolicy) -> None:
        if policy.rules and self.machine.network is None:
            raise UnsupportedError(
                "Network rules require an engine that runs as root: otherwise, sandboxes have no network. Leave out network.rules, or run "
                "the engine as root."
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
        self,
        record: Record,
        policy: NetworkPolicy,
        prepare_files: Callable[[], Awaitable[None]],
        memory_starter: Starter | None = None,
    ) -> Handle:
        """Create a sandbox. Its record exists from the beginning, so that the id is taken; on failure nothing is left.

        `memory_starter` starts it with a copy of another sandbox's memory.
        """
        self._records[record.id] = record
        try:
            await self._start(record, policy, prepare_files, memory_starter)
        except BaseException:
            self._records.pop(record.id, None)
            await self._remove_files(record.id)
            raise
        return record.make_handle()

    async def _start(
        self,
        record: Record,
        policy: NetworkPolicy,
        prepare_files: Callable[[], Awaitable[None]],
        memory_starter: Starter | None = None,
    ) -> None:
        await starter.start(
            self.machine,
            self._watcher,
            memory_starter or self.runtimes[record.driver],
            record,
            policy=policy,
            prepare_files=prepare_files,
        )

    async def _remove_files(self, sandbox: str) -> None:
        remove_run_directory(self.machine.run_dir / sandbox)
        await self.machine.store.remove(sandbox)

    # State ------------------------------------------------------------------------------------------------------------

    def _get_record(self, handle: Handle) -> Record:
        """Return the record of a sandbox. If this driver object does not know it, return a new one, not running. Raises
        NotFoundError if the sandbox has no files."""
        known = self._records.get(handle.id)
        if known is not None:
            return known
        self._get_runtime(handle)
        found = parse_record(handle)
        if not self.machine.store.has(handle.id):
            raise NotFoundError(f"Sandbox {handle.id} not found.")
        return found

    def _get_images(self, record: Record) -> MemoryImages:
        return self.runtimes[record.driver].images

    async def get_condition(self, handle: Handle) -> Condition:
        record = self._records.get(handle.id)
        if record is not None and record.alive:
            return Condition.FROZEN if pause.is_paused(self.machine, record) else Condition.RUNNING
        if self._get_runtime(handle).images.has(handle.id) and self.machine.store.has(handle.id):
            return Condition.SUSPENDED
        return Condition.STOPPED if self.machine.store.has(handle.id) else Condition.ABSENT

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
        return await self.runtimes[record.driver].connect(record, port)

    async def get_stats(self, handle: Handle) -> Stats:
        record, machine = self._get_record(handle), self.machine
        usage = machine.cgroups.read_usage(record.id)
        cpu, memory = usage.cpu_seconds, usage.memory
        if record.alive and record.life is not None and not machine.cgroups.reports_usage:
            measured_cpu, measured_memory = processes.measure_usage(record.life.pid)
            cpu, memory = cpu or measured_cpu, memory or measured_memory
        return Stats(
            cpu_seconds=cpu,
            cpu_count=record.limits.cpu_count,
            memory_used=memory,
            memory_cache=usage.cache,
            memory_total=record.limits.memory_mb << 20,
            disk_used=await machine.store.measure_usage(record.id),
            disk_total=record.limits.disk_mb << 20,
            oom_kills=usage.oom_kills,
        )

    # Pausing and copying ----------------------------------------------------------------------------------------------

    def _get_running(self, handle: Handle) -> Record:
        record = self._get_record(handle)
        if not record.alive:
            raise ConflictError(f"The sandbox {handle.id} is not running.")
        return record

    async def freeze(self, handle: Handle) -> None:
        await pause.freeze(self.machine, self._get_running(handle))

    async def thaw(self, handle: Handle) -> None:
        record = self._get_running(handle)
        pause.thaw(self.machine, record)
        await self._get_images(record).continue_processes([record])

    @contextlib.asynccontextmanager
    async def _freeze_during(self, record: Record) -> AsyncIterator[bool]:
        """Freeze the sandbox while the block runs, and restore its condition afterwards.

        Yields True if nothing can depend on its files: it is neither running nor suspended.
        """
        if not record.alive:
            yield not self._get_images(record).has(record.id)
        elif pause.is_paused(self.machine, record):
            yield False
        else:
            await pause.freeze(self.machine, record)
            try:
                yield False
            finally:
                pause.thaw(self.machine, record)

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        if not _ID_PATTERN.fullmatch(snapshot_id):
            raise InvalidInputError(f"{snapshot_id!r} is not a valid snapshot id.")
        record, store = self._get_record(handle), self.machine.store
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
        await self.machine.store.remove_snapshot(snapshot_id)

    async def suspend(self, handle: Handle) -> Handle:
        async def keep_suspended(_: Handle) -> None:
            """Do nothing: it may stay suspended."""

        record = self._get_running(handle)
        work = self._get_images(record).suspend(record, self._end_processes)
        return await self._run_to_completion(work, keep_suspended)

    async def restore(self, handle: Handle) -> Handle:
        record = self._get_record(handle)
        images = self._get_images(record)
        if record.alive or not images.has(handle.id):
            raise ConflictError(f"The sandbox {handle.id} is not suspended.")
        new = record.renew()

        async def work() -> Handle:
            restored = await images.restore(new)
            self._records[new.id] = new
            return restored

        async def undo(restored: Handle) -> None:
            await self.freeze(restored)
            await self.suspend(restored)

        return await self._run_to_completion(work(), undo)

    # Stopping ---------------------------------------------------------------------------------------------------------

    async def stop(self, handle: Handle) -> Handle:
        record = self._get_record(handle)
        if record.alive:
            await self._end_processes(record, "stopped")
            self._watcher.track(self.machine.store.flush())  # its files are all that remains of it
        await self._get_images(record).delete_images(record.id)
        return record.renew().make_handle()

    async def kill(self, handle: Handle) -> None:
        record = self._records.get(handle.id)
        if record is not None:
            await self._end_processes(record, "killed")
            self._records.pop(record.id, None)
        await self._get_runtime(handle).images.delete_images(handle.id)
        await self._remove_files(handle.id)

    async def _end_processes(self, record: Record, reason: str) -> None:
        """End all processes and return when none is left. Network and cgroup are freed in the background."""
        if not record.alive:
            return
        record.end_reason = record.end_reason or reason
        with contextlib.suppress(ProcessLookupError):
            if record.pidfd >= 0:  # ending the first process ends all others, including those in no cgroup
                signal.pidfd_send_signal(record.pidfd, signal.SIGKILL)
        self.machine.cgroups.kill(record.id)
        try:
            async with asyncio.timeout(_KILL_TIMEOUT_S):
                while not record.ended.done():
                    await asyncio.wait({record.ended}, timeout=_FUSE_WAIT_S)
                    self._abort_fuse_connections(record)
        except TimeoutError:
            raise SandyardError(
                f"Could not end the processes of the sandbox {record.id}: some still exist after {_KILL_TIMEOUT_S:g} s. Try again."
            ) from None

    def _abort_fuse_connections(self, record: Record) -> None:
        """Let processes end that wait for a FUSE server and have not ended yet."""
        if record.alive and record.containers and record.life is not None:
            aborted = fuse.abort_connections(self.machine.instance.get_uids(record.life.slot))
            if aborted:
                reason = "processes did not end"
                log.warning("fuse_connections_aborted", sandbox=record.id, count=aborted, reason=reason)

    # Volumes ----------------------------------------------------------------------------------------------------------

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        self.machine.store.check_room()
        await self.machine.store.create_volume(_check_volume_id(volume_id), size_mb)

    async def delete_volume(self, volume_id: str) -> None:
        await self.machine.store.remove_volume(_check_volume_id(volume_id))

    def get_volume_files(self, volume_id: str) -> LocalVolumeFiles:
        return LocalVolumeFiles(self._volume_threads, self._get_volume_path(volume_id))

    def _get_volume_path(self, volume_id: str) -> Path:
        return self.machine.store.path / VOLUMES / _check_volume_id(volume_id)

    # Network ----------------------------------------------------------------------------------------------------------

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        record, machine = self._get_running(handle), self.machine
        self._check_rules(policy)
        if machine.network is not None and record.life is not None:
            await machine.network.set_policy(record.life.slot, policy)
        policies.save(machine.run_dir / record.id, policy)

    async def take_denied(self, handle: Handle) -> Collection[DeniedAttempt]:
        record, network = self._get_running(handle), self.machine.network
        if network is None or record.life is None:
            return ()
        return await network.take_denied(record.life.slot)


def _check_volume_id(volume_id: str) -> str:
    if not _ID_PATTERN.fullmatch(volume_id):
        raise InvalidInputError(f"{volume_id!r} is not a valid volume id.")
    return volume_id


def _measure_memory(folders: Sequence[Path]) -> DiskUse:
    """Measure the memory of suspended sandboxes."""
    saved = [entry.path for folder in folders if folder.is_dir() for entry in os.scandir(folder)]
    return DiskUse(DiskKind.MEMORY, sum(measure_disk_usage(path) for path in saved), len(saved))
