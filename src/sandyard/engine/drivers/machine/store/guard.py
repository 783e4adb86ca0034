"""Keep the store and the machine's disk from filling up: a btrfs without a free block breaks every sandbox in it at
once.

A store in an image has its blocks reserved. It grows ahead of what sandboxes write, as long as the machine's disk keeps
its reserve, and gives back surplus space. Its quota group may use all of it except a small reserve, so that processes
in sandboxes get "disk quota exceeded" while everything still works. New sandboxes are refused before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine.store import btrfs
from sandyard.engine.drivers.machine.store import image as images
from sandyard.kit.errors import FullError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import run_uninterrupted

log = get_logger(__name__)

_INTERVAL_S = 0.5
_MIN_CHANGE = 64 << 20  # smaller changes of the limit are not worth a transaction
_MIN_ROOM = 256 << 20  # free space required for a new sandbox
_BTRFS_RESERVE = 512 << 20  # of the store, for btrfs itself
# Reserved space ahead of sandboxes: a part of what the store could grow by.
_MIN_AHEAD, _MAX_AHEAD = 1 << 30, 10 << 30
_AHEAD_DIVISOR = 32
_STEP = 1 << 30
_SURPLUS = 4 * _STEP  # more than this beyond the space ahead is given back
_SHRINK_DELAY_S = 30.0  # seconds since the last growth before space is given back


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """Bytes that may still be written, and where they are limited."""

    left: int
    where: str


@dataclass(frozen=True, slots=True)
class Space:
    """The space of a store in an image, in bytes."""

    used: int
    free: int  # reserved and unused
    pending: int  # the part of it that is written but has no place yet
    growth: int  # free space of the machine's disk beyond its reserve

    @property
    def ahead(self) -> int:
        """The bytes that sandboxes can still write immediately."""
        return self.free - self.pending - _BTRFS_RESERVE

    @property
    def wanted(self) -> int:
        """The bytes that should be ahead: sandboxes may fill them before the next check, or request all of them at once
        (fallocate)."""
        return min(max(self.growth // _AHEAD_DIVISOR, _MIN_AHEAD), _MAX_AHEAD)


def measure_room(store: Path, image: Path | None) -> StoreRoom:
    """Return the room in a store. `image` is the file that contains it; None if it is a directory of the machine's file
    system."""
    if image is not None:
        return _get_room(measure_space(store, image), store, image)
    stat = os.statvfs(store)
    free = stat.f_bavail * stat.f_frsize
    rooms = (
        StoreRoom(free - _BTRFS_RESERVE, f"the store {store}"),
        StoreRoom(free - images.get_reserve(store), f"the disk of {store}"),
    )
    return min(rooms, key=lambda room: room.left)


def measure_space(store: Path, image: Path) -> Space:
    """Measure a store in an image."""
    inside, outside = os.statvfs(store), os.statvfs(image.parent)
    return Space(
        used=(inside.f_blocks - inside.f_bfree) * inside.f_frsize,
        free=max(inside.f_bavail * inside.f_frsize - images.count_unreserved_bytes(image), 0),
        pending=btrfs.read_pending_bytes(store),
        growth=outside.f_bavail * outside.f_frsize - images.get_reserve(image.parent),
    )


def _get_room(space: Space, store: Path, image: Path) -> StoreRoom:
    if space.growth < _STEP:  # the disk keeps the store from growing
        return StoreRoom(space.ahead, f"the store {store}, for which the disk of {image.parent} has no more room,")
    return StoreRoom(space.ahead + space.growth, f"the store {store}")


class SpaceGuard:
    """Adjusts the size and the limit of a store. `broken` is set when the store is no longer writable."""

    def __init__(self, store: Path, image: Path | None, group: int | None) -> None:
        self._store = store
        self._image = image
        self._group = group
        self._limit = 0
        self._room = measure_room(store, image)
        self._last_used = 0
        self._grown_at = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self.broken = asyncio.Event()

    def start(self, threads: Executor) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(threads))

    async def stop(self) -> None:
        """Stop adjusting the store. Returns once an adjustment in progress has finished."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def check(self) -> None:
        """Check the last measurement, made a moment ago. Raises FullError."""
        if self.broken.is_set():
            raise FullError(
                f"The store {self._store} is not writable: the kernel has made it read-only. Restart the engine."
            )
        if self._room.left < _MIN_ROOM:
            free = max(self._room.left, 0) >> 20
            raise FullError(
                f"The machine is full (disk): {self._room.where} has {free} MiB left, not counting its reserve. "
                "Delete sandboxes or snapshots, or free some disk space."
            )

    async def _run(self, threads: Executor) -> None:
        loop = asyncio.get_running_loop()
        failed = None
        while True:
            try:
                if await run_uninterrupted(loop.run_in_executor(threads, images.is_read_only, self._store)):
                    self.broken.set()
                else:
                    await run_uninterrupted(loop.run_in_executor(threads, self.adjust))
                    failed = None
            except OSError as error:  # the next round may succeed; creates are still checked
                if failed != str(error):
                    failed = str(error)
                    log.warning("store_adjustment_failed", store=str(self._store), reason=failed)
            await asyncio.sleep(_INTERVAL_S)

    def adjust(self) -> None:
        """Measure the store, then adjust its size and its limit. Blocks. Raises OSError."""
        if self._image is None:
            self._room = measure_room(self._store, None)
            if self._group is not None:
                self._set_limit(btrfs.read_usage(self._store, self._group) + max(self._room.left, 0), self._room.left)
            return
        space = measure_space(self._store, self._image)
        if images.count_unreserved_bytes(self._image):
            with contextlib.suppress(OSError):  # space without blocks is not counted as free
                images.allocate_all_blocks(self._image)
                space = measure_space(self._store, self._image)
        if self._resize(space, self._image):
            space = measure_space(self._store, self._image)
        self._room = _get_room(space, self._store, self._image)
        self._set_limit(space.used + space.free - _BTRFS_RESERVE, space.ahead)

    def _set_limit(self, limit: int, left: int) -> None:
        """Set the limit of the quota group, if it has changed enough; the less space is `left`, the more exactly."""
        if self._group is None:
            return
        limit = max(limit, 1 << 20)
        if abs(limit - self._limit) >= _MIN_CHANGE or (left < 4 * _MIN_CHANGE and limit != self._limit):
            btrfs.set_limit(self._store, self._group, limit)
            self._limit = limit

    def _resize(self, space: Space, image: Path) -> bool:
        """Grow ahead of what is being written, or give back surplus space. Return whether something changed."""
        now = time.monotonic()
        written = max(0, space.used + space.pending - self._last_used) if self._last_used else 0
        self._last_used = space.used + space.pending
        if space.ahead < space.wanted:
            amount = min(max(space.wanted - space.ahead, 4 * written, _STEP), space.growth) // _STEP * _STEP
            if amount > 0:
                images.grow(image, self._store, amount)
                self._grown_at = now
            return amount > 0
        surplus = space.ahead - space.wanted
        kept_surplus = _STEP if space.growth < 0 else _SURPLUS
        if (
            surplus < kept_surplus + _STEP
            or now < self._grown_at + _SHRINK_DELAY_S
            or images.get_size(image) <= images.MIN_SIZE
        ):
            return False
        # Nobody may use what is about to be removed.
        self._set_limit(space.used + space.free - _BTRFS_RESERVE - _STEP, 0)
        try:
            images.shrink(image, self._store, images.get_size(image) - _STEP)
        except OSError:
            self._grown_at = now  # what is in its last part fits nowhere else for now
            raise
        return True
