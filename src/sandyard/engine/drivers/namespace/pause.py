"""Pause while keeping memory: with the cgroup freezer, which processes cannot notice, or with signals if there is none."""

from __future__ import annotations

from sandyard.engine.drivers.machine import processes
from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.record import Record
from sandyard.kit.errors import BusyError


async def freeze(host: Host, record: Record) -> None:
    """Freeze the sandbox and return when nothing in it is running. Idempotent. Raises BusyError, and the sandbox keeps
    running."""
    assert record.life is not None
    try:
        if host.cgroups.can_freeze:
            await host.cgroups.freeze(record.id)
        else:
            await processes.stop_all(record.life.pid)
    except TimeoutError:
        raise BusyError(f"Could not pause the sandbox {record.id}: a process in it does not stop.") from None
    record.frozen = True


def thaw(host: Host, record: Record) -> None:
    assert record.life is not None
    if host.cgroups.can_freeze:
        host.cgroups.thaw(record.id)
    else:
        processes.continue_all(record.life.pid)
    record.frozen = False


def is_paused(host: Host, record: Record) -> bool:
    """Return whether the kernel reports it as frozen."""
    assert record.life is not None
    if host.cgroups.can_freeze:
        return host.cgroups.is_frozen(record.id)
    return processes.is_stopped(record.life.pid)
