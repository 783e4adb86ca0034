"""Pause while keeping memory: with the cgroup freezer, which processes cannot notice, or with signals if there is none."""

from __future__ import annotations

import asyncio
import contextlib
import errno

from sandyard.engine.drivers.machine import fuse, processes
from sandyard.engine.drivers.machine.machine import Machine
from sandyard.engine.drivers.machine.record import Record
from sandyard.kit.errors import BusyError, ConflictError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_FUSE_ATTEMPTS = 3
_FUSE_ATTEMPT_S = 1.5
_FUSE_PAUSE_S = 0.2  # in which servers may answer
_GROUP_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ESRCH})


async def freeze(machine: Machine, record: Record) -> None:
    """Freeze the sandbox and return when nothing in it is running. Idempotent. Raises BusyError if a process does not
    stop, and then the sandbox keeps running; ConflictError if the sandbox ends in the meantime."""
    assert record.life is not None
    try:
        if machine.cgroups.can_freeze:
            if not await _freeze_with_fuse(machine, record):
                await machine.cgroups.freeze(record.id)
        else:
            await processes.stop_all(record.life.pid)
    except TimeoutError:
        raise BusyError(f"Could not pause the sandbox {record.id}: a process in it does not stop. Try again.") from None
    except OSError as error:
        if error.errno not in _GROUP_GONE:
            raise
        raise ConflictError(f"The sandbox {record.id} is not running.") from error
    record.frozen = True


async def _freeze_with_fuse(machine: Machine, record: Record) -> bool:
    """Freeze a sandbox that has FUSE mounts, and return whether it is frozen.

    A process that waits for a FUSE server cannot be frozen, and a frozen server does not answer. So the sandbox may run
    again between attempts. A server that never answers would prevent every pause: its connection is aborted.
    """
    if not record.containers or record.life is None:
        return False
    owners = machine.instance.get_uids(record.life.slot)
    if not fuse.list_connections(owners):
        return False
    for _ in range(_FUSE_ATTEMPTS):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FUSE_ATTEMPT_S):
                await machine.cgroups.freeze(record.id)
                return True
        await asyncio.sleep(_FUSE_PAUSE_S)
    aborted = fuse.abort_connections(owners)
    log.warning("fuse_connections_aborted", sandbox=record.id, count=aborted, reason="they prevented a pause")
    return False


def thaw(machine: Machine, record: Record) -> None:
    """Let the sandbox run again. Idempotent."""
    assert record.life is not None
    if machine.cgroups.can_freeze:
        machine.cgroups.thaw(record.id)
    else:
        processes.continue_all(record.life.pid)
    record.frozen = False


def is_paused(machine: Machine, record: Record) -> bool:
    """Return whether the sandbox is frozen, or about to be, according to the kernel."""
    assert record.life is not None
    if machine.cgroups.can_freeze:
        return machine.cgroups.is_frozen(record.id)
    return processes.is_stopped(record.life.pid)
