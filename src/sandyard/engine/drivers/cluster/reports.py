"""Combine the reports of hosts into one for the cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import reduce

from sandyard.engine.contract import Capabilities, Isolation, Room
from sandyard.engine.drivers.cluster.link import HostLink
from sandyard.engine.drivers.cluster.model import HostRoom, HostState
from sandyard.engine.drivers.room import read_memory


def combine_capabilities(local: Capabilities | None, links: Iterable[HostLink]) -> Capabilities:
    """Return the capabilities of the engine. A sandbox can have an isolation level that any host has, because it is placed
    there; what is done with existing sandboxes must be possible on all hosts. `local` is None if this machine has no
    sandboxes."""
    known = [] if local is None else [("", local)]
    known += [
        (f"on the host {link.record.name}: ", link.capabilities) for link in links if link.capabilities is not None
    ]
    if not known:
        return _make_empty()
    all_known = [capabilities for _, capabilities in known]
    isolation = frozenset[Isolation]().union(*(capabilities.isolation for capabilities in all_known))
    containers = frozenset[Isolation]().union(*(capabilities.containers for capabilities in all_known))
    available = {level.value for level in isolation} | {f"containers.{level.value}" for level in containers}
    missing: dict[str, str] = {}
    for prefix, capabilities in known:
        for name, reason in capabilities.missing.items():
            if name not in available:
                missing.setdefault(name, f"{prefix}{reason}")
    return Capabilities(
        freeze=all(capabilities.freeze for capabilities in all_known),
        suspend=reduce(frozenset.intersection, (capabilities.suspend for capabilities in all_known)),
        memory_fork=reduce(frozenset.intersection, (capabilities.memory_fork for capabilities in all_known)),
        live_copy="cow" if all(capabilities.live_copy == "cow" for capabilities in all_known) else "copy",
        limits=reduce(frozenset.intersection, (capabilities.limits for capabilities in all_known)),
        egress=all(capabilities.egress for capabilities in all_known),
        isolation=isolation,
        containers=containers,
        missing=missing,
    )


def _make_empty() -> Capabilities:
    reason = "no host has been reached yet"
    nothing = frozenset[Isolation]()
    return Capabilities(
        freeze=False,
        suspend=nothing,
        memory_fork=nothing,
        live_copy="copy",
        limits=frozenset(),
        egress=False,
        isolation=nothing,
        containers=nothing,
        missing={"namespace": reason, "gvisor": reason},
    )


def get_room(link: HostLink) -> Room:
    """Return the room on one host, as it reported it last."""
    room, place = link.room, f"the host {link.record.name}"
    return Room(None, None, place) if room is None else Room(room.memory_available, room.disk_free, place, room.full)


def combine_room(local: Room | None, links: Iterable[HostLink]) -> Room | None:
    """Return the room on the host that has most of it, among those that accept sandboxes. None: there is no such host."""
    rooms = [] if local is None else [local]
    for link in links:
        if link.state is HostState.READY and link.room is not None and not link.record.draining:
            rooms.append(get_room(link))
    if not rooms:
        return None
    return max(
        rooms, key=lambda room: (room.full is None, _or_unlimited(room.memory_available), _or_unlimited(room.disk_free))
    )


def _or_unlimited(value: int | None) -> float:
    return float("inf") if value is None else value


def describe_room(room: Room) -> HostRoom:
    """Return the resources of this machine. `room` is what its driver has left. Blocks for microseconds."""
    memory_total = disk_total = None
    with contextlib.suppress(OSError, ValueError):
        memory_total = read_memory()[0]
    with contextlib.suppress(OSError):
        disk = os.statvfs(room.disk)
        disk_total = disk.f_blocks * disk.f_frsize
    return HostRoom(
        memory_total=memory_total,
        memory_available=room.memory_available,
        disk_total=disk_total,
        disk_free=room.disk_free,
        cpu_count=os.cpu_count() or 1,
        load=os.getloadavg()[0],
        full=room.full,
    )
