"""Pause while keeping memory: with the cgroup freezer, which processes cannot notice, or with signals if there is none."""

from __future__ import annotations

from sandyard.engine.drivers.machine import processes
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.kit.errors import BusyError


async def freeze(machine: Machine, record: Record) -> None:
    """Freeze the sandbox and return when nothing in it is running. Idempotent. Raises BusyError, and the sandbox keeps
    running."""
    assert record.life is not None
    try:
        if machine.cgroups.can_freeze:
            await machine.cgroups.freeze(record.id)
        else:
            await processes.stop_all(record.life.pid)
    except TimeoutError:
        raise BusyError(f"Could not pause the sandbox {record.id}: a process in it does not stop.") from None
    record.frozen = True


def thaw(machine: Machine, record: Record) -> None:
    assert record.life is not None
    if machine.cgroups.can_freeze:
        machine.cgroups.thaw(record.id)
    else:
        processes.continue_all(record.life.pid)
    record.frozen = False


def is_paused(machine: Machine, record: Record) -> bool:
    """Return whether the kernel reports it as frozen."""
    assert record.life is not None
    if machine.cgroups.can_freeze:
        return machine.cgroups.is_frozen(record.id)
    return processes.is_stopped(record.life.pid)
