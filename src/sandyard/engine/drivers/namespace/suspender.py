"""Move memory to disk and back: what the driver's `suspend` and `restore` do in addition to CRIU (see `criu`).

A sandbox is suspended exactly if it is not running and its images are valid, so any engine can detect it, also after a
crash in the middle and after a reboot. Images are complete or absent; as soon as its processes run again they are
marked as used, because the files change from then on and the old memory must never be restored with them. A suspended
sandbox keeps its slot, because its memory contains that slot's user ids. Everything else is freed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path

from sandyard.engine.contract import Handle, NetworkPolicy
from sandyard.engine.drivers.machine import pause, policies, processes
from sandyard.engine.drivers.machine.cgroups.discovery import UNIFIED, Hierarchy
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher, remove_run_directory
from sandyard.engine.drivers.machine.instance import UIDS_PER_SLOT
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.engine.drivers.machine.runtime import EndProcesses, Starter, StartPlan, StartResources
from sandyard.engine.drivers.machine.starter import gather_both
from sandyard.engine.drivers.namespace.criu import probe, scan
from sandyard.engine.drivers.namespace.criu.checkpoint import Criu, Frozen, RestoreTarget
from sandyard.engine.drivers.namespace.criu.child import USED_MARK
from sandyard.kit.errors import BusyError, ConflictError, SandyardError, UnsupportedError

DIRECTORY = "suspended"
_FACTS = "sandbox.json"
_TRIAL_RUNNING = "a test of moving memory to disk is still running"
_SETTLE_TIMEOUT_S = 5.0


class Suspender:
    """The memory of suspended sandboxes of the namespace runtime. See `runtime.MemoryImages` for the contract of each
    operation. Lives from the `open` of its runtime to its `close`."""

    def __init__(self, machine: Machine, watcher: ExitWatcher, starter: Starter) -> None:
        self._machine = machine
        self._watcher = watcher
        self._starter = starter
        self.folder = machine.options.data_dir / DIRECTORY
        self._criu: Criu | None = None
        self._unsupported_reason = _TRIAL_RUNNING
        self._trial: asyncio.Task[None] | None = None

    # Support -------------------------------------------------------------------------------------------------

    def start_trial(self, on_done: Callable[[], None]) -> None:
        """Test in the background whether suspending works here; this takes a second. `on_done` is called when the
        result is known."""
        if self._trial is None:
            self._trial = asyncio.get_running_loop().create_task(self._run_trial(on_done))

    async def _run_trial(self, on_done: Callable[[], None]) -> None:
        try:
            if not self._machine.cgroups.can_freeze:
                raise UnsupportedError("moving memory to disk requires a cgroup freezer")
            self._criu = await probe.find_working()
        except (SandyardError, OSError) as error:
            self._unsupported_reason = str(error)
        on_done()

    async def wait_for_trial(self) -> None:
        if self._trial is not None:
            await asyncio.wait({self._trial})

    async def close(self) -> None:
        if self._trial is not None:
            self._trial.cancel()
            await asyncio.wait({self._trial})

    @property
    def unsupported_reason(self) -> str | None:
        """Return why memory can't be moved to disk, as far as it is known by now. None if it can."""
        return None if self._criu is not None else self._unsupported_reason

    async def _get_criu(self) -> Criu:
        await self.wait_for_trial()
        if self._criu is None:
            raise UnsupportedError(f"Moving memory to disk is not supported here: {self._unsupported_reason}.")
        return self._criu

    # Stored images ----------------------------------------------------------------------------------------------------------

    def has(self, sandbox: str) -> bool:
        """Return whether there is memory on disk that can be restored."""
        images = self.folder / sandbox
        return policies.is_sealed(images) and not (images / USED_MARK).exists()

    @property
    def has_any(self) -> bool:
        return self.folder.is_dir() and any(self.has(entry.name) for entry in self.folder.iterdir())

    async def take_over(self, stopped: Collection[str]) -> frozenset[str]:
        """Return which of these sandboxes, which are not running, are suspended. Keeps their slots and removes all
        other images."""
        found = frozenset(name for name in stopped if self.has(name))
        if self.folder.is_dir():
            await Criu.sweep(self.folder, found)
        slots = {slot for name in found if (slot := self._read_slot(name)) is not None}
        for slot in self._machine.slots.kept - slots:
            self._machine.slots.release_kept(slot)
        for slot in slots:
            self._machine.slots.keep(slot)
        return found

    def _read_slot(self, sandbox: str) -> int | None:
        """Return the slot whose user ids its memory contains, or None if they no longer belong to this engine."""
        try:
            owner = int(json.loads((self.folder / sandbox / _FACTS).read_text())["owner"])
        except (OSError, ValueError, KeyError):
            return None
        slot, rest = divmod(owner - self._machine.instance.first_uid, UIDS_PER_SLOT)
        return slot if not rest and 0 <= slot < self._machine.slots.count else None

    async def continue_processes(self, running: Collection[Record]) -> None:
        """Do nothing: they are paused only by freezing the sandbox."""

    async def delete_images(self, sandbox: str) -> None:
        """Remove its memory. Idempotent."""
        images = self.folder / sandbox
        if not images.exists():
            return
        slot = self._read_slot(sandbox) if self.has(sandbox) else None
        (images / USED_MARK).touch()  # invalidates it at once; removing it takes a while
        if slot is not None:
            self._machine.slots.release_kept(slot)
        await asyncio.to_thread(shutil.rmtree, images, ignore_errors=True)

    @property
    def _freezer(self) -> Hierarchy:
        found = (h for h in self._machine.cgroups.hierarchies if h.name == UNIFIED or "freezer" in h.controllers)
        return min(found, key=lambda hierarchy: hierarchy.name != UNIFIED)

    # To disk ----------------------------------------------------------------------------------------------------------------

    async def suspend(self, record: Record, end: EndProcesses) -> Handle:
        """Suspend the sandbox. `end` ends all processes of a sandbox. A failure before that leaves it frozen."""
        try:
            return await self._suspend(record, end)
        except OSError as error:
            raise translate_os_error(error, f"Could not write the memory of the sandbox {record.id}") from error

    async def _suspend(self, record: Record, end: EndProcesses) -> Handle:
        criu, life, machine = await self._get_criu(), record.life, self._machine
        if life is None or not record.alive or not pause.is_paused(machine, record):
            raise ConflictError(f"The sandbox {record.id} is not paused with its memory.")
        if record.containers:
            raise UnsupportedError(
                f"The memory of the sandbox {record.id} stays in RAM: CRIU cannot save the namespaces of its containers."
            )
        await self._settle(record, life)
        images = self.folder / record.id
        self.folder.mkdir(mode=0o700, exist_ok=True)
        owner = scan.read_root_uid(life.pid)
        # Its stderr: an in-memory file that belongs to the host's root cannot be restored.
        os.chown(f"/proc/{life.pid}/fd/2", owner, owner)
        volumes = tuple(mount.volume for mount in record.mounts)
        await criu.dump(Frozen(life.pid, self._freezer.root / record.id, volumes=volumes), images)
        try:
            await machine.store.flush()  # otherwise a crash would leave its files and its memory inconsistent
            await asyncio.to_thread(policies.seal_memory, images, policies.load(machine.run_dir / record.id))
            machine.slots.keep(life.slot)
            await end(record, "suspended")
        except BaseException:  # it may continue to run, and then the memory must never be restored with its files
            await self.delete_images(record.id)
            raise
        while life.slot in machine.slots.used:  # noqa: ASYNC110 - until its network is given back, in milliseconds
            await asyncio.sleep(0.002)
        handle = record.renew().make_handle()
        return replace(handle, data={**handle.data, "suspended": True})

    async def _settle(self, record: Record, life: Life) -> None:
        """Bring a frozen sandbox to a state that can be saved: let it run for short moments until it reaches one, because
        freezing stops it at an arbitrary instant. Nobody can connect in the meantime, because it still counts as paused.
        Raises BusyError after a few seconds."""
        machine, loop = self._machine, asyncio.get_running_loop()
        deadline, moment = loop.time() + _SETTLE_TIMEOUT_S, 0.002
        while (obstacle := self._find_obstacle(record, life)) is not None:
            if loop.time() > deadline:
                raise BusyError(f"The memory of the sandbox {record.id} can't be moved to disk now: {obstacle}.")
            machine.cgroups.thaw(record.id)
            try:
                await asyncio.sleep(moment)
            finally:
                await pause.freeze(machine, record)
            moment = min(moment * 1.5, 0.1)

    def _find_obstacle(self, record: Record, life: Life) -> str | None:
        if scan.list_connections(life.pid):  # the engine has closed its own, but the agent has not noticed yet
            return "connections to its agent are still open"
        if self._freezer.version == 2:  # here frozen processes appear as sleeping; state D means waiting in the kernel
            for pid in scan.list_pids(self._freezer.root / record.id):
                if any(state == "D" for state in _list_thread_states(pid)):
                    return "a process is starting another one, or waits for a device"
        return None

    # From disk ---------------------------------------------------------------------------------------------------------------

    async def restore(self, record: Record) -> Handle:
        """Restore the sandbox into this record, running. A failure leaves only the images."""
        try:
            return await self._restore(record)
        except OSError as error:
            raise translate_os_error(error, f"Could not restore the memory of the sandbox {record.id}") from error

    def copy_memory(
        self, record: Record, copy_files: Callable[[], Awaitable[None]]
    ) -> contextlib.AbstractAsyncContextManager[Starter]:
        """Raise UnsupportedError: the memory contains the user ids of the sandbox's slot, which a copy cannot have."""
        raise UnsupportedError(f"The memory of the sandbox {record.id} can't be copied at this isolation level.")

    async def _restore(self, record: Record) -> Handle:
        machine, images = self._machine, self.folder / record.id
        criu = self._criu or await Criu.find()  # it was tested before this memory was written
        slot = self._read_slot(record.id)
        if slot is None:
            raise ConflictError(
                f"The memory of the sandbox {record.id} can't be restored: its user ids now belong to another engine."
            )
        machine.memory.check()
        machine.slots.claim(slot)
        run, policy, has_run = machine.run_dir / record.id, policies.load_sealed(images), False
        try:
            async with self._hold_namespaces(record, policy, slot) as holder:
                target = RestoreTarget(
                    holder, Path("/"), tuple(machine.cgroups.list_groups(record.id)), run / "agent.sock"
                )
                pid = await criu.restore(images, target)
                has_run = True
            start = processes.read_start_time(pid)
            pidfd = None if start is None else processes.open_pidfd(pid, start)
            if start is None or pidfd is None:
                raise SandyardError(f"The sandbox {record.id} ended immediately after it was restored.")  # noqa: TRY301
        except BaseException:
            if await machine.cgroups.kill_and_remove(record.id) and not has_run:
                (images / USED_MARK).unlink(missing_ok=True)  # CRIU failed before it let anything run
            remove_run_directory(run)
            await self._watcher.free_slot(slot)
            if not self.has(record.id):
                machine.slots.release_kept(slot)
            raise
        stderr_fd = -1
        with contextlib.suppress(OSError):
            stderr_fd = os.open(f"/proc/{pid}/fd/2", os.O_RDONLY | os.O_CLOEXEC)
        self._watcher.watch(record, Life(pid, start, slot), pidfd, stderr_fd, reports_exit=False)
        machine.slots.reuse_kept(slot)
        await asyncio.to_thread(shutil.rmtree, images, ignore_errors=True)
        return record.make_handle()

    @contextlib.asynccontextmanager
    async def _hold_namespaces(self, record: Record, policy: NetworkPolicy, slot: int) -> AsyncIterator[int]:
        """Create everything of a sandbox except its processes, in a slot that belongs to the caller, who also cleans up
        after a failure. Yields the pid of a process that is in all its namespaces and ends with the context."""
        machine = self._machine
        resources, pidfd = StartResources(machine, record.id, record.limits), -1
        try:
            policies.create_directory(machine.run_dir / record.id, policy)
            net, _ = await gather_both(
                machine.acquire_network(slot, policy), machine.store.renew(record.id, record.limits.disk_mb)
            )
            resources.create()
            layers = machine.find_layers(record.layers)
            plan = StartPlan(record.id, slot, layers, record.limits, net, record.mounts, record.containers, hold=True)
            started = await self._starter.launch(plan, resources)
            pidfd = started.pidfd
            yield started.life.pid
        except OSError as error:
            raise translate_os_error(error, f"Could not start the sandbox {record.id}") from error
        finally:
            resources.close()
            if pidfd >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                os.close(pidfd)


def _list_thread_states(pid: int) -> Iterator[str]:
    """Yield the states of its threads."""
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):
            yield processes.read_text(task).rpartition(")")[2].split()[0]
