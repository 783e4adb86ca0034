"""What a driver is: every verb the engine needs from the place where sandboxes run.

*Where* a sandbox runs is a driver's business; *what happens in it* is the guest agent's. The agent speaks the envd
protocol on port 49983, so exec, streams and files are not verbs here: they travel through `connect`. A driver makes no
policy: it keeps no timeouts, names and keys, and knows only what the engine told it and what it finds on its host.

Rules that hold for every driver and every verb:
- A `Handle` is plain JSON. Any later engine process can hand it to a new driver object and go on.
- Whatever is on the host and not named to `open` is garbage of a crash, and `open` removes it.
- Verbs raise only `sandyard.kit.errors`. One that fails leaves what it found; a failed `create` or `fork`, nothing.
- Verbs on different sandboxes may run at the same time. Verbs on one sandbox are serialised by the engine.
"""

from __future__ import annotations

import enum
import socket
import ssl
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

AGENT_PORT = 49983
INTERPRETER_PORT = 49999  # of sandboxes with a code interpreter

Layers = tuple[str, ...]
"""A root file system: opaque names of read-only layers, topmost first. Templates and `snapshot` make them."""


@dataclass(frozen=True, slots=True)
class Limits:
    memory_mb: int = 512
    cpu_count: int = 2
    pids: int = 1024
    disk_mb: int = 10240


@dataclass(frozen=True, slots=True)
class HostRule:
    """What HTTP requests to a host get on their way out: these headers, instead of any of the same name. Their values may
    hold placeholders, which `Outbound.fill` replaces. `host` is a name, or `*.example.com` for all below one."""

    host: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """`allow_out` wins over `deny_out`; entries are addresses, CIDRs or (allow only) domain names, `*.example.com` too.
    The host, other sandboxes and link-local addresses stay out of reach whatever is listed, except for the engine's public
    names (`Hairpin`). `rules` open nothing: a driver that cannot apply them raises UnsupportedError."""

    allow_internet: bool = True
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    rules: tuple[HostRule, ...] = ()

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        plain: dict[str, Any] = {
            "allow_internet": self.allow_internet,
            "allow_out": self.allow_out,
            "deny_out": self.deny_out,
        }
        if self.rules:
            plain["rules"] = [(rule.host, rule.headers) for rule in self.rules]
        return plain

    @classmethod
    def read(cls, plain: Mapping[str, Any]) -> NetworkPolicy:
        """What `plain` made, of this engine or an earlier one. Raises KeyError, TypeError or ValueError."""
        rules = (
            HostRule(str(host), tuple((str(name), str(value)) for name, value in headers))
            for host, headers in plain.get("rules", ())
        )
        return cls(bool(plain["allow_internet"]), tuple(plain["allow_out"]), tuple(plain["deny_out"]), tuple(rules))


@dataclass(frozen=True, slots=True)
class Denied:
    """What a sandbox's egress policy has refused: a connection to an address, or (`protocol` dns) the question for a name."""

    host: str
    protocol: str
    port: int | None = None


class Outbound(Protocol):
    """What a driver asks the engine for when it applies rules: it holds neither secrets nor certificates itself. Works in
    any thread and event loop."""

    async def fill(self, value: str) -> str:
        """The value with its placeholders replaced, as of now. Raises NotFoundError for what no secret is called."""
        ...

    def holds_secret(self, value: str) -> bool:
        """Whether `fill` would put a secret into it."""
        ...

    def context(self, host: str) -> ssl.SSLContext:
        """For a server that sandboxes take for this host."""
        ...


@dataclass(frozen=True, slots=True)
class PublicNames:
    """The names clients are told for the engine and for ports of sandboxes: `domain` and all below it, over HTTPS at `port`."""

    domain: str
    port: int

    def include(self, name: str) -> bool:
        """`name` in lower case, without the final dot."""
        return name == self.domain or name.endswith(f".{self.domain}")


@dataclass(frozen=True, slots=True)
class Hairpin:
    """Where connections of sandboxes to the engine's public names arrive, each with the sandbox's own source address.
    `is_allowed(address, name)` says whether the network policy of the sandbox at that address allows the name, as of now."""

    listener: socket.socket
    is_allowed: Callable[[str, str], bool]


@dataclass(frozen=True, slots=True)
class Mount:
    """A volume as a sandbox sees it: the very files, at once, beside everybody else who mounts it. The place is made when
    it is missing. Programs on it gain no privileges by their mode, and device nodes are no devices."""

    volume: str
    target: str  # absolute and plain: the engine has checked it
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Spec:
    id: str
    layers: Layers
    limits: Limits = Limits()
    network: NetworkPolicy = NetworkPolicy()
    mounts: tuple[Mount, ...] = ()


@dataclass(frozen=True, slots=True)
class Handle:
    """All that is needed to find a sandbox again. `data` belongs to the driver; the engine stores it and looks away."""

    id: str
    driver: str
    data: Mapping[str, Any] = field(default_factory=dict)


class Condition(enum.StrEnum):
    """What a driver saw, never what it hopes."""

    RUNNING = "running"
    FROZEN = "frozen"  # processes are stopped, memory is kept in RAM
    SUSPENDED = "suspended"  # memory is on disk
    STOPPED = "stopped"  # only the file system is left
    ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Stats:
    cpu_seconds: float
    cpu_count: int
    memory_used: int
    memory_cache: int
    memory_total: int
    disk_used: int
    disk_total: int


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What this driver can do on this machine, and for each thing it can't, why and what would help."""

    freeze: bool
    suspend: bool  # memory to disk
    live_copy: str  # how a running sandbox is copied: "cow" or "copy"
    limits: frozenset[str]  # of "memory", "cpu", "pids", "disk"
    egress: bool  # sandboxes reach the internet, by policy
    missing: Mapping[str, str] = field(default_factory=dict)


class Driver(Protocol):
    name: str
    capabilities: Capabilities  # known after `open`; a driver that tries `suspend` out first replaces it a little later

    @property
    def hairpin(self) -> Hairpin | None:
        """Known after `open`; None where sandboxes cannot reach the engine by its public names."""
        ...

    async def open(self, keep: Collection[Handle], snapshots: Collection[str]) -> Mapping[str, Condition]:
        """Take over the host: adopt the sandboxes in `keep`, remove everything else this driver ever made in its data
        directory. Says in what condition each kept sandbox was found. Idempotent."""
        ...

    async def close(self) -> None:
        """Let go of the host. Sandboxes live on."""
        ...

    def check_room(self) -> None:
        """Raise FullError, with the reason, while new sandboxes and snapshots should be refused. From memory: every create asks."""
        ...

    async def failed(self) -> str:
        """Return, with the reason, when nothing can be done here any more until a new engine process opens it. Cancellable."""
        ...

    async def create(self, spec: Spec) -> Handle:
        """A new running sandbox whose agent accepts connections. Raises FullError naming what is full."""
        ...

    async def boot(self, handle: Handle, spec: Spec) -> Handle:
        """Start a STOPPED sandbox anew on its file system; memory and processes are new."""
        ...

    async def condition(self, handle: Handle) -> Condition: ...

    async def exited(self, handle: Handle) -> str:
        """Return, with the reason, when a running or frozen sandbox has ended, whoever ended it. Cancellable."""
        ...

    async def connect(self, handle: Handle, port: int) -> socket.socket:
        """A connected non-blocking stream socket to a TCP port of the sandbox's loopback, or to its agent. Raises
        UnreachableError when nothing listens there. Never wakes a sandbox."""
        ...

    async def freeze(self, handle: Handle) -> None: ...

    async def thaw(self, handle: Handle) -> None: ...

    async def suspend(self, handle: Handle) -> Handle:
        """Move a frozen sandbox's memory to disk. UnsupportedError where `capabilities.suspend` is false."""
        ...

    async def restore(self, handle: Handle) -> Handle:
        """Bring a suspended sandbox's very processes back, running."""
        ...

    async def stop(self, handle: Handle) -> Handle:
        """End all processes, keep the file system. Idempotent."""
        ...

    async def snapshot(self, handle: Handle, snapshot_id: str) -> Layers:
        """The file system as of now, as layers for new sandboxes. The sandbox goes on in the condition it was in."""
        ...

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Idempotent. The engine calls it only when no sandbox stands on it."""
        ...

    async def fork(self, handle: Handle, spec: Spec) -> Handle:
        """A new running sandbox with a copy of this one's file system, taken at one instant. The original goes on.
        Volumes are no part of a file system: the new one mounts those of its own spec."""
        ...

    async def create_volume(self, volume_id: str, size_mb: int) -> None:
        """An empty directory that outlives sandboxes, with a size limit where `capabilities.limits` has "disk".
        Idempotent. Unlike sandboxes, volumes are never swept: only `delete_volume` removes one."""
        ...

    async def delete_volume(self, volume_id: str) -> None:
        """Idempotent. The engine calls it only when no sandbox mounts it."""
        ...

    def volume_path(self, volume_id: str) -> Path:
        """Where its files are on this host, with ids as sandboxes see them. What is in there was put by sandboxes: whoever
        follows its symbolic links is led astray."""
        ...

    async def kill(self, handle: Handle) -> None:
        """End it and remove every trace. Idempotent; works from every condition."""
        ...

    async def stats(self, handle: Handle) -> Stats: ...

    async def set_network(self, handle: Handle, policy: NetworkPolicy) -> None:
        """Replace the egress policy, live. Established connections that are no longer allowed are cut."""
        ...

    async def take_denied(self, handle: Handle) -> Collection[Denied]:
        """What the egress policy has refused since the last call: each once, and not more than a few hundred."""
        ...
