"""Runtimes: what starts and reaches the processes of sandboxes. The sandboxes of one machine may use different ones;
network, store, cgroups, pausing and watching are the same for all."""

from __future__ import annotations

import os
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandyard.engine.contract import Capabilities, Handle, Isolation, Layers, Limits, Mount
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher
from sandyard.engine.drivers.machine.machine import Machine, NetSlot
from sandyard.engine.drivers.machine.record import Life, Record

DescriptorList = list[tuple[str, int]]
"""Descriptors for a first process, by purpose, because it sees no paths when it is created."""
EndProcesses = Callable[[Record, str], Awaitable[None]]
"""Ends all processes of a sandbox, for a reason."""


@dataclass(frozen=True, slots=True)
class StartPlan:
    """The parameters of one start."""

    id: str
    slot: int
    layers: Layers
    limits: Limits
    net: NetSlot | None
    mounts: tuple[Mount, ...] = ()
    containers: bool = False
    hold: bool = False  # only hold the namespaces, without an agent


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """A first process whose agent accepts connections. `reports_exit`: the runtime will report how it ended."""

    life: Life
    pidfd: int
    reports_exit: bool = False


class StartResources:
    """Resources of the machine for a first process: its cgroups, its directory in run/ and a file for its crash output."""

    def __init__(self, machine: Machine, sandbox: str, limits: Limits) -> None:
        self._machine = machine
        self._sandbox = sandbox
        self._limits = limits
        self.descriptors: DescriptorList = []

    def create(self) -> None:
        """Create everything, in a few hundred microseconds. The run directory must exist. After a failure, call
        `remove`."""
        self.descriptors += self._machine.cgroups.create(self._sandbox, self._limits)
        # The location of the agent's socket.
        flags = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
        self.descriptors.append(("run", os.open(self._sandbox, flags, dir_fd=self._machine.run_fd)))
        # The agent's crash output: memory that belongs to the sandbox and is freed with both processes.
        self.descriptors.append(("stderr", os.memfd_create("agent-stderr")))

    def take(self, purpose: str) -> int:
        """Remove a descriptor from the list and return it."""
        descriptor = next(descriptor for descriptor in self.descriptors if descriptor[0] == purpose)
        self.descriptors.remove(descriptor)
        return descriptor[1]

    async def remove(self) -> None:
        """Close all descriptors, and remove the agent's socket and the cgroups with their processes."""
        self.close()
        await self._machine.cgroups.kill_and_remove(self._sandbox)
        (self._machine.run_dir / self._sandbox / "agent.sock").unlink(missing_ok=True)

    def close(self) -> None:
        for _, fd in self.descriptors:
            os.close(fd)
        self.descriptors.clear()


class Starter(Protocol):
    """Starts first processes of sandboxes."""

    def make_cgroup_limits(self, limits: Limits) -> Limits:
        """Return the limits of a sandbox's cgroups: its own limits, and what the runtime itself needs there."""
        ...

    async def launch(self, plan: StartPlan, resources: StartResources) -> StartedProcess:
        """Start a first process. On failure no process is left."""
        ...


class MemoryImages(Protocol):
    """The memory of suspended sandboxes on disk. A sandbox is suspended exactly if it is not running and has memory
    here."""

    @property
    def folder(self) -> Path:
        """The folder with a directory for each suspended sandbox, if it exists."""
        ...

    def has(self, sandbox: str) -> bool:
        """Return whether there is memory on disk that can be restored."""
        ...

    @property
    def has_any(self) -> bool:
        """Whether any sandbox has memory here."""
        ...

    async def take_over(self, stopped: Collection[str]) -> frozenset[str]:
        """Return which of these sandboxes, which are not running, are suspended. Removes all other images."""
        ...

    async def continue_processes(self, running: Collection[Record]) -> None:
        """Let the processes of these running sandboxes continue if they were paused to save or copy their memory, and
        still are: because the engine was killed meanwhile, or the sandbox did not respond."""
        ...

    async def delete_images(self, sandbox: str) -> None:
        """Remove a sandbox's memory. Idempotent."""
        ...

    async def suspend(self, record: Record, end: EndProcesses) -> Handle:
        """Suspend a frozen sandbox. `end` is called to end its processes; a failure before that leaves it frozen."""
        ...

    async def restore(self, record: Record) -> Handle:
        """Restore the sandbox into this record, running. A failure leaves only the images."""
        ...

    def copy_memory(
        self, record: Record, copy_files: Callable[[], Awaitable[None]]
    ) -> AbstractAsyncContextManager[Starter]:
        """Copy the memory of a running or frozen sandbox, and call `copy_files`, while its processes are paused. The block
        then gets a starter, whose sandboxes continue these processes. At its end the copy is deleted. Raises
        UnsupportedError."""
        ...


class Runtime(Starter, Protocol):
    """Runs the processes of sandboxes with one isolation level, which is also the driver's name in their handles."""

    isolation: Isolation

    @property
    def images(self) -> MemoryImages:
        """The memory of this runtime's suspended sandboxes. Available after `open`."""
        ...

    async def open(self, machine: Machine, watcher: ExitWatcher, on_change: Callable[[], None]) -> None:
        """Get ready to start sandboxes on this machine. `on_change` is called when the capabilities change."""
        ...

    def start_background_work(self) -> None:
        """Start what runs beside the sandboxes. Called when everything left by an earlier engine was adopted or
        removed. Idempotent."""
        ...

    async def stop_background_work(self) -> None: ...

    async def close(self) -> None:
        """Release what `open` started, after the store was closed. Sandboxes keep running."""
        ...

    def sweep(self, keep: Collection[int]) -> None:
        """End all processes of this runtime, except those of the sandboxes whose first processes have these pids."""
        ...

    def complete_capabilities(self, known: Capabilities) -> Capabilities:
        """Add to the machine's capabilities what this runtime can do, as far as it is known by now."""
        ...

    async def wait_for_capabilities(self) -> None:
        """Wait until everything has been tested."""
        ...

    async def connect(self, record: Record, port: int) -> socket.socket:
        """Connect to the agent or to a port of a running sandbox, like `Driver.connect`."""
        ...
