"""A fake driver on a host that is a Python object. Tests can observe it, inject faults, and hand the host to the
next engine, as a machine survives the crash of an engine.

`Host` is the machine, `DoubleDriver` is one engine's driver on it. After `die` a driver does nothing, like the
driver of a killed engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sandyard.engine.contract import (
    AGENT_PORT,
    Capabilities,
    Condition,
    DeniedAttempt,
    DiskKind,
    DiskReport,
    DiskUse,
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
from sandyard.kit.errors import FullError, NotFoundError, SandyardError, UnreachableError, UnsupportedError


@dataclass
class Machine:
    """One sandbox on the host. `memory` stands for its processes: a new number after every boot."""

    spec: Spec
    condition: Condition
    memory: int
    files: frozenset[str] = frozenset()
    policy: NetworkPolicy = field(default_factory=NetworkPolicy)
    init: dict[str, object] | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    reason: str = ""
    silent: bool = False  # its agent accepts connections and never responds
    oom_kills: int = 0
    cpu_seconds: float = 1.0


class Host:
    def __init__(self) -> None:
        self.machines: dict[str, Machine] = {}
        self.snapshots: dict[str, frozenset[str]] = {}
        self.memories = 0
        self.capacity = 10_000
        self.available_memory: int | None = None  # unknown
        self.free_disk = 1 << 40
        self.full: str | None = None
        self.away = False  # every verb fails, and no end of a sandbox is noticed

    def new_memory(self) -> int:
        self.memories += 1
        return self.memories

    def reboot(self) -> None:
        """End all processes. File systems and memory on disk stay."""
        for machine in self.machines.values():
            if machine.condition in {Condition.RUNNING, Condition.FROZEN}:
                machine.condition = Condition.STOPPED
                machine.init = None
                machine.policy = NetworkPolicy()

    def end(self, sandbox_id: str, reason: str = "killed from outside", *, keep_files: bool = True) -> None:
        """End the sandbox's processes from outside. Without `keep_files` its files are removed too."""
        machine = self.machines[sandbox_id]
        machine.reason = reason
        machine.condition = Condition.STOPPED
        machine.ended.set()
        if not keep_files:
            del self.machines[sandbox_id]


class DoubleDriver:
    name = "double"

    def __init__(
        self,
        host: Host,
        *,
        freeze: bool = True,
        suspend: bool = False,
        gvisor: bool = False,
        containers: Collection[Isolation] = (),
    ) -> None:
        self.host = host
        self.capabilities = Capabilities(
            freeze=freeze,
            suspend=frozenset(Isolation if suspend else ()),
            memory_fork=frozenset({Isolation.GVISOR} if gvisor else ()),
            live_copy="cow",
            limits=frozenset(),
            egress=True,
            isolation=frozenset(Isolation if gvisor else {Isolation.NAMESPACE}),
            containers=frozenset(containers),
            missing={"containers.namespace": "the kernel is too old", "containers.gvisor": "it is not installed"}
            | {"gvisor": "it is not installed"}
            | ({} if freeze else {"freeze": "no freezer"}),
        )
        self.on_doubt: OnDoubt = ignore_doubt
        self._unswept: tuple[set[str], set[str]] | None = (
            None  # what to keep, from an `open` while the host was unreachable
        )
        self.blocked_s = 0.05
        """The deadline of blocked verbs."""
        self.rest_s = 0.05
        """The time that blocked verbs which ignore their cancellation have to end."""
        self.calls: list[tuple[str, str]] = []
        self.denied: list[DeniedAttempt] = []
        self.now_running: dict[str, set[str]] = {}
        self.overlaps: list[str] = []
        self._faults: dict[tuple[str, str], object] = {}
        self._dead = asyncio.Event()
        self.reached: dict[tuple[str, str], asyncio.Event] = {}
        self.allow: dict[tuple[str, str], asyncio.Event] = {}

    # faults

    def fail(self, verb: str, error: BaseException, when: str = "before") -> None:
        self._faults[verb, when] = error

    def block(self, verb: str, when: str = "before", *, ignore_cancel: bool = False) -> asyncio.Event:
        """Block the verb until `release` or its short deadline. Returns an event that is set when the verb blocks."""
        return self._wait(verb, when, "ignore_cancel" if ignore_cancel else "blocked")

    def hold(self, verb: str, when: str = "before") -> asyncio.Event:
        """Like `block`, but with a long deadline: the verb succeeds after `release`, however slow this machine is."""
        return self._wait(verb, when, "held")

    def _wait(self, verb: str, when: str, how: str) -> asyncio.Event:
        self._faults[verb, when] = how
        self.allow.setdefault((verb, when), asyncio.Event()).clear()
        self.reached.setdefault((verb, when), asyncio.Event()).clear()
        return self.reached[verb, when]

    def release(self, verb: str, when: str = "before") -> None:
        self._faults.pop((verb, when), None)
        self.allow[verb, when].set()

    def clear_faults(self) -> None:
        self._faults.clear()
        for event in self.allow.values():
            event.set()

    def deadline(self, verb: str) -> float:
        """Short for blocked verbs, so that tests do not wait; long for all others, however slow this machine is."""
        if verb == "rest":
            return self.rest_s if "ignore_cancel" in self._faults.values() else 60.0
        kinds = {self._faults.get((verb, "before")), self._faults.get((verb, "after"))}
        return self.blocked_s if kinds & {"blocked", "ignore_cancel"} else 60.0

    def die(self) -> None:
        self._dead.set()

    async def _fault(self, verb: str, when: str) -> None:
        if self._dead.is_set():
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if self.host.away and verb != "open":
            raise UnreachableError("The host is not responding.")
        fault = self._faults.get((verb, when))
        if isinstance(fault, BaseException):
            raise fault
        if fault is not None:
            self.reached[verb, when].set()
            while not self.allow[verb, when].is_set():
                try:
                    await self.allow[verb, when].wait()
                except asyncio.CancelledError:
                    if fault != "ignore_cancel":
                        raise
        if self._dead.is_set():
            await asyncio.Event().wait()

    @contextlib.asynccontextmanager
    async def _verb(self, verb: str, subject: str, *, exclusive: bool = True):
        self.calls.append((verb, subject))
        in_progress = self.now_running.setdefault(subject, set())
        if exclusive and in_progress and verb != "kill":
            self.overlaps.append(f"{verb} during {sorted(in_progress)} of {subject}")
        if exclusive:
            in_progress.add(verb)
        try:
            await self._fault(verb, "before")
            yield
            if verb not in {"create", "fork"}:
                await self._fault(verb, "after")
        finally:
            in_progress.discard(verb)

    def _machine(self, handle: Handle) -> Machine:
        try:
            return self.host.machines[handle.id]
        except KeyError:
            raise NotFoundError(f"no such machine {handle.id}") from None

    # verbs

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        async with self._verb("open", "host", exclusive=False):
            kept = {handle.id for handle in keep}
            if self.host.away:
                self._unswept = (kept, set(snapshots))
                return {}
            self._sweep(kept, set(snapshots))
            machines = self.host.machines
            for machine in machines.values():
                machine.ended = asyncio.Event()
            return {item: machines[item].condition if item in machines else Condition.ABSENT for item in kept}

    def _sweep(self, kept: set[str], snapshots: set[str]) -> None:
        for sandbox_id in self.host.machines.keys() - kept:
            del self.host.machines[sandbox_id]
        for snapshot_id in self.host.snapshots.keys() - snapshots:
            del self.host.snapshots[snapshot_id]

    async def close(self) -> None:
        pass

    def come_back(self, *, rebooted: bool) -> None:
        """The host can be reached again, and everything on it is in doubt."""
        if rebooted:
            self.host.reboot()
        self.host.away = False
        if self._unswept is not None:
            self._sweep(*self._unswept)
            self._unswept = None
        self.on_doubt(list(self.host.machines), "Its host was restarted" if rebooted else "Its host was unreachable")

    def find_layers(self, layers: Layers) -> Layers:
        return layers

    def get_room(self, handle: Handle | None = None) -> Room:
        return Room(self.host.available_memory, self.host.free_disk, "/data", self.host.full)

    async def measure_disk(self) -> DiskReport:
        return DiskReport((DiskUse(DiskKind.SANDBOXES, 1000, len(self.host.machines)),), frozenset())

    async def wait_for_failure(self) -> str:
        return await asyncio.get_running_loop().create_future()

    async def create(self, spec: Spec) -> Handle:
        async with self._verb("create", spec.id):
            if len(self.host.machines) >= self.host.capacity:
                raise FullError("The machine is full: no slot is left.")
            files = frozenset[str]()
            for layer in spec.layers:
                if layer.startswith("snap:"):
                    if layer[5:] not in self.host.snapshots:
                        raise SandyardError(f"layer {layer} is gone")
                    files |= self.host.snapshots[layer[5:]]
            machine = Machine(spec, Condition.RUNNING, self.host.new_memory(), files, spec.network)
            await self._add_machine("create", machine)
        return Handle(spec.id, self.name, {"boot": machine.memory})

    async def _add_machine(self, verb: str, machine: Machine) -> None:
        self.host.machines[machine.spec.id] = machine
        try:
            await self._fault(verb, "after")
        except BaseException:
            if not self._dead.is_set():
                self.host.machines.pop(machine.spec.id, None)  # a failed create leaves nothing behind
            raise

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        async with self._verb("boot", handle.id):
            machine = self._machine(handle)
            if machine.condition is not Condition.STOPPED:
                raise SandyardError(f"boot of a {machine.condition} machine")
            machine.condition, machine.memory = Condition.RUNNING, self.host.new_memory()
            machine.ended, machine.init, machine.policy = asyncio.Event(), None, spec.network
        return Handle(handle.id, self.name, {"boot": machine.memory})

    async def get_condition(self, handle: Handle) -> Condition:
        async with self._verb("condition", handle.id, exclusive=False):
            machine = self.host.machines.get(handle.id)
            return Condition.ABSENT if machine is None else machine.condition

    async def wait_for_exit(self, handle: Handle) -> str:
        machine = self._machine(handle)
        if machine.condition is Condition.STOPPED:
            return machine.reason or "it is not running"
        await machine.ended.wait()
        if self._dead.is_set():
            await asyncio.Event().wait()
        return machine.reason

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        async with self._verb("connect", handle.id, exclusive=False):
            machine = self._machine(handle)
            if port != AGENT_PORT:
                raise UnreachableError(f"nothing listens on {port}")
            if machine.condition is not Condition.RUNNING:
                raise UnreachableError("no agent")
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            theirs.setblocking(False)
            asyncio.get_running_loop().create_task(_serve(machine, theirs))
            return ours

    async def freeze(self, handle: Handle) -> None:
        async with self._verb("freeze", handle.id):
            machine = self._machine(handle)
            if machine.condition not in {Condition.RUNNING, Condition.FROZEN}:
                raise SandyardError(f"freeze of a {machine.condition} machine")
            machine.condition = Condition.FROZEN

    async def thaw(self, handle: Handle) -> None:
        async with self._verb("thaw", handle.id):
            machine = self._machine(handle)
            if machine.condition not in {Condition.RUNNING, Condition.FROZEN}:
                raise SandyardError(f"thaw of a {machine.condition} machine")
            machine.condition = Condition.RUNNING

    async def suspend(self, handle: Handle) -> Handle:
        async with self._verb("suspend", handle.id):
            if Isolation.NAMESPACE not in self.capabilities.suspend:
                raise UnsupportedError
            self._machine(handle).condition = Condition.SUSPENDED
        return replace(handle, data={**handle.data, "suspended": True})

    async def restore(self, handle: Handle) -> Handle:
        async with self._verb("restore", handle.id):
            machine = self._machine(handle)
            if machine.condition is not Condition.SUSPENDED:
                raise SandyardError(f"restore of a {machine.condition} machine")
            machine.condition = Condition.RUNNING
        return replace(handle, data={"boot": machine.memory})

    async def stop(self, handle: Handle) -> Handle:
        async with self._verb("stop", handle.id):
            machine = self._machine(handle)
            machine.condition, machine.init = Condition.STOPPED, None
            machine.reason = "stopped"
            machine.ended.set()
        return replace(handle, data={})

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        async with self._verb("snapshot", handle.id):
            machine = self._machine(handle)
            self.host.snapshots[snapshot_id] = machine.files
        return (f"snap:{snapshot_id}", *machine.spec.layers)

    async def delete_snapshot(self, snapshot_id: str) -> None:
        async with self._verb("delete_snapshot", snapshot_id):
            self.host.snapshots.pop(snapshot_id, None)

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        async with self._verb("fork", handle.id):
            machine = self._machine(handle)
            if len(self.host.machines) >= self.host.capacity:
                raise FullError("The machine is full: no slot is left.")
            copy = Machine(spec, Condition.RUNNING, self.host.new_memory(), machine.files, spec.network)
            await self._add_machine("fork", copy)
        return Handle(spec.id, self.name, {"boot": copy.memory})

    async def fork_with_memory(self, handle: Handle, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        async with self._verb("fork_with_memory", handle.id):
            original = self._machine(handle)
            if original.spec.isolation not in self.capabilities.memory_fork:
                raise UnsupportedError("its memory cannot be copied")
            results: list[Handle | SandyardError] = []
            for spec in specs:
                if len(self.host.machines) >= self.host.capacity:
                    results.append(FullError("The machine is full: no slot is left."))
                    continue
                self.host.machines[spec.id] = replace(original, spec=spec, policy=spec.network, ended=asyncio.Event())
                results.append(Handle(spec.id, self.name, {"boot": original.memory}))
        return results

    async def kill(self, handle: Handle) -> None:
        async with self._verb("kill", handle.id):
            machine = self.host.machines.pop(handle.id, None)
            if machine is not None:
                machine.reason = "killed"
                machine.ended.set()

    async def get_stats(self, handle: Handle) -> Stats:
        async with self._verb("stats", handle.id, exclusive=False):
            machine = self._machine(handle)
            kills = machine.oom_kills
            return Stats(machine.cpu_seconds, 2, 10 << 20, 1 << 20, 512 << 20, 5 << 20, 10 << 30, kills)

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        async with self._verb("set_network", handle.id):
            self._machine(handle).policy = policy

    async def take_denied(self, handle: Handle) -> Collection[DeniedAttempt]:
        denied, self.denied = self.denied, []
        return denied


async def _serve(machine: Machine, connection: socket.socket) -> None:
    """Serve the part of the guest agent's `POST /init` that the engine uses."""
    loop = asyncio.get_running_loop()
    with connection:
        if machine.silent:
            await loop.sock_recv(connection, 1)
            while await loop.sock_recv(connection, 65536):
                pass
            return
        request = b""
        while b"\r\n\r\n" not in request:
            received = await loop.sock_recv(connection, 65536)
            if not received:
                return
            request += received
        head, body = request.split(b"\r\n\r\n", 1)
        length = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        while len(body) < length:
            body += await loop.sock_recv(connection, 65536)
        assert head.startswith(b"POST /init HTTP/1.1")
        machine.init = json.loads(body)
        await loop.sock_sendall(connection, b"HTTP/1.1 204 No Content\r\n\r\n")
