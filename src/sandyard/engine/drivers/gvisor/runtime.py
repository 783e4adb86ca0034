"""Start gVisor sandboxes and connect to them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable, Collection, Mapping, Sequence
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
from sandyard.engine.drivers.machine.runtime import StartedProcess, StartPlan, StartResources
from sandyard.engine.drivers.machine.store.base import SANDBOXES, VOLUMES
from sandyard.engine.guest.engine_proof import SECRET_BYTES
from sandyard.kit.errors import NotFoundError, SandyardError, UnreachableError, UnsupportedError

_CHILD = "sandyard.engine.drivers.gvisor.child"
_CONTAINERS = "containers"
"""The directory beside a sandbox's writable layer for the files of its containers."""
_DIRECTORY = "gvisor"  # in the data directory, for the agent's files
_START_TIMEOUT_S = 60.0  # until runsc has started the first process
_READY_TIMEOUT_S = 30.0  # until the agent accepts connections
_POLL_S = 0.02
_KERNEL_MB, _KERNEL_THREADS = 64, 256  # what the kernel of a sandbox needs in addition to its processes


class GvisorRuntime:
    """Runs each sandbox on a kernel of its own. See `machine.runtime.Runtime` for the contract. `runsc_path` is the runsc
    to use; None: the installed one."""

    isolation = Isolation.GVISOR
    images: Checkpoints

    def __init__(self, runsc_path: Path | None = None) -> None:
        self._runsc_path = runsc_path
        self._machine: Machine
        self._runsc: Runsc | None = None
        self._unavailable_reason = ""
        self._agent_files: asyncio.Task[Path] | None = None

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
        """Do nothing: the agent's files are created for the first sandbox."""

    async def stop_background_work(self) -> None:
        if self._agent_files is not None:
            await asyncio.wait({self._agent_files})  # a thread, which cannot be cancelled

    async def close(self) -> None:
        """Do nothing: all sandboxes are processes of their own."""

    def sweep(self, keep: Collection[int]) -> None:
        """Do nothing: all processes are in the cgroups of their sandboxes."""

    def complete_capabilities(self, known: Capabilities) -> Capabilities:
        if self._runsc is None:
            reason = self._unavailable_reason
            missing = {self.isolation.value: reason, f"containers.{self.isolation.value}": reason}
            return replace(known, missing={**known.missing, **missing})
        level = frozenset({self.isolation})
        return replace(
            known,
            isolation=known.isolation | level,
            suspend=known.suspend | level,
            memory_fork=known.memory_fork | level,
            containers=known.containers | level,
        )

    async def wait_for_capabilities(self) -> None:
        """Do nothing: the capabilities are known after `open`."""

    @property
    def runsc(self) -> Runsc:
        """The installed runsc. Raises UnsupportedError, with the reason and what to do, if gVisor is not available."""
        if self._runsc is None:
            raise UnsupportedError(f"gVisor is not available: {self._unavailable_reason}.")
        return self._runsc

    # Processes ----------------------------------------------------------------------------------------------------------

    def make_cgroup_limits(self, limits: Limits) -> Limits:
        """Add the memory and the threads of the sandbox's kernel. It has a thread or two on the host for each of its
        own, and its processes are limited by itself (`GuestConfig.max_processes`)."""
        return replace(limits, memory_mb=limits.memory_mb + _KERNEL_MB, pids=2 * limits.pids + _KERNEL_THREADS)

    async def launch(self, plan: StartPlan, resources: StartResources) -> StartedProcess:
        return await self._launch(plan, resources, ["run"], os.urandom(SECRET_BYTES))

    async def launch_from(
        self, plan: StartPlan, resources: StartResources, checkpoint: Path, flags: Sequence[str]
    ) -> StartedProcess:
        arguments = ["restore", f"--image-path={checkpoint}", *flags]
        return await self._launch(plan, resources, arguments, connections.read_secret(checkpoint))

    async def _launch(
        self, plan: StartPlan, resources: StartResources, arguments: Sequence[str], secret: bytes | None
    ) -> StartedProcess:
        """Start the first process, or restore all processes of a checkpoint. `secret` is that of the agent; see
        `connections`. Raises NotStartedError if no process of the sandbox has run."""
        machine, folder = self._machine, self._machine.run_dir / plan.id
        assert plan.net is not None
        layers = [*machine.store.list_shared_layers(plan.id), *map(_resolve_layer, plan.layers)]
        agent = await self._get_agent_files()
        spec = self._prepare_spec(plan, plan.net, agent)
        connections.write_secret(folder, secret)
        request = {
            "cgroups": [str(group) for group in machine.cgroups.list_groups(plan.id)],
            "memory_bytes": plan.limits.memory_mb << 20,
            "cpu_count": min(plan.limits.cpu_count, os.cpu_count() or 1),
            "regular_netns": str(plan.net.netns_path),
            "containers": plan.containers,
            "netns": str(folder / "netns"),
            "root": str(folder / "root"),
            "spec": spec,
            "config": str(folder / "config.json"),
            "sudo": str(agent / agent_files.SUDO),
            "volumes": [mount.target for mount in plan.mounts] + ([bundle.CONTAINER_FILES] if plan.containers else []),
            "layers": base_layer.insert(machine.store, layers, plan.net),
            "writable": str(machine.store.path / SANDBOXES / plan.id),
            "command": self.runsc.build_command(
                self.get_state_folder(plan.id),
                *(*arguments, "--detach", f"--bundle={folder}", f"--pid-file={folder / 'pid'}", plan.id),
                containers=plan.containers,
            ),
        }
        stderr = next(fd for purpose, fd in resources.descriptors if purpose == "stderr")
        await self._run_child(request, stderr, secret or b"")
        self._remove_container_files(plan.id)  # they last as long as the processes that have opened them
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
        return StartedProcess(Life(pid, start, plan.slot), pidfd)

    async def _get_agent_files(self) -> Path:
        """Return the agent's files. The first sandbox, which is usually one for the pool, waits for them to be created."""
        task = self._agent_files
        if task is None or (task.done() and task.exception() is not None):
            folder = self._machine.options.data_dir / _DIRECTORY
            task = asyncio.create_task(asyncio.to_thread(agent_files.get_or_create, folder))
            self._agent_files = task
        return await asyncio.shield(task)

    def _prepare_spec(self, plan: StartPlan, net: NetSlot, agent: Path) -> dict[str, Any]:
        """Create the files and directories of the specification in the sandbox's run directory, and return it."""
        store, folder = self._machine.store, self._machine.run_dir / plan.id
        for name in ("root", "runsc"):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        (folder / "netns").touch()
        (folder / connections.NETNS_LINK).symlink_to(net.netns_path)
        if plan.containers:
            self._remove_container_files(plan.id)
            self._get_container_folder(plan.id).mkdir(mode=0o700, exist_ok=True)
        return bundle.make_spec(
            plan,
            root=folder / "root",
            netns=folder / "netns",
            agent=agent,
            volumes=store.path / VOLUMES,
            containers=self._get_container_folder(plan.id),
            disk_limited="disk" in store.limits,
        )

    def _get_container_folder(self, sandbox: str) -> Path:
        """Return the directory of the files of the sandbox's containers, to which its disk limit applies."""
        return self._machine.store.path / SANDBOXES / sandbox / _CONTAINERS

    def _remove_container_files(self, sandbox: str) -> None:
        for path in self._get_container_folder(sandbox).glob(".gvisor.filestore.*"):
            path.unlink()

    async def _run_child(self, request: Mapping[str, object], stderr: int, secret: bytes) -> None:
        """Run runsc, which ends when it has started the sandbox. `secret` is the agent's standard input. Raises
        NotStartedError if runsc failed."""
        with os.fdopen(os.memfd_create("agent-secret"), "w+b") as stdin:
            stdin.write(secret)
            stdin.seek(0)
            process = await asyncio.create_subprocess_exec(
                *make_bare_command(f"from {_CHILD} import main; main()"),
                json.dumps(request),
                stdin=stdin,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=stderr,
                env={},  # processes of gVisor inherit it, and the engine's own may contain secrets
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
                        (await connections.connect_agent(self._machine.run_dir / sandbox)).close()
                        return
                    if ended.is_set():
                        raise SandyardError(f"The agent of the sandbox {sandbox} failed: {read_last_line(stderr)}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise SandyardError(f"The agent of the sandbox {sandbox} did not start: {read_last_line(stderr)}") from None
        finally:
            loop.remove_reader(pidfd)

    async def connect(self, record: Record, port: int) -> socket.socket:
        folder = self._machine.run_dir / record.id
        if port == AGENT_PORT:
            return await connections.connect_agent(folder)
        return await connections.connect_port(folder, port)

    async def is_responding(self, sandbox: str) -> bool:
        return await connections.is_agent_responding(self._machine.run_dir / sandbox)

    def may_have_run(self, sandbox: str) -> bool:
        """Return whether a process of the sandbox may have run. runsc writes the pid file before that."""
        return (self._machine.run_dir / sandbox / "pid").exists()

    def get_state_folder(self, sandbox: str) -> Path:
        """Return the directory in which runsc keeps its state of a running sandbox."""
        return self._machine.run_dir / sandbox / "runsc"

    def get_control_path(self, sandbox: str) -> str:
        """Return the path of the control socket. It is short even if the path of the data directory is long, because the path of
        a unix socket has at most 107 bytes."""
        return f"/proc/self/fd/{self._machine.run_fd}/{sandbox}/runsc/runsc-{sandbox}.sock"


def _resolve_layer(layer: str) -> str:
    path = os.path.realpath(layer)
    if not Path(path).is_dir():
        raise NotFoundError(f"The layer {layer} does not exist.")
    return path
