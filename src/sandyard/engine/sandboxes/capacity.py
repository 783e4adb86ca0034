"""Check whether another sandbox fits, and which resource is exhausted if not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sandyard.engine.contract import Room
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import FullError

MIB = 1024 * 1024
CACHE_SECONDS = 0.1


class Capacity:
    """Capacity checks. Asks the driver at most every tenth of a second, so that a burst of creates asks it once."""

    def __init__(self, settings: EngineSettings, get_room: Callable[[], Room]) -> None:
        """`get_room` returns what is left for new sandboxes."""
        self._settings = settings
        self._get_room = get_room
        self._read_at = float("-inf")
        self._available: int | None = None
        self._shortage: str | None = None
        self._reserved_disk = Counter[str]()  # bytes by disk, for memory that is being written there

    def check(self, running: int, *, check_count: bool = True, promised: int = 0, room: Room | None = None) -> None:
        """Raise FullError, which names the exhausted resource, if another sandbox does not fit. `running` is the number of
        sandboxes that are running or being created, `promised` the bytes of memory that they and the new one will take
        at once, in this `room` if it cannot be on any host. With `check_count=False` only what the driver reports is checked."""
        limit = self._settings.max_sandboxes
        if check_count and running >= limit:
            raise FullError(
                f"The machine is full: {running} of {limit} sandboxes are running. "
                "Kill or pause one, or raise --max-sandboxes."
            )
        self._refresh()
        if self._shortage is not None:
            raise FullError(self._shortage)
        reserve = self._settings.memory_reserve_mb
        available = self._available if room is None else room.memory_available
        if available is not None and available - promised < reserve * MIB:
            raise FullError(
                f"The machine is full: {available // MIB} MiB of memory are available, {promised // MIB} MiB are needed for "
                f"forks with memory and {reserve} MiB are reserved. Kill a sandbox."
            )

    @contextmanager
    def reserve_disk(self, size: int, room: Room) -> Iterator[None]:
        """Reserve disk space for the memory of a sandbox while it is being written. `size` is in bytes, `room` that of the
        sandbox's host. Raises FullError if it does not fit beside the engine's reserve."""
        free, reserve, reserved = room.disk_free, self._settings.disk_reserve_mb, self._reserved_disk[room.disk]
        if free is not None and free - reserved - size < reserve * MIB:
            raise FullError(
                f"The machine is full: {free // MIB} MiB of disk are free at {room.disk}, "
                f"{(reserved + size) // MIB} MiB are needed for the memory of sandboxes and {reserve} MiB are "
                "reserved. Free some space."
            )
        self._reserved_disk[room.disk] += size
        try:
            yield
        finally:
            self._reserved_disk[room.disk] -= size
            if not self._reserved_disk[room.disk]:
                del self._reserved_disk[room.disk]

    def find_shortage(self) -> str | None:
        """Return why nothing new fits, regardless of the number of running sandboxes, or None."""
        try:
            self.check(0, check_count=False)
        except FullError as error:
            return error.message
        return None

    def is_memory_low(self, factor: float = 1.0) -> bool:
        """Return whether less than `factor` times the reserved memory is available."""
        self._refresh()
        return self._available is not None and self._available < self._settings.memory_reserve_mb * MIB * factor

    def _refresh(self) -> None:
        now = time.monotonic()
        if now - self._read_at > CACHE_SECONDS:
            self._read_at = now
            room = self._get_room()
            self._available = room.memory_available
            self._shortage = self._describe_shortage(room)

    def _describe_shortage(self, room: Room) -> str | None:
        memory, free = room.memory_available, room.disk_free
        reserve = self._settings.memory_reserve_mb
        if memory is not None and memory < reserve * MIB:
            return f"The machine is full: {memory // MIB} MiB of memory are available and {reserve} MiB are reserved. Kill a sandbox."
        reserve = self._settings.disk_reserve_mb
        if free is not None and free < reserve * MIB:
            return f"The machine is full: {free // MIB} MiB of disk are free at {room.disk} and {reserve} MiB are reserved. Free some space."
        return room.full
