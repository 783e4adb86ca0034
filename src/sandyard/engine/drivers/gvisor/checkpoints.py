"""Move the memory of gVisor sandboxes to disk and back, as checkpoints of runsc.

A sandbox is suspended exactly if it is not running and its checkpoint is valid, so any engine can detect it, also after a
crash in the middle and after a reboot. A checkpoint is complete or absent. Before its processes run again it is marked as
used, because the files change from then on and the old memory must never be restored with them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from sandyard.engine.contract import Handle, Limits
from sandyard.engine.drivers.gvisor import connections, control
from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.engine.drivers.machine import pause, policies, starter
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.engine.drivers.machine.runtime import EndProcesses, StartedProcess, Starter, StartPlan, StartResources
from sandyard.kit.errors import ConflictError, SandyardError, UnsupportedError

DIRECTORY = "suspended-gvisor"
_USED_MARK = "used"
_DIRECT = ("--direct",)  # not through the page cache, which the memory of a long pause would only fill
_COPY_PREFIX = ".copy-"  # not a sandbox's id
_PAUSED_MARK = "paused"  # in a sandbox's run directory, while its processes are paused for a checkpoint


class NotStartedError(SandyardError):
    """gVisor failed before any process of the sandbox was running."""


class Processes(Protocol):
    """Operations of the runtime that checkpoints need."""

    @property
    def runsc(self) -> Runsc: ...

    def make_cgroup_limits(self, limits: Limits) -> Limits: ...

    async def launch_from(
        self, plan: StartPlan, resources: StartResources, checkpoint: Path, flags: Sequence[str]
    ) -> StartedProcess:
        """Restore all processes of a checkpoint. `flags` are options of runsc. Raises NotStartedError if none has run."""
        ...

    async def is_responding(self, sandbox: str) -> bool:
        """Return whether the agent of a running sandbox answers requests."""
        ...

    def may_have_run(self, sandbox: str) -> bool: ...

    def get_state_folder(self, sandbox: str) -> Path: ...

    def get_control_path(self, sandbox: str) -> str: ...


class _CheckpointStarter:
    """Starts sandboxes from a checkpoint."""

    _flags: Sequence[str] = ()

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._folder = folder
        self.make_cgroup_limits = processes.make_cgroup_limits

    async def launch(self, plan: StartPlan, resources: StartResources) -> StartedProcess:
        return await self._processes.launch_from(plan, resources, self._folder, self._flags)


class _Restorer(_CheckpointStarter):
    """Starts a suspended sandbox from its own checkpoint, once."""

    _flags = _DIRECT

    async def launch(self, plan: StartPlan, resources: StartResources) -> StartedProcess:
        mark = self._folder / _USED_MARK
        mark.touch()
        try:
            return await super().launch(plan, resources)
        except BaseException as error:
            # The files have not changed, so the memory can be restored later.
            if isinstance(error, NotStartedError) or not self._processes.may_have_run(plan.id):
                mark.unlink()
            raise


class Checkpoints:
    """The memory of suspended sandboxes. See `runtime.MemoryImages` for the contract of each operation."""

    def __init__(self, machine: Machine, watcher: ExitWatcher, processes: Processes) -> None:
        self._machine = machine
        self._watcher = watcher
        self._processes = processes
        self.folder = machine.options.data_dir / DIRECTORY

    # Stored checkpoints -------------------------------------------------------------------------------------------------

    def has(self, sandbox: str) -> bool:
        folder = self.folder / sandbox
        return policies.is_sealed(folder) and not (folder / _USED_MARK).exists()

    @property
    def has_any(self) -> bool:
        return self.folder.is_dir() and any(self.has(entry.name) for entry in self.folder.iterdir())

    async def take_over(self, stopped: Collection[str]) -> frozenset[str]:
        found = frozenset(name for name in stopped if self.has(name))
        for folder in self.folder.iterdir() if self.folder.is_dir() else ():
            if folder.name not in found:
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return found

    async def continue_processes(self, running: Collection[Record]) -> None:
        async def resume(record: Record) -> None:
            # gVisor fails if it has to resume processes that are not paused yet, or no longer paused.
            if not await self._processes.is_responding(record.id):
                # After a timeout they continue as soon as the checkpoint that is still being written is complete.
                with contextlib.suppress(SandyardError):
                    await control.call(self._processes.get_control_path(record.id), "Resume")
            self._get_paused_mark(record).unlink(missing_ok=True)

        await asyncio.gather(*(resume(record) for record in running if self._get_paused_mark(record).exists()))

    def _get_paused_mark(self, record: Record) -> Path:
        return self._machine.run_dir / record.id / _PAUSED_MARK

    async def delete_images(self, sandbox: str) -> None:
        folder = self.folder / sandbox
        if folder.exists():
            (folder / _USED_MARK).touch()  # invalidates it at once; removing it takes a while
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    # To disk ------------------------------------------------------------------------------------------------------------

    async def suspend(self, record: Record, end: EndProcesses) -> Handle:
        _refuse_containers(record, "moved to disk")
        if not record.alive or not pause.is_paused(self._machine, record):
            raise ConflictError(f"The sandbox {record.id} is not paused with its memory.")
        try:
            async with self._pause_processes(record):
                await self._save_and_end(record, end)
        except OSError as error:
            raise translate_os_error(error, f"Could not write the memory of the sandbox {record.id}") from error
        handle = record.renew().make_handle()
        return replace(handle, data={**handle.data, "suspended": True})

    async def _save_and_end(self, record: Record, end: EndProcesses) -> None:
        folder = self.folder / record.id
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)
            await self._run_checkpoint(record.id, folder, "moved to disk", _DIRECT)
            await self._machine.store.flush()  # otherwise a crash would leave its files and its memory inconsistent
            policy = policies.load(self._machine.run_dir / record.id)
            await asyncio.to_thread(policies.seal_memory, folder, policy)
            await end(record, "suspended")
        except BaseException:  # it continues to run, and then the memory must never be restored with its files
            await self.delete_images(record.id)
            raise

    @contextlib.asynccontextmanager
    async def _pause_processes(self, record: Record) -> AsyncIterator[None]:
        """Pause the processes of a sandbox while the block runs, but not its kernel, because only a running kernel can
        write a checkpoint. Unless the sandbox has ended by then, its condition is restored."""
        machine, path = self._machine, self._processes.get_control_path(record.id)
        mark = self._get_paused_mark(record)
        mark.touch()  # with it, `continue_processes` lets them continue after a crash, or if the sandbox does not respond
        frozen = pause.is_paused(machine, record)
        if frozen:
            machine.cgroups.thaw(record.id)
        try:
            try:
                await control.call(path, "Pause")
            except control.ControlError:
                mark.unlink(missing_ok=True)
                raise
            try:
                yield
            finally:
                if record.alive:
                    await control.call(path, "Resume")  # otherwise its processes would stay paused after the next thaw
                mark.unlink(missing_ok=True)
        finally:
            if frozen and record.alive:
                await pause.freeze(machine, record)

    async def _run_checkpoint(self, sandbox: str, folder: Path, purpose: str, flags: Sequence[str] = ()) -> None:
        runsc = self._processes.runsc
        connections.write_secret(folder, connections.read_secret(self._machine.run_dir / sandbox))
        arguments = ("checkpoint", f"--image-path={folder}", "--leave-running", "--compression=none", *flags)
        process = await asyncio.create_subprocess_exec(
            *runsc.build_command(self._processes.get_state_folder(sandbox), *arguments, sandbox),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        if process.returncode:
            lines = output.decode(errors="replace").strip().splitlines()
            raise UnsupportedError(
                f"The memory of the sandbox {sandbox} can't be {purpose}: {lines[-1] if lines else 'unknown error'}"
            )

    # From disk ----------------------------------------------------------------------------------------------------------

    async def restore(self, record: Record) -> Handle:
        machine, folder = self._machine, self.folder / record.id
        machine.memory.check()

        async def prepare_files() -> None:
            await machine.store.renew(record.id, record.limits.disk_mb)

        restorer, policy = _Restorer(self._processes, folder), policies.load_sealed(folder)
        await starter.start(machine, self._watcher, restorer, record, policy=policy, prepare_files=prepare_files)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return record.make_handle()

    # Copies -------------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def copy_memory(self, record: Record, copy_files: Callable[[], Awaitable[None]]) -> AsyncIterator[Starter]:
        _refuse_containers(record, "copied")
        folder = self.folder / f"{_COPY_PREFIX}{record.id}"
        try:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
            folder.mkdir(parents=True, mode=0o700)
            async with self._pause_processes(record):
                await self._run_checkpoint(record.id, folder, "copied")  # first: it writes changed pages to the files
                await copy_files()
            yield _CheckpointStarter(self._processes, folder)
        except OSError as error:
            raise translate_os_error(error, f"Could not copy the memory of the sandbox {record.id}") from error
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _refuse_containers(record: Record, purpose: str) -> None:
    """Raise UnsupportedError for a sandbox with containers: gVisor writes its memory, but cannot restore it, and the
    bridges of container networks are lost."""
    if record.containers:
        raise UnsupportedError(
            f"The memory of the sandbox {record.id} can't be {purpose}: gVisor cannot restore the networks of containers."
        )
