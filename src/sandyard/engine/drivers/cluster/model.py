"""The engine's data about its hosts: the registration of each, and its last report."""

from __future__ import annotations

import enum
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from sandyard.engine.contract import Capabilities, Isolation

DRIVER_NAME = "cluster"
LOCAL_HOST_ID = "local"
"""The machine that the engine runs on. It has no record: its driver runs in the engine's process."""

ELSEWHERE = "elsewhere"
"""The driver in the handles of sandboxes on the machine of another engine with the same database. They are out of reach until that
engine is active again."""


@dataclass(frozen=True, slots=True)
class HostRecord:
    """A registered host, where its host service listens, and what an administrator decided about it."""

    id: str
    name: str
    address: str  # IP address or name of the machine
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    draining: bool = False  # gets no new sandboxes
    lost: bool = False  # its sandboxes continue on other hosts


class HostDirectory(Protocol):
    """The registered hosts, and the TLS contexts with which the engine identifies itself to them."""

    def list_records(self) -> Sequence[HostRecord]:
        """Return the registered hosts."""
        ...

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` on the event loop whenever the result of `list_records` changes."""
        ...

    def make_client_context(self, host_id: str) -> ssl.SSLContext:
        """Return a TLS context that shows the engine's certificate and accepts only this host's. Connect with
        `server_hostname=host_id`: host certificates are issued for ids, so a host may change its address."""
        ...


class Origins(Protocol):
    """The hosts on which layers and volumes were created, as recorded by the engine. Hosts are not trusted to report this: a host
    that claims a layer or volume of another could read or replace its files. Names are those of layers, or from
    `make_volume_name`."""

    def find_host(self, name: str) -> str | None:
        """Return the host, or None: it is this machine, or not known."""
        ...

    def find_content(self, layer: str) -> str | None:
        """Return the digest of the layer's files, or None if it was never transferred."""
        ...

    def record(self, name: str, host_id: str) -> None:
        """Remember a new layer or volume. Raises ConflictError if another host has one with this name."""
        ...

    def record_content(self, layer: str, diff_id: str) -> None:
        """Remember the digest of a layer's files, if none is known."""
        ...

    def forget(self, name: str) -> None:
        """Forget a layer or a volume. Idempotent."""
        ...


def make_volume_name(volume_id: str) -> str:
    """Return the name of a volume for `Origins`."""
    return f"volume:{volume_id}"


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels as people write them, such as `gpu=yes,zone=a`."""
    return ",".join(f"{name}={value}" for name, value in labels.items())


class HostState(enum.StrEnum):
    """The state of the engine's connection to a host."""

    CONNECTING = "connecting"  # not reached yet since the engine started or the host joined
    READY = "ready"
    UNREACHABLE = "unreachable"  # its sandboxes are kept, but nothing can be done with them


@dataclass(frozen=True, slots=True)
class HostRoom:
    """The total resources of a host, and what is left for new sandboxes. Memory and disk are in bytes; None if unknown."""

    memory_total: int | None
    memory_available: int | None
    disk_total: int | None
    disk_free: int | None
    cpu_count: int
    load: float  # processes that want to run, averaged over a minute
    full: str | None = None  # why the host refuses new sandboxes, even if other resources are free


@dataclass(frozen=True, slots=True)
class HostStatus:
    """A host as the engine sees it now. What a host has not reported yet is None."""

    record: HostRecord
    state: HostState
    since: float  # of this state, in seconds since the epoch
    reason: str | None = None  # why it is not ready
    version: str | None = None  # of Sandyard on the host
    room: HostRoom | None = None
    capabilities: Capabilities | None = None
    sandboxes: int = 0  # that the engine placed there, in every condition
    seen_at: float | None = None  # when it last answered, in seconds since the epoch
    silent_since: float | None = None  # since when it has answered nothing, not even that it refuses this engine


@dataclass(frozen=True, slots=True)
class PlacementRequest:
    """The requirements of a new sandbox on its host."""

    memory_mb: int
    isolation: Isolation
    containers: bool
    layers: tuple[str, ...]
    labels: Mapping[str, str] = field(default_factory=dict)  # that the host must have
    host_id: str | None = None  # the only host possible: that of its volumes, or of what it is forked from
