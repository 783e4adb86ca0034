"""The driver's state of one sandbox, and the part of it that is stored in a handle."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from sandyard.engine.contract import Handle, Layers, Limits, Mount
from sandyard.engine.drivers.machine.processes import read_boot_id
from sandyard.kit.errors import InvalidInputError

_LIMITS = tuple(limit.name for limit in fields(Limits))


@dataclass(frozen=True, slots=True)
class Life:
    """One run of a sandbox, from the start of its first process to its end."""

    pid: int
    start: int  # start time in kernel units; with the pid it identifies a process
    slot: int

    @property
    def data(self) -> dict[str, Any]:
        """The life as it is stored in a handle."""
        return {"boot": read_boot_id(), "pid": self.pid, "start": self.start, "slot": self.slot}


@dataclass(slots=True)
class Record:
    """The state of one sandbox, running or not."""

    id: str
    driver: str  # the name of its runtime
    layers: Layers
    limits: Limits
    mounts: tuple[Mount, ...] = ()
    containers: bool = False
    life: Life | None = None
    pidfd: int = -1
    stderr_fd: int = -1  # a descriptor of its agent's crash output
    frozen: bool = False  # the last known state; cgroups are queried where it matters
    end_reason: str | None = None  # why this driver ended it
    exit_code: int | None = None  # of its first process, if its parent reported it
    ended: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def alive(self) -> bool:
        return self.life is not None and not self.ended.done()

    def renew(self) -> Record:
        """Return a record of the same sandbox for another start."""
        return Record(self.id, self.driver, self.layers, self.limits, self.mounts, self.containers)

    def make_handle(self) -> Handle:
        """Return the handle from which `parse_handle` and `parse_record` read this state."""
        limits = {name: getattr(self.limits, name) for name in _LIMITS}
        data: dict[str, Any] = {"layers": list(self.layers), "limits": limits}
        if self.mounts:
            data["mounts"] = [asdict(mount) for mount in self.mounts]
        if self.containers:
            data["containers"] = True
        if self.alive and self.life is not None:
            data["life"] = self.life.data
        return Handle(self.id, self.driver, data)


def parse_handle(handle: Handle) -> tuple[Layers, Limits, Life | None]:
    """Parse a handle; the life is None if it is from an earlier boot of the machine. Raises InvalidInputError."""
    data: Mapping[str, Any] = handle.data
    try:
        limits = Limits(**data["limits"])
        layers = tuple(str(layer) for layer in data["layers"])
        stored = data.get("life")
        life = None
        if stored is not None and stored["boot"] == read_boot_id():
            life = Life(int(stored["pid"]), int(stored["start"]), int(stored["slot"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"The handle of the sandbox {handle.id} is not valid: {error}.") from error
    return layers, limits, life


def parse_record(handle: Handle) -> Record:
    """Return the record of a sandbox from its handle, without a life. Raises like `parse_handle`."""
    layers, limits, _ = parse_handle(handle)
    try:
        mounts = tuple(Mount(**mount) for mount in handle.data.get("mounts", ()))
    except TypeError as error:
        raise InvalidInputError(f"The handle of the sandbox {handle.id} is not valid: {error}.") from error
    return Record(handle.id, handle.driver, layers, limits, mounts, bool(handle.data.get("containers")))
