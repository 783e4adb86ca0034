"""The namespace runtime: sandboxes made of Linux namespaces, forked from a zygote.

With root, each sandbox has its own user, pid, mount, net, ipc, uts and cgroup namespaces. Without root it has the same
structure with what the kernel allows a user.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandyard.engine.contract import AGENT_PORT, Capabilities, Isolation, Limits
from sandyard.engine.drivers.machine import fuse, processes
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.engine.drivers.machine.runtime import StartedProcess, StartPlan, StartResources
from sandyard.engine.drivers.namespace import connections
from sandyard.engine.drivers.namespace.criu import probe
from sandyard.engine.drivers.namespace.forker import ZygoteDiedError
from sandyard.engine.drivers.namespace.kernel_memory import (
    ContainerSandboxes,
    KernelMemoryLimits,
    KernelMemoryWatcher,
)
from sandyard.engine.drivers.namespace.launcher import Launcher
from sandyard.engine.drivers.namespace.machine_limits import raise_machine_limits
from sandyard.engine.drivers.namespace.suspender import Suspender
from sandyard.kit.errors import SandyardError

_PREPARED_NAMESPACES = 128  # user namespaces created in advance, about 2 kB of kernel memory each


class NamespaceRuntime:
    """Starts sandboxes and creates user namespaces for the next ones in advance. See `machine.runtime.Runtime` for the
    contract. `guest` is the agent's package."""

    isolation = Isolation.NAMESPACE
    images: Suspender

    def __init__(
        self, kernel_memory: KernelMemoryLimits | None = None, *, guest: str = "sandyard.engine.guest"
    ) -> None:
        self._guest = guest
        self._machine: Machine
        self._watcher: ExitWatcher
        self.launcher: Launcher
        self._on_change: Callable[[], None]
        self._launching = 0
        self._machine_limits_raised = False
        self._preparing: asyncio.Task[None] | None = None
        self._kernel_memory_limits = kernel_memory or KernelMemoryLimits()
        self._kernel_memory: KernelMemoryWatcher

    async def open(self, machine: Machine, watcher: ExitWatcher, on_change: Callable[[], None]) -> None:
        self._machine, self._watcher, self._on_change = machine, watcher, on_change
        self.launcher = Launcher(
            store=machine.store.path,
            roots=machine.layer_roots,
            cgroups=machine.cgroups,
            instance=machine.instance,
            title=machine.title,
            guest=self._guest,
            rootless=machine.rootless,
            on_exit=watcher.on_exit,
            on_loss=watcher.on_reports_lost,
        )
        self._kernel_memory = KernelMemoryWatcher(
            self._kernel_memory_limits,
            self._list_first_processes,
            machine.cgroups.read_socket_memory,
            self._kill_sandbox,
            list_with_containers=self._list_with_containers,
            read_all_charged=machine.cgroups.read_kernel_memory,
        )
        self.images = Suspender(machine, watcher, self)
        self._kill_by_title(keep=None)
        await self.launcher.forker.ensure_running()

    def start_background_work(self) -> None:
        self.images.start_trial(self._on_change)
        self._prepare_namespaces()
        self._kernel_memory.start()

    async def stop_background_work(self) -> None:
        await self._kernel_memory.stop()
        if self._preparing is not None:
            self._preparing.cancel()
        await self.images.close()

    async def close(self) -> None:
        await self.launcher.forker.close()

    def complete_capabilities(self, known: Capabilities) -> Capabilities:
        missing = {name: reason for name, reason in known.missing.items() if name != "pids"}
        if self.launcher.ids.missing:
            missing["users"] = self.launcher.ids.missing
        reason = self.images.unsupported_reason
        if reason is not None:
            missing["suspend"] = reason
        no_containers = self._find_reason_against_containers()
        if no_containers is not None:
            missing["containers.namespace"] = no_containers
        # Without the cgroup, the kernel counts processes per user.
        return replace(
            known,
            isolation=known.isolation | {Isolation.NAMESPACE},
            suspend=known.suspend | ({Isolation.NAMESPACE} if reason is None else set()),
            containers=known.containers | ({Isolation.NAMESPACE} if no_containers is None else set()),
            limits=known.limits | {"pids"},
            missing=missing,
        )

    def _find_reason_against_containers(self) -> str | None:
        """Return why sandboxes cannot run containers here, with the remedy, or None."""
        if self._machine.rootless:
            return "they need an engine that runs as root"
        for device, module in (("/dev/net/tun", "tun"), ("/dev/fuse", "fuse")):
            if not Path(device).is_char_device():
                return f"this machine has no {device}. Run `modprobe {module}`"
        return None

    async def wait_for_capabilities(self) -> None:
        await self.images.wait_for_trial()

    # Processes ----------------------------------------------------------------------------------------------------------

    def make_cgroup_limits(self, limits: Limits) -> Limits:
        return limits

    async def launch(self, plan: StartPlan, resources: StartResources) -> StartedProcess:
        store = self._machine.store
        if plan.containers and not self._machine_limits_raised:
            raise_machine_limits()
            self._machine_limits_raised = True
        self._launching += 1
        try:
            try:
                life, pidfd = await self.launcher.start(plan, resources.descriptors, store)
            except ZygoteDiedError:  # retry once with a new zygote
                await resources.remove()
                await store.renew(plan.id, plan.limits.disk_mb)  # it may already have been mounted
                resources.create()
                life, pidfd = await self.launcher.start(plan, resources.descriptors, store)
        finally:
            self._launching -= 1
        self._prepare_namespaces()
        return StartedProcess(life, pidfd, reports_exit=True)

    async def connect(self, record: Record, port: int) -> socket.socket:
        assert record.life is not None
        path = self._machine.get_agent_path(record.id)
        if port == AGENT_PORT:
            return await connections.connect_agent(path, record.id)
        if self._machine.rootless:
            return await connections.connect_port_through_agent(path, record.id, port)
        return await connections.connect_port_from_outside(record.life.pid, port)

    def sweep(self, keep: Collection[int]) -> None:
        self._kill_by_title(keep)

    def _kill_by_title(self, keep: Collection[int] | None) -> None:
        """End zygotes of earlier runs and, if given which agents to keep, all other agents of this instance."""
        for pid in processes.find_by_title(self._machine.title):
            is_current_zygote = pid == self.launcher.forker.pid
            is_agent = _is_first_in_pid_namespace(pid)
            if not is_current_zygote and (not is_agent if keep is None else pid not in keep):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    # Files --------------------------------------------------------------------------------------------------------------

    async def change_files(self, operation: str, fields: dict[str, Any]) -> Any:
        return await self.launcher.forker.request(operation, fields, timeout=None)

    def release_files(self) -> None:
        probe.sweep()

    # Kernel memory ------------------------------------------------------------------------------------------------------

    def _list_first_processes(self) -> dict[str, int]:
        """Return the first processes of running sandboxes. Frozen ones use nothing more, and with cgroup 1 their
        processes cannot die."""
        running = (record for record in self._watcher.list_running(self.isolation.value) if not record.frozen)
        return {record.id: record.life.pid for record in running if record.life is not None}

    def _list_with_containers(self) -> ContainerSandboxes:
        records = [record for record in self._watcher.list_running(self.isolation.value) if record.containers]
        running = {record.id: record.life.pid for record in records if record.life is not None and not record.frozen}
        paused = {record.id: record.life.pid for record in records if record.life is not None and record.frozen}
        return ContainerSandboxes(running, paused)

    def _kill_sandbox(self, sandbox: str) -> None:
        """End a sandbox whose processes could not be ended one by one, unless it was frozen in the meantime."""
        for record in self._watcher.list_running(self.isolation.value):
            if record.id == sandbox and record.pidfd >= 0 and not record.frozen:
                reason = "killed: it used too much kernel memory, and its processes did not end"
                record.end_reason = record.end_reason or reason
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(record.pidfd, signal.SIGKILL)
                if record.containers and record.life is not None:
                    fuse.abort_connections(self._machine.instance.get_uids(record.life.slot))

    # Preparation --------------------------------------------------------------------------------------------------------

    def _prepare_namespaces(self) -> None:
        """Create user namespaces for the next sandboxes while the engine is idle."""
        if self._preparing is None or self._preparing.done():
            self._preparing = asyncio.get_running_loop().create_task(self._prepare())

    async def _prepare(self) -> None:
        with contextlib.suppress(SandyardError):
            for slot in self.launcher.list_unprepared(self._machine.slots.list_next(_PREPARED_NAMESPACES)):
                while self._launching:  # noqa: ASYNC110 - nobody waits for this
                    await asyncio.sleep(0.02)
                await self.launcher.prepare(slot)


def _is_first_in_pid_namespace(pid: int) -> bool:
    with contextlib.suppress(OSError):
        for line in processes.read_text(f"/proc/{pid}/status").splitlines():
            if line.startswith("NSpid:"):
                return len(line.split()) > 2 and line.split()[-1] == "1"
    return False
