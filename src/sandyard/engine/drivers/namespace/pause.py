"""Pausing with memory kept: by the cgroup freezer, which processes can't notice, or by signals where there is none."""

from __future__ import annotations

from sandyard.engine.drivers.namespace import processes
from sandyard.engine.drivers.namespace.host import Host
from sandyard.engine.drivers.namespace.record import Record
from sandyard.kit.errors import BusyError


async def freeze(host: Host, record: Record) -> None:
    """Returns when nothing in it runs any more. Idempotent. Raises BusyError, with the sandbox running on."""
    assert record.life is not None
    try:
        if host.cgroups.can_freeze:
            await host.cgroups.freeze(record.id)
        else:
            await processes.stop_all(record.life.pid)
    except TimeoutError:
        raise BusyError(f"The sandbox {record.id} could not be paused: a process in it does not stop.") from None
    record.frozen = True


def thaw(host: Host, record: Record) -> None:
    assert record.life is not None
    if host.cgroups.can_freeze:
        host.cgroups.thaw(record.id)
    else:
        processes.continue_all(record.life.pid)
    record.frozen = False


def is_paused(host: Host, record: Record) -> bool:
    """What the kernel says."""
    assert record.life is not None
    if host.cgroups.can_freeze:
        return host.cgroups.frozen(record.id)
    return processes.stopped(record.life.pid)
