"""The nouns of the service: what a sandbox, a snapshot, a template, a metric and a log entry are.

Every type is frozen: a record is replaced, never changed in place, so whoever holds one holds what was true at one
instant. Times are seconds since the epoch (UTC) as floats.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from sandyard.engine.contract import Handle, Layers, Limits, Mount, NetworkPolicy, Spec
from sandyard.kit.errors import SandyardError
from sandyard.kit.secret import Secret

T = TypeVar("T")


class State(enum.StrEnum):
    """What a client sees. A sandbox that is neither has no record."""

    RUNNING = "running"
    PAUSED = "paused"


class PauseKind(enum.StrEnum):
    """Where a paused sandbox's memory is."""

    MEMORY = "memory"  # frozen, in RAM: resume continues the very processes, a reboot of the machine loses them
    DISK = "disk"  # on disk: resume continues the very processes, also after a reboot
    FILESYSTEM = "filesystem"  # nowhere: resume boots anew


class OnTimeout(enum.StrEnum):
    KILL = "kill"
    PAUSE = "pause"


class Intent(enum.StrEnum):
    """A verb that cannot be undone half-way, written down before the driver is asked, so that a restart finishes it.
    All other verbs need none: after a crash the record stands for what was answered, and the host is made to agree
    with it."""

    STOP = "stop"  # its processes are being ended for a file system pause
    NETWORK = "network"  # the egress policy in the record may not be in force yet


@dataclass(frozen=True, slots=True)
class Network:
    """The egress policy that is enforced, and the client's own words for it, to be shown back."""

    policy: NetworkPolicy = field(default_factory=NetworkPolicy)
    config: Mapping[str, Any] | None = None  # the E2B `network` object, normalised by the protocol layer
    allow_internet: bool | None = None  # as it was given; None: not said


@dataclass(frozen=True, slots=True)
class Defaults:
    """What processes in the sandbox start with when a request says nothing; sent to the agent's `/init`."""

    user: str = "user"
    workdir: str | None = None  # None: the user's home


@dataclass(frozen=True, slots=True)
class Start:
    """What runs in a sandbox from its first moment, as its default user: a shell command, and one that succeeds when
    the first is ready. Clients are given the sandbox then."""

    command: str
    ready: str | None = None  # None: ready as soon as it was started


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox as the database has it."""

    id: str
    template_id: str
    state: State
    handle: Handle
    layers: Layers
    limits: Limits
    network: Network
    created_at: float
    started_at: float  # of the last create or resume
    ends_at: float  # running: when it times out. paused: when it was paused
    timeout_s: float  # the last timeout that was asked for; auto-resume uses it
    alias: str | None = None
    name: str | None = None  # the template name the client asked for
    pause_kind: PauseKind | None = None
    paused_at: float | None = None
    memory_lost: str | None = None  # why its processes did not survive (a reboot of the machine…), else None
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Defaults = Defaults()
    start: Start | None = None
    secure: bool = True
    access_token: Secret | None = None
    traffic_token: Secret | None = None  # set when public traffic is not allowed
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volume_mounts: tuple[Mapping[str, Any], ...] = ()  # each the `name` and `id` of a volume and a `path`
    extra: Mapping[str, Any] = field(
        default_factory=dict
    )  # what the protocol layer wants kept and shown back (mcp, iam …)
    snapshots: tuple[str, ...] = ()  # the snapshots its layers need
    intent: Intent | None = None
    seq: int = 0  # order of creation; never used twice

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def spec(self) -> Spec:
        return Spec(self.id, self.layers, self.limits, self.network.policy, mounts_of(self.volume_mounts))


def mounts_of(volume_mounts: Sequence[Mapping[str, Any]]) -> tuple[Mount, ...]:
    return tuple(Mount(mount["id"], mount["path"]) for mount in volume_mounts)


@dataclass(frozen=True, slots=True)
class CreateSandbox:
    """A request for a sandbox. `template` is a name, an id, an alias or a snapshot's, with an optional `:tag`."""

    template: str = "base"
    timeout_s: float = 300
    metadata: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    network: Network = Network()
    secure: bool = True
    public_traffic: bool = True  # False: a traffic token is made and required on preview ports
    on_timeout: OnTimeout = OnTimeout.KILL
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volume_mounts: tuple[Mapping[str, Any], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits | None = None  # None: the template's, else the engine's
    idempotency_key: str | None = None  # scoped to `owner`
    owner: str = ""  # who asks (an API key's id); only scopes idempotency keys


@dataclass(frozen=True, slots=True)
class SandboxQuery:
    """Filters are joined by AND. `cursor` is a `Page.next_cursor` of the same query."""

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
class Forked:
    """One fork's outcome: exactly one of the two is set."""

    sandbox: Sandbox | None = None
    error: SandyardError | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A file system kept under an id that works as a template id. `ref` is what clients are given: `name:tag`, else
    `id:tag`."""

    id: str
    sandbox_id: str  # of which it was taken
    template_id: str  # on which that sandbox stood
    layers: Layers
    limits: Limits
    created_at: float
    name: str | None = None
    tag: str = "default"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    defaults: Defaults = Defaults()
    start: Start | None = None
    snapshots: tuple[str, ...] = ()  # the snapshots its own layers need, without itself
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
    """As clients are told it. Only of one that is ready sandboxes can be made."""

    READY = "ready"
    WAITING = "waiting"  # built when it is first asked for
    BUILDING = "building"
    ERROR = "error"  # its build failed


@dataclass(frozen=True, slots=True)
class Template:
    """What a name resolves to. Limits that are None leave the engine's default."""

    id: str
    layers: Layers
    aliases: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    defaults: Defaults = Defaults()
    start: Start | None = None
    snapshots: tuple[str, ...] = ()  # that its layers need
    lasting: bool = True  # False: a snapshot, of which no sandbox is made before it is asked for
    status: TemplateStatus = TemplateStatus.READY
    yields: bool = False  # to a client's own of the same name: its name was free in earlier releases
    cpu_count: int | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None

    @property
    def ready(self) -> bool:
        return self.status is TemplateStatus.READY


class Templates(Protocol):
    """Where templates come from. `resolve` is on the path of every create: it must answer from memory."""

    def resolve(self, name: str) -> Template | None:
        """The template with this id or alias, with or without `:tag`, ready or not; None when there is none."""
        ...

    def list(self) -> Sequence[Template]: ...


@dataclass(frozen=True, slots=True)
class Metric:
    timestamp: float
    cpu_count: int
    cpu_used_pct: float  # 0 to 100, of all the cores it may use
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
    """`start` is inclusive, in the direction of reading; `level` is the least severe that is shown."""

    start: float | None = None
    limit: int = 1000
    newest_first: bool = False
    level: LogLevel | None = None
    search: str | None = None
