"""Choose the host for a new sandbox: a pure function of the hosts' reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sandyard.engine.contract import Capabilities
from sandyard.engine.drivers.cluster.model import HostRecord, HostRoom, HostState, PlacementRequest, format_labels
from sandyard.kit.errors import (
    BusyError,
    FullError,
    InvalidInputError,
    SandyardError,
    UnreachableError,
    UnsupportedError,
)

MIB = 1 << 20
_NEW_SANDBOX_MB = 64
"""Memory that a new sandbox is expected to use before its host reports again, if its limit allows it."""
_ENOUGH = 0.5  # of the memory of a host: above that, sandboxes are spread evenly
_SHOWN_HOSTS = 10


@dataclass(frozen=True, slots=True)
class Candidate:
    """A host as placement sees it."""

    record: HostRecord
    state: HostState
    reason: str | None  # why it is not ready
    room: HostRoom | None
    capabilities: Capabilities | None
    layers: Collection[str]  # that it is known to have, in a set
    sandboxes: int
    arriving: int  # sandboxes that were placed there since it reported its room
    is_stuck: bool = False  # it has not answered when a sandbox was created there, or not stored its layers


@dataclass(frozen=True, slots=True)
class Reserves:
    """Memory and disk that have to stay free on every host, in MiB."""

    memory_mb: int
    disk_mb: int


@dataclass(frozen=True, slots=True)
class Placement:
    """The hosts to try, the best one first. `lacking`: hosts that would be better than those that have the layers, if they
    had them."""

    hosts: Sequence[str]
    lacking: Sequence[str]


def place(request: PlacementRequest, candidates: Sequence[Candidate], reserves: Reserves) -> Placement:
    """Choose the hosts for a sandbox. Hosts that answer come first, then those that have all layers, those with the largest part
    of their memory available (half of it is enough), and those with the fewest sandboxes. Raises FullError, UnsupportedError,
    InvalidInputError or UnreachableError, with the reason for each host."""
    refused: dict[str, SandyardError] = {}
    possible: list[tuple[bool, bool, float, int, str]] = []
    for candidate in candidates:
        if request.host_id not in (None, candidate.record.id):
            continue
        error = find_obstacle(request, candidate, reserves)
        if error is not None:
            refused[candidate.record.name] = error
            continue
        lacks = any(layer not in candidate.layers for layer in request.layers)
        rating = (-_rate_memory(request, candidate), candidate.sandboxes)
        possible.append((candidate.is_stuck, lacks, *rating, candidate.record.id))
    if not possible:
        raise explain_refusals(refused)
    possible.sort()
    ready = [rated for rated in possible if not rated[0] and not rated[1]]
    lacking = [rated[4] for rated in possible if not rated[0] and rated[1] and ready and rated[2:] < ready[0][2:]]
    return Placement([rated[4] for rated in possible], lacking)


def find_obstacle(request: PlacementRequest, candidate: Candidate, reserves: Reserves) -> SandyardError | None:
    """Return why the host cannot have the sandbox, or None."""
    record, known = candidate.record, candidate.capabilities
    missing = {name: value for name, value in request.labels.items() if record.labels.get(name) != value}
    if missing:
        return InvalidInputError(f"it does not have the label {format_labels(missing)}")
    if candidate.state is not HostState.READY:
        return UnreachableError(f"it is unreachable: {candidate.reason}" if candidate.reason else "it is unreachable")
    if known is not None and request.isolation not in known.isolation:
        reason = known.missing.get(request.isolation.value, "its machine does not have it")
        return UnsupportedError(f"it does not support the isolation level {request.isolation.value}: {reason}")
    if known is not None and request.containers:
        try:
            known.check_containers(request.isolation)
        except UnsupportedError as error:
            return error
    if record.draining and request.host_id is None:
        return FullError("it is being drained")
    return _find_shortage(request, candidate, reserves)


def _find_shortage(request: PlacementRequest, candidate: Candidate, reserves: Reserves) -> FullError | None:
    room = candidate.room
    if room is None:
        return None
    if room.full is not None:
        return FullError(room.full.rstrip("."))
    available = _estimate_memory(request, candidate)
    if available is not None and available < reserves.memory_mb * MIB:
        return FullError(
            f"{max(0, int(available)) // MIB} MiB of its memory are available and {reserves.memory_mb} MiB are reserved"
        )
    if room.disk_free is not None and room.disk_free < reserves.disk_mb * MIB:
        return FullError(f"{room.disk_free // MIB} MiB of its disk are free and {reserves.disk_mb} MiB are reserved")
    return None


def _estimate_memory(request: PlacementRequest, candidate: Candidate) -> float | None:
    """Return the bytes of memory that are available if those sandboxes are counted that the host has not reported."""
    room = candidate.room
    if room is None or room.memory_available is None:
        return None
    return room.memory_available - candidate.arriving * min(request.memory_mb, _NEW_SANDBOX_MB) * MIB


def _rate_memory(request: PlacementRequest, candidate: Candidate) -> float:
    """Return the part of its memory that is available, in steps of 2 %, so that small differences do not count. Half of it
    is as good as all of it."""
    available = _estimate_memory(request, candidate)
    total = candidate.room.memory_total if candidate.room is not None else None
    return _ENOUGH if available is None or not total else min(_ENOUGH, round(50 * available / total) / 50)


def explain_refusals(refused: dict[str, SandyardError]) -> SandyardError:
    """Return the error to raise if every host was refused, for these reasons."""
    if not refused:
        return UnreachableError("The host that the sandbox needs is not registered.")
    shown = "; ".join(f"{name}: {error.message.rstrip('.')}" for name, error in list(refused.items())[:_SHOWN_HOSTS])
    more = f"; and {len(refused) - _SHOWN_HOSTS} more" if len(refused) > _SHOWN_HOSTS else ""
    text = f"No host can take the sandbox. {shown}{more}."
    for kind in (BusyError, FullError, UnreachableError, UnsupportedError, InvalidInputError):
        if any(isinstance(error, kind) for error in refused.values()):
            return kind(text)
    return SandyardError(text)
