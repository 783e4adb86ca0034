"""Start and reach gVisor sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandyard.engine.contract import AGENT_PORT, Capabilities, Isolation, Limits
from sandyard.engine.drivers.gvisor import agent_files, bundle, connections
from sandyard.engine.drivers.gvisor.checkpoints import Checkpoints, NotStartedError
from sandyard.engine.drivers.gvisor.child import EXIT_REFUSED
from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.engine.drivers.machine import base_layer, processes
from sandyard.engine.drivers.machine.child_command import make_bare_command
from sandyard.engine.drivers.machine.errors import translate_child_error
from sandyard.engine.drivers.machine.exit_watcher import ExitWatcher, read_last_line
from sandyard.engine.drivers.machine.machine import Machine, NetSlot
from sandyard.engine.drivers.machine.record import Life, Record
from sandyard.engine.drivers.machine.runtime import Started, StartPlan, StartResources
from sandyard.engine.drivers.machine.store.base import SANDBOXES, VOLUMES
from sandyard.kit.errors import NotFoundError, SandyardError, UnreachableError, UnsupportedError

_CHILD = "sandyard.engine.drivers.gvisor.child"
_DIRECTORY = "gvisor"
_START_TIMEOUT_S = 60.0
_READY_TIMEOUT_S = 30.0
_POLL_S = 0.02
_KERNEL_MB = 64
_KERNEL_THREADS = 256


class GvisorRuntime:
    """Runs each sandbox on a kernel of its own. `runsc_path` is the runsc to use; None: the installed one."""

    isolation = Isolation.GVISOR
    images: Checkpoints

    def __init__(self, runsc_path: Path | None = None) -> None:
        self._runsc_path = runsc_path
        self._machine: Machine
        self._runsc: Runsc | None = None
        self._unavailable_reason = ""
        self._agent: asyncio.Task[Path] | None = None

    async def open(self, machine: Machine, watcher: ExitWatcher, on_change: Callable[[], None]) -> None:
        self._machine = machine
        try:
            self._runsc = await asyncio.to_thread(Runsc.find, self._runsc_path)
        except UnsupportedError as error:
            self._unavailable_reason = error.message
        if machine.network is None:
            self._runsc, self._unavailable_reason = None, "gVisor requires a network namespace for each sandbox"
        self.images = Checkpoints(machine, watcher, self)

    def start_background_work(self) -> None:
        failed = self._agent is not None and self._agent.done() and self._agent.exception() is not None
        if self._runsc is not None and (self._agent is None or failed):
            folder = self._machine.options.data_dir / _DIRECTORY
            self._agent = asyncio.create_task(asyncio.to_thread(agent_files.get_or_create, folder))

    async def stop_background_work(self) -> None:
        if self._agent is not None:
            await asyncio.wait({self._agent})  # a thread, which cannot be cancelled

    async def close(self) -> None:
        """Do nothing: all sandboxes are processes of their own."""

    def sweep(self, keep: Collection[int]) -> None:
        """Do nothing: all processes are in the cgroups of their sandboxes."""

    def complete_capabilities(self, known: Capabilities) -> Capabilities:
        if self._runsc is None:
            return replace(known, missing={**known.missing, self.isolation.value: self._unavailable_reason})
        level = frozenset({self.isolation})
        return replace(known, isolation=known.isolation | level, suspend=known.suspend | level)

    async def wait_for_capabilities(self) -> None:
        """Do nothing: `open` has found out everything."""

    @property
    def runsc(self) -> Runsc:
        """Raises UnsupportedError, with the reason and the remedy, if there is none."""
        if self._runsc is None:
            raise UnsupportedError(f"gVisor is not available: {self._unavailable_reason}.")
        return self._runsc

    # Processes ----------------------------------------------------------------------------------------------------------

    def make_cgroup_limits(self, limits: Limits) -> Limits:
        """Add the memory and the threads of the sandbox's kernel. It has a thread or two on the host for each of its
        own, and its processes are limited by itself (`GuestConfig.max_processes`)."""
        return replace(limits, memory_mb=limits.memory_mb + _KERNEL_MB, pids=2 * limits.pids + _KERNEL_THREADS)

    async def launch(self, plan: StartPlan, resources: StartResources) -> Started:
        return await self.launch_from(plan, resources, None)

    async def launch_from(self, plan: StartPlan, resources: StartResources, checkpoint: Path | None) -> Started:
        """Start a first process, or restore all processes of a checkpoint."""
        machine, folder = self._machine, self._machine.run_dir / plan.id
        assert plan.net is not None
        layers = [*machine.store.list_shared_layers(plan.id), *map(_resolve_layer, plan.layers)]
        agent = await self._get_agent_files()
        spec = self._make_spec(plan, plan.net, agent)
        arguments = ["run"] if checkpoint is None else ["restore", f"--image-path={checkpoint}", "--direct"]
        request = {
            "cgroups": [str(group) for group in machine.cgroups.list_groups(plan.id)],
            "memory_bytes": plan.limits.memory_mb << 20,
            "cpu_count": min(plan.limits.cpu_count, os.cpu_count() or 1),
            "regular_netns": str(plan.net.netns_path),
            "netns": str(folder / "netns"),
            "root": str(folder / "root"),
            "spec": spec,
            "config": str(folder / "config.json"),
            "sudo": str(agent / agent_files.SUDO),
            "volumes": [mount.target for mount in plan.mounts],
            "layers": base_layer.insert(machine.store, layers, plan.net),
            "writable": str(machine.store.path / SANDBOXES / plan.id),
            "command": self.runsc.make_command(
                self.get_state_folder(plan.id),
                *(*arguments, "--detach", f"--bundle={folder}", f"--pid-file={folder / 'pid'}", plan.id),
            ),
        }
        stderr = next(fd for purpose, fd in resources.descriptors if purpose == "stderr")
        await self._run_child(request, stderr)
        pid = int((folder / "pid").read_text())
        start = processes.read_start_time(pid)
        pidfd = None if start is None else processes.open_pidfd(pid, start)
        if start is None or pidfd is None:
            raise SandyardError(f"The sandbox {plan.id} ended right after its start: {read_last_line(stderr)}")
        try:
            await self._wait_until_ready(plan.id, pidfd, stderr)
        except BaseException:
            os.close(pidfd)
            raise
        return Started(Life(pid, start, plan.slot), pidfd)

    async def _get_agent_files(self) -> Path:
        self.start_background_work()
        assert self._agent is not None
        return await asyncio.shield(self._agent)

    def _make_spec(self, plan: StartPlan, net: NetSlot, agent: Path) -> dict[str, Any]:
        """Create what the sandbox needs in its directory, and return its specification."""
        store, folder = self._machine.store, self._machine.run_dir / plan.id
        for name in ("root", "runsc"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        (folder / "netns").touch()
        self._get_netns_link(plan.id).symlink_to(net.netns_path)
        return bundle.make_spec(
            plan,
            root=folder / "root",
            netns=folder / "netns",
            agent=agent,
            volumes=store.path / VOLUMES,
            disk_limited="disk" in store.limits,
        )

    async def _run_child(self, request: Mapping[str, object], stderr: int) -> None:
        """Run runsc until the sandbox is running without it."""
        process = await asyncio.create_subprocess_exec(
            *make_bare_command(f"from {_CHILD} import main; main()"),
            json.dumps(request),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                status = await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise SandyardError(f"gVisor did not start the sandbox within {_START_TIMEOUT_S:g} s.") from None
        if status == EXIT_REFUSED:
            raise translate_child_error(json.loads(read_last_line(stderr)))
        if status:
            raise NotStartedError(f"gVisor could not start the sandbox: {read_last_line(stderr) or f'status {status}'}")

    async def _wait_until_ready(self, sandbox: str, pidfd: int, stderr: int) -> None:
        """Wait until the agent accepts connections."""
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(pidfd, ended.set)
        try:
            async with asyncio.timeout(_READY_TIMEOUT_S):
                while True:
                    with contextlib.suppress(UnreachableError):
                        (await connections.connect_agent(self._get_netns_link(sandbox))).close()
                        return
                    if ended.is_set():
                        raise SandyardError(f"The agent of the sandbox {sandbox} failed: {read_last_line(stderr)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise SandyardError(f"The agent of the sandbox {sandbox} did not start: {read_last_line(stderr)}") from None
        finally:
            loop.remove_reader(pidfd)

    async def connect(self, record: Record, port: int) -> socket.socket:
        regular = self._get_netns_link(record.id)
        if port == AGENT_PORT:
            return await connections.connect_agent(regular)
        return await connections.connect_port(regular, port)

    def _get_netns_link(self, sandbox: str) -> Path:
        """Return the path of a link to the sandbox's regular network namespace."""
        return self._machine.run_dir / sandbox / "regular-netns"

    def has_begun(self, sandbox: str) -> bool:
        """Return whether runsc has begun to create the sandbox. Before that, nothing of it can have run."""
        return (self._machine.run_dir / sandbox / "pid").exists()

    def get_state_folder(self, sandbox: str) -> Path:
        """Return the directory in which runsc keeps its state of a running sandbox."""
        return self._machine.run_dir / sandbox / "runsc"

    def get_control_path(self, sandbox: str) -> str:
        """Return the path of the control socket. It is short whatever the data directory is called, because the path of
        a unix socket has at most 107 bytes."""
        return f"/proc/self/fd/{self._machine.run_fd}/{sandbox}/runsc/runsc-{sandbox}.sock"


def _resolve_layer(layer: str) -> str:
    path = os.path.realpath(layer)
    if not Path(path).is_dir():
        raise NotFoundError(f"The layer {layer} does not exist.")
    return path
