"""The operations of a fake sandbox: a directory, and the processes of a guest agent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandyard.engine.contract import (
    AGENT_PORT,
    Capabilities,
    Condition,
    DeniedAttempt,
    DiskReport,
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
from sandyard.engine.drivers.fake import processes
from sandyard.engine.drivers.fake.faults import Faults, When
from sandyard.engine.drivers.fake.files import FakeFiles, copy_tree, delete_tree, measure_size
from sandyard.engine.drivers.layer_names import SNAPSHOT, LayerLocation, make_layer_name
from sandyard.engine.drivers.room import read_room
from sandyard.engine.drivers.volume_files.files import LocalVolumeFiles, VolumeThreads
from sandyard.kit.errors import (
    ConflictError,
    NoSpaceError,
    NotFoundError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)
from sandyard.kit.logging import get_logger
from sandyard.kit.python import make_python_command

log = get_logger(__name__)

START_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.005
AGENT_MODULE = "sandyard.engine.drivers.fake.agent"


class FakeDriver:
    """Runs sandboxes as plain processes. `faults` makes its operations slow, stuck or failing; `vanish` simulates the
    unexpected loss of a sandbox, `disconnect` and `reconnect` a host that is unreachable for a while."""

    name = "fake"
    hairpin = None  # its sandboxes use the host's own network

    def __init__(self, data_dir: Path, layer_locations: Mapping[str, LayerLocation] | None = None) -> None:
        self.faults = Faults()
        self.capabilities = Capabilities(
            freeze=True,
            suspend=frozenset(),
            memory_fork=frozenset(),
            live_copy="copy",
            limits=frozenset(),
            egress=True,
            isolation=frozenset({Isolation.NAMESPACE}),
            containers=frozenset(),
            missing={
                "containers.namespace": "fake sandboxes are plain processes of the host",
                "isolation": "fake sandboxes are plain processes of the host",
                "suspend": "fake sandboxes keep their memory in processes only",
                "limits": "fake sandboxes have no limits",
                "volumes": "a volume in a fake sandbox is a symbolic link, and never read-only",
            },
        )
        self._data_dir = data_dir
        self.files = FakeFiles(data_dir, layer_locations or {})
        self.agents: dict[str, int] = {}
        self.on_doubt: OnDoubt = ignore_doubt
        self._volume_threads = VolumeThreads()
        self._reasons: dict[str, str] = {}
        self._connected = asyncio.Event()
        self._connected.set()
        self._unnoticed: set[int] = set()  # agents that ended while the host was unreachable

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        async with self._wrap_operation("open"):
            self.files.create_folders()
            self.agents = self._find_agents()
            kept = {handle.id for handle in keep}
            existing = {path.name for path in self.files.sandboxes.iterdir()}
            for sandbox_id in (existing | set(self.agents)) - kept:
                log.info("fake_sandbox_swept", sandbox=sandbox_id)
                await self._remove_sandbox(sandbox_id)
            garbage = [path for path in self.files.snapshots.iterdir() if path.name not in set(snapshots)]
            for path in (*garbage, *self.files.base.glob("fork-*")):
                await delete_tree(path)
            return {handle.id: self._get_condition(handle.id) for handle in keep}

    def disconnect(self) -> None:
        """Make the host unreachable: operations fail, and no end of a sandbox is noticed."""
        self._connected.clear()

    async def reconnect(self, *, restarted: bool = False) -> None:
        """Make the host reachable again. `restarted`: all processes have ended meanwhile."""
        if restarted:
            self._unnoticed.update(self.agents.values())
            for sandbox_id in tuple(self.agents):
                await self._end_agent(sandbox_id)
        self._connected.set()
        reason = "Its host was restarted" if restarted else "Its host was unreachable"
        self.on_doubt([path.name for path in self.files.sandboxes.iterdir()], reason)

    async def close(self) -> None:
        self._volume_threads.close()
        async with self._wrap_operation("close"):
            with contextlib.suppress(OSError):
                self.files.sockets.rmdir()  # only if it is empty

    def find_layers(self, layers: Layers) -> Layers:
        return self.files.find_layers(layers)

    def get_room(self, handle: Handle | None = None) -> Room:
        return read_room(self._data_dir)

    async def measure_disk(self) -> DiskReport:
        return await asyncio.to_thread(self.files.measure)

    async def wait_for_failure(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    async def create(self, spec: Spec) -> Handle:
        async with self._wrap_operation("create"):
            _reject_rules(spec.network)
            return await self._create_sandbox(spec, self.files.find_snapshots(spec.layers))

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        async with self._wrap_operation("boot"):
            self._require_condition(handle, Condition.STOPPED)
            try:
                await self._start_agent(spec)
            except BaseException:
                await self._end_agent(spec.id)
                raise
            return Handle(spec.id, self.name)

    async def get_condition(self, handle: Handle) -> Condition:
        async with self._wrap_operation("condition"):
            return self._get_condition(handle.id)

    async def wait_for_exit(self, handle: Handle) -> str:
        await self.faults.hit("wait_for_exit", When.BEFORE)
        pid = self.agents.get(handle.id)
        if pid is not None:
            code = await processes.wait_for_exit(pid)
            await self._connected.wait()
            if pid in self._unnoticed:
                await asyncio.get_running_loop().create_future()
            status = "" if code is None else f" with exit code {code}"
            self._reasons.setdefault(handle.id, f"The agent ended{status}")
        return self._reasons.get(handle.id, "The agent is gone")

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        async with self._wrap_operation("connect"):
            # a frozen one too, as with other drivers: it is frozen for a moment while a snapshot is taken, and answers later
            if self._get_condition(handle.id) not in (Condition.RUNNING, Condition.FROZEN):
                raise UnreachableError(f"Sandbox {handle.id} is not running.")
            if port == AGENT_PORT:
                return await _connect(socket.AF_UNIX, str(self.files.get_socket_path(handle.id)))
            return await _connect(socket.AF_INET, ("127.0.0.1", port))

    async def freeze(self, handle: Handle) -> None:
        async with self._wrap_operation("freeze"):
            self._require_condition(handle, Condition.RUNNING, Condition.FROZEN)
            await processes.freeze_tree(self.agents[handle.id])

    async def thaw(self, handle: Handle) -> None:
        async with self._wrap_operation("thaw"):
            self._require_condition(handle, Condition.RUNNING, Condition.FROZEN)
            await processes.thaw_tree(self.agents[handle.id])

    async def suspend(self, handle: Handle) -> Handle:
        raise UnsupportedError("The fake driver cannot move memory to disk.")

    async def restore(self, handle: Handle) -> Handle:
        raise UnsupportedError("The fake driver cannot move memory to disk.")

    async def stop(self, handle: Handle) -> Handle:
        async with self._wrap_operation("stop"):
            self._require_condition(handle, Condition.RUNNING, Condition.FROZEN, Condition.STOPPED)
            await self._end_agent(handle.id)
            return Handle(handle.id, self.name)

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        async with self._wrap_operation("snapshot"):
            target = self.files.snapshots / snapshot_id
            async with self._freeze_during(handle):
                await copy_tree(self.files.get_root(handle.id), target)
            return (make_layer_name(SNAPSHOT, snapshot_id),)  # a complete copy, which needs no other layers

    async def delete_snapshot(self, snapshot_id: str) -> None:
        async with self._wrap_operation("delete_snapshot"):
            await delete_tree(self.files.snapshots / snapshot_id)

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        async with self._wrap_operation("fork"):
            async with self._freeze_during(handle):
                copy = self.files.base / f"fork-{spec.id}"
                await copy_tree(self.files.get_root(handle.id), copy)
            try:
                return await self._create_sandbox(spec, [copy])
            finally:
                await delete_tree(copy)

    async def fork_with_memory(self, handle: Handle, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        raise UnsupportedError("The fake driver cannot fork sandboxes with their memory.")

    async def kill(self, handle: Handle) -> None:
        async with self._wrap_operation("kill"):
            await self._remove_sandbox(handle.id)

    async def get_stats(self, handle: Handle) -> Stats:
        async with self._wrap_operation("stats"):
            limits = self.files.read_spec(handle.id).limits
            members = processes.list_process_tree(self.agents.get(handle.id, -1))
            used = await asyncio.to_thread(measure_size, self.files.get_root(handle.id))
            return Stats(
                cpu_seconds=sum(process.cpu_seconds for process in members),
                cpu_count=limits.cpu_count,
                memory_used=sum(process.memory for process in members),
                memory_cache=0,
                memory_total=limits.memory_mb << 20,
                disk_used=used,
                disk_total=limits.disk_mb << 20,
            )

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        async with self._wrap_operation("set_network"):
            _reject_rules(policy)
            spec = self.files.read_spec(handle.id)
            self.files.write_spec(replace(spec, network=policy))

    async def take_denied(self, handle: Handle) -> Collection[DeniedAttempt]:
        """Return nothing, because nothing is blocked here."""
        return ()

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        async with self._wrap_operation("create_volume"):
            (self.files.volumes / volume_id).mkdir(exist_ok=True)

    async def delete_volume(self, volume_id: str) -> None:
        async with self._wrap_operation("delete_volume"):
            await delete_tree(self.files.volumes / volume_id)

    def get_volume_files(self, volume_id: str) -> LocalVolumeFiles:
        return LocalVolumeFiles(self._volume_threads, self.files.volumes / volume_id)

    def get_policy(self, sandbox_id: str) -> NetworkPolicy:
        """Return the policy that would be enforced if this driver enforced any."""
        return self.files.read_spec(sandbox_id).network

    async def vanish(self, sandbox_id: str) -> None:
        """Remove a sandbox as if it had crashed, without informing the engine."""
        self._reasons[sandbox_id] = "It vanished"
        await self._remove_sandbox(sandbox_id)

    @contextlib.asynccontextmanager
    async def _wrap_operation(self, name: str) -> AsyncIterator[None]:
        """Apply the faults of this operation before and after it, and translate OSError."""
        await self.faults.hit(name, When.BEFORE)
        if not self._connected.is_set():
            raise UnreachableError("The host of the sandbox is not responding.")
        try:
            yield
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NoSpaceError from error
            raise SandyardError(f"The fake driver failed at {name!r}: {error}.") from error
        await self.faults.hit(name, When.AFTER)

    async def _create_sandbox(self, spec: Spec, contents: Sequence[Path]) -> Handle:
        """Create a sandbox whose files are copies of these directories, lowest first."""
        if self.files.get_root(spec.id).exists():
            raise ConflictError(f"Sandbox {spec.id} already exists.")
        try:
            self.files.get_root(spec.id).mkdir(parents=True)
            for content in contents:
                await copy_tree(content, self.files.get_root(spec.id))
            await self._start_agent(spec)
        except BaseException:
            await asyncio.shield(self._remove_sandbox(spec.id))
            raise
        return Handle(spec.id, self.name)

    async def _start_agent(self, spec: Spec) -> None:
        self.files.write_spec(spec)
        for mount in spec.mounts:
            self.files.mount(spec.id, mount)
        self._reasons.pop(spec.id, None)
        path = self.files.get_socket_path(spec.id)
        path.unlink(missing_ok=True)
        command = make_python_command(AGENT_MODULE, "--socket", str(path), "--root", str(self.files.get_root(spec.id)))
        pid = self.agents[spec.id] = processes.start_detached(command, self.files.get_log_path(spec.id))
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while True:
            try:
                (await _connect(socket.AF_UNIX, str(path))).close()
            except UnreachableError:
                if processes.reap(pid) is not None or asyncio.get_running_loop().time() > deadline:
                    output = self.files.get_log_path(spec.id).read_text(errors="replace")[-500:]
                    raise SandyardError(f"The agent of {spec.id} did not start: {output}") from None
                await asyncio.sleep(POLL_INTERVAL_S)
            else:
                return

    async def _end_agent(self, sandbox_id: str) -> None:
        pid = self.agents.pop(sandbox_id, None)
        if pid is not None:
            await processes.kill_tree(pid)
        self.files.get_socket_path(sandbox_id).unlink(missing_ok=True)

    async def _remove_sandbox(self, sandbox_id: str) -> None:
        await self._end_agent(sandbox_id)
        await delete_tree(self.files.sandboxes / sandbox_id)

    @contextlib.asynccontextmanager
    async def _freeze_during(self, handle: Handle) -> AsyncIterator[None]:
        """Freeze a running sandbox while the block runs, then continue it. Raises NotFoundError."""
        before = self._get_condition(handle.id)
        if before is Condition.ABSENT:
            raise NotFoundError(f"Sandbox {handle.id} not found.")
        if before is Condition.RUNNING:
            await processes.freeze_tree(self.agents[handle.id])
        try:
            yield
        finally:
            if before is Condition.RUNNING:
                await asyncio.shield(processes.thaw_tree(self.agents[handle.id]))

    def _get_condition(self, sandbox_id: str) -> Condition:
        if not self.files.get_root(sandbox_id).is_dir():
            return Condition.ABSENT
        agent = processes.read_process(self.agents.get(sandbox_id, -1))
        if agent is None or not agent.alive:
            return Condition.STOPPED
        return Condition.FROZEN if agent.stopped else Condition.RUNNING

    def _require_condition(self, handle: Handle, *conditions: Condition) -> None:
        found = self._get_condition(handle.id)
        if found is Condition.ABSENT:
            raise NotFoundError(f"Sandbox {handle.id} not found.")
        if found not in conditions:
            raise ConflictError(f"Sandbox {handle.id} is {found.value}.")

    def _find_agents(self) -> dict[str, int]:
        """Return the running agents of this data directory, including those of other processes."""
        found = {}
        for process in processes.list_processes():
            arguments = processes.read_command_line(process.pid) if process.alive else []
            if AGENT_MODULE in arguments and "--socket" in arguments:
                path = Path(arguments[arguments.index("--socket") + 1])
                if path.parent == self.files.sockets:
                    found[path.stem] = process.pid
        return found


async def _connect(kind: socket.AddressFamily, address: Any) -> socket.socket:
    """Connect to a socket. Raises UnreachableError if nothing listens there."""
    connection = socket.socket(kind, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, address)
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError):
            raise UnreachableError(
                f"Cannot connect to {address} in the sandbox: {os.strerror(error.errno or 0)}."
            ) from error
        raise
    return connection


def _reject_rules(policy: NetworkPolicy) -> None:
    if policy.rules:
        raise UnsupportedError(
            "Network rules are not supported: fake sandboxes share the host's network, so nothing can add headers to their requests."
        )
