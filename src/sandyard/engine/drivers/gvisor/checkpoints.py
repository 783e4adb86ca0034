"""Move the memory of gVisor sandboxes to disk and back, as checkpoints of runsc.

A sandbox is suspended exactly if it is not running and its checkpoint is valid, so any engine can detect it, also after a
crash in the middle and after a reboot. A checkpoint is complete or absent. Before its processes run again it is marked as
used, because the files change from then on and the old memory must never be restored with them.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sandyard.engine.contract import Handle, Limits
from sandyard.engine.drivers.gvisor import control
from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.engine.drivers.machine import pause, policies, starter
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.engine.drivers.machine.runtime import EndProcesses, Started, StartPlan, StartResources
from sandyard.kit.errors import ConflictError, SandyardError, UnsupportedError

DIRECTORY = "suspended-gvisor"
_USED_MARK = "used"


class NotStartedError(SandyardError):
    """gVisor failed before any process of the sandbox was running."""


class Processes(Protocol):
    """What checkpoints need from the runtime."""

    @property
    def runsc(self) -> Runsc: ...

    def make_cgroup_limits(self, limits: Limits) -> Limits: ...

    async def launch_from(self, plan: StartPlan, resources: StartResources, checkpoint: Path | None) -> Started:
        """Raises NotStartedError."""
        ...

    def has_begun(self, sandbox: str) -> bool: ...

    def get_state_folder(self, sandbox: str) -> Path: ...

    def get_control_path(self, sandbox: str) -> str: ...


class _Restorer:
    """Starts a sandbox from its checkpoint."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.make_cgroup_limits = processes.make_cgroup_limits

    async def launch(self, plan: StartPlan, resources: StartResources) -> Started:
        mark = self._folder / _USED_MARK
        mark.touch()
        try:
            return await self._processes.launch_from(plan, resources, self._folder)
        except BaseException as error:
            if isinstance(error, NotStartedError) or not self._processes.has_begun(plan.id):
                mark.unlink()
            raise


class Checkpoints:
    """The memory of suspended sandboxes. See `runtime.MemoryImages` for the contract of each operation."""

    def __init__(self, machine: Machine, watcher: ExitWatcher, processes: Processes) -> None:
        self._machine = machine
        self._watcher = watcher
        self._processes = processes
        self._folder = machine.options.data_dir / DIRECTORY

    # Stored checkpoints -------------------------------------------------------------------------------------------------

    def has(self, sandbox: str) -> bool:
        folder = self._folder / sandbox
        return policies.is_sealed(folder) and not (folder / _USED_MARK).exists()

    @property
    def has_any(self) -> bool:
        return self._folder.is_dir() and any(self.has(entry.name) for entry in self._folder.iterdir())

    async def take_over(self, stopped: Collection[str]) -> frozenset[str]:
        found = frozenset(name for name in stopped if self.has(name))
        for folder in self._folder.iterdir() if self._folder.is_dir() else ():
            if folder.name not in found:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return found

    async def delete_images(self, sandbox: str) -> None:
        folder = self._folder / sandbox
        if folder.exists():
            (folder / _USED_MARK).touch()  # invalidates it at once; removing it takes a while
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    # To disk ------------------------------------------------------------------------------------------------------------

    async def suspend(self, record: Record, end: EndProcesses) -> Handle:
        machine = self._machine
        if not record.alive or not pause.is_paused(machine, record):
            raise ConflictError(f"The sandbox {record.id} is not paused with its memory.")
        folder = self._folder / record.id
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)
            await self._save(record, folder)
            await machine.store.flush()  # otherwise a crash would leave its files and its memory inconsistent
            await asyncio.to_thread(policies.seal_memory, folder, policies.load(machine.run_dir / record.id))
            await end(record, "suspended")
        except (
            BaseException
        ) as error:  # it may continue to run, and then the memory must never be restored with its files
            await self.delete_images(record.id)
            if isinstance(error, OSError):
                raise translate_os_error(error, f"Could not write the memory of the sandbox {record.id}") from error
            raise
        handle = record.renew().make_handle()
        return replace(handle, data={**handle.data, "suspended": True})

    async def _save(self, record: Record, folder: Path) -> None:
        """Write the memory of a frozen sandbox. Its kernel must run for that, but its processes stay paused. On failure
        the sandbox is frozen again."""
        machine, path = self._machine, self._processes.get_control_path(record.id)
        machine.cgroups.thaw(record.id)
        paused = False
        try:
            await control.call(path, "Pause")
            paused = True
            await self._run_checkpoint(record.id, folder)
        except BaseException:
            if paused:
                await control.call(path, "Resume")
            await pause.freeze(machine, record)
            raise

    async def _run_checkpoint(self, sandbox: str, folder: Path) -> None:
        runsc = self._processes.runsc
        arguments = ("checkpoint", f"--image-path={folder}", "--leave-running", "--compression=none", "--direct")
        process = await asyncio.create_subprocess_exec(
            *runsc.make_command(self._processes.get_state_folder(sandbox), *arguments, sandbox),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            lines = output.decode(errors="replace").strip().splitlines()
            raise UnsupportedError(
                f"The memory of the sandbox {sandbox} can't be moved to disk: {lines[-1] if lines else 'unknown error'}"
            )

    # From disk ----------------------------------------------------------------------------------------------------------

    async def restore(self, record: Record) -> Handle:
        machine, folder = self._machine, self._folder / record.id
        machine.memory.check()

        async def prepare_files() -> None:
            await machine.store.renew(record.id, record.limits.disk_mb)

        restorer, policy = _Restorer(self._processes, folder), policies.load_sealed(folder)
        await starter.start(machine, self._watcher, restorer, record, policy=policy, prepare_files=prepare_files)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return record.make_handle()
