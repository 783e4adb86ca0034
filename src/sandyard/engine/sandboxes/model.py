"""The types of the sandbox service: sandboxes, snapshots, templates, metrics and log entries.

All types are frozen: a record is replaced, never changed in place, so a reference always shows the state at one
instant. Times are seconds since the epoch (UTC) as floats.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sandyard.engine.contract import Handle, Isolation, Layers, Limits, Mount, NetworkPolicy, Spec
from sandyard.kit.errors import SandyardError
from sandyard.kit.secret import Secret

T = TypeVar("T")


class State(enum.StrEnum):
    """The state that clients see. A sandbox in neither state has no record."""

    RUNNING = "running"
    PAUSED = "paused"


class PauseKind(enum.StrEnum):
    """The location of a paused sandbox's memory."""

    MEMORY = "memory"  # frozen in RAM: resume continues the same processes; lost on a reboot of the machine
    DISK = "disk"  # on disk: resume continues the same processes, even after a reboot
    FILESYSTEM = "filesystem"  # not kept: resume boots again from the file system


class OnTimeout(enum.StrEnum):
    """The action when the timeout of a sandbox is reached."""

    KILL = "kill"
    PAUSE = "pause"


class Intent(enum.StrEnum):
    """An operation that cannot be undone half-way. It is recorded before the driver is called, so that a restart
    completes it. Other operations need no intent: after a crash the record shows what the client was told, and the host
    is made to match it."""

    STOP = "stop"  # processes are being stopped for a file system pause
    NETWORK = "network"  # the egress policy in the record may not be applied yet


@dataclass(frozen=True, slots=True)
class Network:
    """The enforced egress policy, and the client's original configuration, which is returned by the API."""

    policy: NetworkPolicy = field(default_factory=NetworkPolicy)
    config: Mapping[str, Any] | None = None  # the E2B `network` object, normalised by the protocol layer
    allow_internet: bool | None = None  # as given by the client; None: not given


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults for processes in the sandbox; sent to the agent's `/init`."""

    user: str = "user"
    workdir: str | None = None  # None: the user's home


@dataclass(frozen=True, slots=True)
class StartCommand:
    """A shell command that runs in a sandbox from the start, as its default user, and a second one that succeeds when
    the first is ready. Clients get the sandbox only then."""

    command: str
    ready: str | None = None  # None: ready as soon as it is started


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox as stored in the database."""

    id: str
    template_id: str
    state: State
    handle: Handle
    layers: Layers
    limits: Limits
    network: Network
    created_at: float
    started_at: float  # time of the last create or resume
    ends_at: float  # running: when it times out; paused: when it was paused
    timeout_s: float  # the last requested timeout; auto-resume uses it
    isolation: Isolation = Isolation.NAMESPACE
    containers: bool = False
    host_labels: Mapping[str, str] = field(default_factory=dict)  # that its host must have
    alias: str | None = None
    name: str | None = None  # the template name that the client requested
    pause_kind: PauseKind | None = None
    paused_at: float | None = None
    memory_lost: str | None = None  # why its processes were lost (such as a reboot of the machine), otherwise None
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Defaults = Defaults()
    start: StartCommand | None = None
    secure: bool = True
    access_token: Secret | None = None
    traffic_token: Secret | None = None  # set when public traffic is not allowed
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volume_mounts: tuple[Mapping[str, Any], ...] = ()  # each has the `name` and `id` of a volume and a `path`
    # Protocol fields that are stored and returned unchanged (mcp, iam …)
    extra: Mapping[str, Any] = field(default_factory=dict)
    snapshots: tuple[str, ...] = ()  # the snapshots its layers need
    intent: Intent | None = None
    seq: int = 0  # order of creation; never reused

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def spec(self) -> Spec:
        """Return the parameters with which the driver creates or boots this sandbox."""
        mounts = make_mounts(self.volume_mounts)
        return Spec(
            self.id,
            self.layers,
            self.limits,
            self.network.policy,
            mounts,
            self.isolation,
            self.containers,
            self.host_labels,
        )


def make_mounts(volume_mounts: Sequence[Mapping[str, Any]]) -> tuple[Mount, ...]:
    """Return the driver's form of `Sandbox.volume_mounts`."""
    return tuple(Mount(mount["id"], mount["path"]) for mount in volume_mounts)


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """A request for a sandbox. `template` is the name, id or alias of a template or snapshot, with an optional
    `:tag`."""

    template: str = "base"
    timeout_s: float = 300
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    network: Network = Network()
    secure: bool = True
    public_traffic: bool = True  # False: a traffic token is created and required on preview ports
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None  # None: the template's, otherwise the engine's
    idempotency_key: str | None = None  # scoped to `owner`
    owner: str = ""  # the caller (an API key's id); used only to scope idempotency keys


@dataclass(frozen=True, slots=True)
class SandboxQuery:
    """A query for sandboxes. Filters are combined with AND. `cursor` is a `Page.next_cursor` of the same query."""

    metadata: Mapping[str, str] = field(default_factory=dict)
    states: frozenset[State] = frozenset(State)
    template: str | None = None  # template id, alias or name
    started_after: float | None = None
    started_before: float | None = None
    oldest_first: bool = False
    limit: int = 100
    cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    items: tuple[T, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class ForkResult:
    """The outcome of one fork: exactly one of the two fields is set."""

    sandbox: Sandbox | None = None
    error: SandyardError | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved file system whose id works as a template id. `ref` is what clients get: `name:tag`, otherwise
    `id:tag`."""

    id: str
    sandbox_id: str  # the sandbox it was taken from
    template_id: str  # the template of that sandbox
    layers: Layers
    limits: Limits
    created_at: float
    name: str | None = None
    tag: str = "default"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Defaults = Defaults()
    start: StartCommand | None = None
    isolation: Isolation | None = None  # of the sandbox it was taken from; None: not recorded by an earlier version
    containers: bool | None = None  # likewise
    snapshots: tuple[str, ...] = ()  # the snapshots its own layers need, excluding itself
    seq: int = 0

    @property
    def ref(self) -> str:
        return f"{self.name or self.id}:{self.tag}"

    @property
    def names(self) -> tuple[str, ...]:
        return (f"{self.name}:{self.tag}",) if self.name else ()


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    sandbox_id: str | None = None
    name: str | None = None  # with or without `:tag`
    limit: int = 100
    cursor: str | None = None


class TemplateStatus(enum.StrEnum):
    """The status that clients see. Sandboxes can be created only from a template that is ready."""

    READY = "ready"
    WAITING = "waiting"  # built on first use
    BUILDING = "building"
    ERROR = "error"  # its build failed


@dataclass(frozen=True, slots=True)
class Template:
    """A template: the result of resolving a name. Limits that are None use the engine's defaults."""

    id: str
    layers: Layers
    aliases: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    start: StartCommand | None = None
    snapshots: tuple[str, ...] = ()  # snapshots that its layers need
    can_be_pooled: bool = True  # False: a snapshot; no sandboxes are created in advance for it
    status: TemplateStatus = TemplateStatus.READY
    # True: a client's template of the same name takes precedence, because this name was free in earlier releases
    can_be_overridden: bool = False
    cpu_count: int | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    isolation: Isolation | None = None  # of a snapshot's sandboxes; None: chosen as in the module `isolation`
    containers: bool | None = None  # likewise; also set by built-in templates

    @property
    def ready(self) -> bool:
        return self.status is TemplateStatus.READY


class Templates(Protocol):
    """The source of templates. Every create calls `resolve`, so it must answer from memory."""

    def resolve(self, name: str) -> Template | None:
        """Return the template with this id or alias, with or without `:tag`, ready or not, or None."""
        ...

    def list(self) -> Sequence[Template]: ...


@dataclass(frozen=True, slots=True)
class Metric:
    timestamp: float
    cpu_count: int
    cpu_used_pct: float  # 0 to 100, relative to all cores it may use
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


class LogLevel(enum.StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class LogEntry:
    timestamp: float
    level: LogLevel
    message: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A query for log entries. `start` is inclusive, in reading direction; `level` is the lowest level returned."""

    start: float | None = None
    limit: int = 1000
    newest_first: bool = False
    level: LogLevel | None = None
    search: str | None = None
