"""The driver contract: every operation the engine needs from the backend that runs sandboxes.

A driver decides *where* a sandbox runs; the guest agent handles *what happens in it*. The agent speaks the envd
protocol on port 49983, so exec, streams and files are not driver operations: they go through `connect`. A driver makes
no policy decisions: it manages no timeouts, names or keys, and knows only what the engine told it and what it finds on
its host.

Rules for every driver and every operation:
- A `Handle` is plain JSON. Any later engine process can pass it to a new driver object and continue.
- Anything on the host that is not passed to `open` was left by a crash, and `open` removes it, or, if the host cannot be
  reached then, as soon as it can be.
- Operations raise only `sandyard.kit.errors`. A failed operation leaves existing state unchanged; a failed `create` or
  `fork` leaves nothing behind.
- What cannot be reached is unknown, not gone: operations on a sandbox whose host does not answer raise UnreachableError.
  The engine keeps such a sandbox and tries again.
- Operations on different sandboxes may run concurrently. The engine serialises operations on one sandbox.
"""

from __future__ import annotations

import enum
import socket
import ssl
from collections.abc import AsyncIterable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandyard.kit.errors import SandyardError, UnsupportedError

AGENT_PORT = 49983
INTERPRETER_PORT = 49999  # in sandboxes that have a code interpreter

Layers = tuple[str, ...]
"""A root file system: names of read-only layers, topmost first, such as `snap:s1`, `tpl:base/3f2a`. Created by templates,
images and `snapshot`. The engine stores and compares them; drivers find their files. Names are the same on every host;
records of earlier versions contain absolute paths instead."""


class Isolation(enum.StrEnum):
    """Isolation levels: the boundary between the processes of a sandbox and the host. The weakest level is first."""

    NAMESPACE = "namespace"  # Linux namespaces, on the host's kernel
    GVISOR = "gvisor"  # a kernel of its own, which runs as a program on the host

    def is_at_least(self, other: Isolation) -> bool:
        """Return whether this level is the same as the other one or stronger."""
        levels = list(Isolation)
        return levels.index(self) >= levels.index(other)


@dataclass(frozen=True, slots=True)
class Limits:
    """The resources that a sandbox may use. `capabilities.limits` says which of them the driver enforces."""

    memory_mb: int = 512
    cpu_count: int = 2
    pids: int = 1024
    disk_mb: int = 10240


@dataclass(frozen=True, slots=True)
class HostRule:
    """Headers to set on outgoing HTTP requests to a host; they replace headers of the same name. Their values may
    contain placeholders, which `Outbound.fill` replaces. `host` is a host name, or `*.example.com` for all names below
    it."""

    host: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """The egress policy of a sandbox. `allow_out` takes precedence over `deny_out`; entries are addresses, CIDRs or
    (allow only) domain names, including `*.example.com`. The host, other sandboxes and link-local addresses are never
    reachable, except for the engine's public names (`Hairpin`). `rules` do not allow any traffic by themselves; a
    driver that cannot apply them raises UnsupportedError."""

    allow_internet: bool = True
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    rules: tuple[HostRule, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the policy as JSON-compatible values."""
        plain: dict[str, Any] = {
            "allow_internet": self.allow_internet,
            "allow_out": self.allow_out,
            "deny_out": self.deny_out,
        }
        if self.rules:
            plain["rules"] = [(rule.host, rule.headers) for rule in self.rules]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> NetworkPolicy:
        """Parse the output of `to_dict`, from this or an earlier engine version. Raises KeyError, TypeError or ValueError."""
        rules = (
            HostRule(str(host), tuple((str(name), str(value)) for name, value in headers))
            for host, headers in plain.get("rules", ())
        )
        return cls(bool(plain["allow_internet"]), tuple(plain["allow_out"]), tuple(plain["deny_out"]), tuple(rules))


@dataclass(frozen=True, slots=True)
class DeniedAttempt:
    """An attempt blocked by the egress policy: a connection to an address, or (`protocol` dns) a lookup of a name."""

    host: str
    protocol: str
    port: int | None = None


class Outbound(Protocol):
    """Services that a driver needs from the engine to apply rules; the driver itself holds no secrets and no
    certificates. Usable from any thread and event loop."""

    async def fill(self, value: str) -> str:
        """Return the value with its placeholders replaced by current secrets. Raises NotFoundError if a secret does not
        exist."""
        ...

    def holds_secret(self, value: str) -> bool:
        """Return whether `fill` would insert a secret into the value."""
        ...

    async def make_context(self, host: str) -> ssl.SSLContext:
        """Return a TLS context for a server that sandboxes accept as this host."""
        ...


@dataclass(frozen=True, slots=True)
class PublicNames:
    """The public names of the engine and of sandbox ports: `domain` and all names below it, over HTTPS at `port`."""

    domain: str
    port: int

    def include(self, name: str) -> bool:
        """Return whether `name` is a public name. `name` must be lower case, without the final dot."""
        return name == self.domain or name.endswith(f".{self.domain}")


@dataclass(frozen=True, slots=True)
class Hairpin:
    """The listener for connections from sandboxes to the engine's public names; each connection has the sandbox's own
    source address. `is_allowed(address, name)` returns whether the current network policy of the sandbox at that
    address allows the name."""

    listener: socket.socket
    is_allowed: Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume mounted in a sandbox. All sandboxes that mount it share the same files, and changes are visible
    immediately. The mount point is created if it is missing. The mount is nosuid and nodev."""

    volume: str
    target: str  # absolute and normalised; validated by the engine
    read_only: bool = False


class FileKind(enum.StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file, directory or link in a volume. Times are seconds since the epoch; `mode` is permissions without the kind."""

    name: str
    path: str
    kind: FileKind
    size: int
    mode: int
    uid: int  # owners are the ids that sandboxes see
    gid: int
    atime: float
    mtime: float
    ctime: float
    target: str | None = None  # of a link


@dataclass(frozen=True, slots=True)
class FileOwner:
    """The owner and permissions for a file. None means the default."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None


class FileReader(Protocol):
    """A file of a volume that is open for reading. `size` is its size when it was opened, and all that is read."""

    size: int

    async def read(self, max_bytes: int) -> bytes:
        """Return the next chunk, empty at the end. Raises ConflictError if the file became shorter."""
        ...

    async def close(self) -> None:
        """Close the file. Idempotent."""
        ...


class VolumeFiles(Protocol):
    """The files of one volume. Sandboxes control them and may set traps, so a driver resolves every path, also through
    links, inside the volume. `..` at the top stays there. All operations except `stat` follow a link at the end of a path.
    They raise NotFoundError, InvalidInputError, ConflictError, ForbiddenError, BusyError or NoSpaceError."""

    async def stat(self, path: str) -> FileEntry:
        """Return the entry at this path."""
        ...

    async def list(self, path: str, depth: int = 1) -> Sequence[FileEntry]:
        """Return the sorted entries of a directory and its subdirectories down to `depth`. Links are not followed.
        Raises InvalidInputError if there are too many."""
        ...

    async def make_dir(self, path: str, owner: FileOwner, *, force: bool) -> FileEntry:
        """Create a directory. With `force`, create missing parents and accept an existing directory."""
        ...

    async def change(self, path: str, owner: FileOwner) -> FileEntry:
        """Change owner and permissions; values that are None stay unchanged."""
        ...

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with its contents."""
        ...

    async def open(self, path: str) -> FileReader:
        """Open a regular file for reading. The caller closes it."""
        ...

    async def write(
        self, path: str, chunks: AsyncIterable[bytes], owner: FileOwner, *, force: bool, reserve: int = 0
    ) -> FileEntry:
        """Write a file, which becomes visible only when it is complete. The next chunk is requested when the one before is
        written; errors that are known before the first are raised before it is requested. `force` replaces an existing
        file and creates missing directories. `reserve` is the number of bytes to leave free on the disk."""
        ...


@dataclass(frozen=True, slots=True)
class Spec:
    """The parameters of a new sandbox."""

    id: str
    layers: Layers
    limits: Limits = Limits()
    network: NetworkPolicy = NetworkPolicy()
    mounts: tuple[Mount, ...] = ()
    isolation: Isolation = Isolation.NAMESPACE
    containers: bool = False  # programs in it may create containers, which makes more of the kernel reachable
    host_labels: Mapping[str, str] = field(default_factory=dict)  # that its host must have; only a cluster has hosts


@dataclass(frozen=True, slots=True)
class Handle:
    """Everything needed to find a sandbox again. `data` belongs to the driver; the engine stores it without reading it."""

    id: str
    driver: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Condition(enum.StrEnum):
    """The observed state of a sandbox, never an assumed one."""

    RUNNING = "running"
    FROZEN = "frozen"  # processes are stopped, memory is kept in RAM
    SUSPENDED = "suspended"  # memory is on disk
    STOPPED = "stopped"  # only the file system remains
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Stats:
    """The resources that a sandbox uses. Memory and disk are in bytes."""

    cpu_seconds: float
    cpu_count: int
    memory_used: int
    memory_cache: int
    memory_total: int
    disk_used: int
    disk_total: int
    oom_kills: int = 0  # processes that were killed for lack of memory since the sandbox was last started


@dataclass(frozen=True, slots=True)
class Room:
    """The resources left on a host. Memory and disk are in bytes; None if unknown."""

    memory_available: int | None  # without swapping
    disk_free: int | None  # of `disk`
    disk: str  # the directory whose disk stores the sandboxes
    full: str | None = None  # why the driver refuses new sandboxes and snapshots, even if other resources are free


class DiskKind(enum.StrEnum):
    """Kinds of data that a driver stores on its disk."""

    SANDBOXES = "sandboxes"  # what existing sandboxes have written
    MEMORY = "memory"  # of suspended sandboxes
    SNAPSHOTS = "snapshots"
    SHARED = "shared"  # data that only snapshots and copies still need, such as that of removed sandboxes
    VOLUMES = "volumes"
    REMOVING = "removing"  # removed, and being deleted from the disk
    RESERVED = "reserved"  # taken from the disk for new data


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The bytes on the disk that one kind takes, and how many of them there are. No byte belongs to two kinds."""

    kind: DiskKind
    bytes: int
    count: int | None = None


@dataclass(frozen=True, slots=True)
class DiskReport:
    """The disk use of a driver on this machine, and the files and directories that it has measured."""

    uses: tuple[DiskUse, ...]
    paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The features that this driver supports on this machine. `missing` gives the reason and the remedy for each thing it
    cannot do."""

    freeze: bool
    suspend: frozenset[Isolation]  # levels whose sandboxes can be suspended to disk
    memory_fork: frozenset[Isolation]  # levels whose sandboxes can be forked with their memory
    live_copy: str  # how a running sandbox is copied: "cow" or "copy"
    limits: frozenset[str]  # any of "memory", "cpu", "pids", "disk"
    egress: bool  # sandboxes can reach the internet, subject to policy
    isolation: frozenset[Isolation]  # levels that sandboxes can have
    # Levels whose sandboxes can run containers; `missing` names others as "containers.LEVEL"
    containers: frozenset[Isolation]
    missing: Mapping[str, str] = field(default_factory=dict)

    def check_containers(self, isolation: Isolation) -> None:
        """Raise UnsupportedError, with the reason and the remedy, if sandboxes of this level cannot run containers."""
        if isolation not in self.containers:
            reason = self.missing.get(f"containers.{isolation.value}", "this engine does not support it")
            raise UnsupportedError(
                f"Containers in a sandbox with isolation level {isolation.value} are not available: {reason}."
            )


OnDoubt = Callable[[Collection[str], str], None]
"""Called with the ids of sandboxes and the reason why their condition is in doubt."""


def ignore_doubt(sandbox_ids: Collection[str], reason: str) -> None:
    """Do nothing: the `OnDoubt` of a driver that is used without an engine."""


class Driver(Protocol):
    on_doubt: OnDoubt
    """Set by the engine before `open`. The driver calls it on the event loop if sandboxes may have changed without
    `wait_for_exit` returning, for example after their host was restarted. The engine then asks for their condition."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> Capabilities:
        """Available after `open`. A driver that has to test `suspend` first replaces it shortly afterwards."""
        ...

    @property
    def hairpin(self) -> Hairpin | None:
        """Available after `open`. None if sandboxes cannot reach the engine by its public names."""
        ...

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        """Take over the host: adopt the sandboxes in `keep` and remove everything else this driver ever created in its
        data directory. Return the condition of each kept sandbox, except those that cannot be reached: the engine asks
        for their condition until it is known. Idempotent."""
        ...

    async def close(self) -> None:
        """Release the host. Sandboxes keep running."""
        ...

    def find_layers(self, layers: Layers) -> Layers:
        """Return the directories of these layers on this machine, to read them, whether they exist or not. Available
        after `open`. Raises NotFoundError if a layer cannot be on this machine."""
        ...

    def get_room(self, handle: Handle | None = None) -> Room:
        """Return the free resources: of the host of this sandbox, or of the host that has the most. Must be fast and
        not use a network, because creates wait for it. Raises NotFoundError if the sandbox's host is no longer registered."""
        ...

    async def measure_disk(self) -> DiskReport:
        """Return the disk use on this machine. May take seconds."""
        ...

    async def wait_for_failure(self) -> str:
        """Wait until the driver has failed for good and only a new engine process can recover. Return the reason.
        Cancellable."""
        ...

    async def create(self, spec: Spec) -> Handle:
        """Create a running sandbox whose agent accepts connections. Raises FullError, which names the exhausted
        resource, and UnsupportedError if the isolation level, or containers at that level, are not available: never use
        something else."""
        ...

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        """Start a STOPPED sandbox on its existing file system, with new memory and processes."""
        ...

    async def get_condition(self, handle: Handle) -> Condition:
        """Return the current condition. Never raises NotFoundError: a sandbox that certainly does not exist is ABSENT. The
        engine removes the record of such a sandbox, and of no other."""
        ...

    async def wait_for_exit(self, handle: Handle) -> str:
        """Wait until a running or frozen sandbox has ended for any reason. Return the reason, at once if it had ended
        before. Cancellable."""
        ...

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        """Return a connected, non-blocking stream socket to a TCP port on the sandbox's loopback interface, or to its
        agent. Raises UnreachableError if nothing listens there. Never wakes a sandbox."""
        ...

    async def freeze(self, handle: Handle) -> None:
        """Stop all processes of a running sandbox and keep its memory in RAM. Idempotent."""
        ...

    async def thaw(self, handle: Handle) -> None:
        """Let the processes of a frozen sandbox continue. Idempotent."""
        ...

    async def suspend(self, handle: Handle) -> Handle:
        """Move a frozen sandbox's memory to disk. Raises UnsupportedError if `capabilities.suspend` lacks its level, or it
        can run containers."""
        ...

    async def restore(self, handle: Handle) -> Handle:
        """Restore the processes of a suspended sandbox and let them run."""
        ...

    async def stop(self, handle: Handle) -> Handle:
        """Stop all processes and keep the file system. Idempotent."""
        ...

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        """Save the current file system as layers for new sandboxes. The condition of the sandbox does not change."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Delete a snapshot. Idempotent. The engine calls it only when no sandbox uses the snapshot."""
        ...

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        """Create a running sandbox with a copy of this one's file system, taken at one instant, and with the same
        isolation. The original continues unchanged. Volumes are not part of the file system: the new sandbox mounts
        those of its own spec."""
        ...

    async def fork_with_memory(self, handle: Handle, specs: Sequence[Spec]) -> Sequence[Handle | SandyardError]:
        """Like `fork`, but the new sandboxes also continue the processes of a running or frozen one: all copies are of
        the same instant, and running. Return a handle or an error for each spec, whose limits, mounts, isolation and
        containers must be the original's. Connections to the outside are closed, also those of the original. Raises
        UnsupportedError, with the reason, if `capabilities.memory_fork` lacks its level or its memory cannot be
        copied."""
        ...

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        """Create an empty directory that outlives sandboxes, with a size limit if `capabilities.limits` contains
        "disk". Idempotent. Unlike sandboxes, volumes are never removed as leftovers: only `delete_volume` removes one."""
        ...

    async def delete_volume(self, volume_id: str) -> None:
        """Delete a volume. Idempotent. The engine calls it only when no sandbox mounts the volume."""
        ...

    def get_volume_files(self, volume_id: str) -> VolumeFiles:
        """Return the files of a volume. Whether it exists is checked by each operation."""
        ...

    async def kill(self, handle: Handle) -> None:
        """Stop the sandbox and remove every trace of it. Idempotent; works in every condition."""
        ...

    async def get_stats(self, handle: Handle) -> Stats:
        """Return the resources that the sandbox uses now."""
        ...

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        """Replace the egress policy of a running sandbox. Established connections that are no longer allowed are closed."""
        ...

    async def take_denied(self, handle: Handle) -> Collection[DeniedAttempt]:
        """Return the connections that the egress policy has blocked since the last call, without duplicates and limited to a few
        hundred."""
        ...
