"""Keeps the machine's disk from filling: an image that can't grow any more breaks every sandbox in it at once.

The store's quota group may take what is free on the machine but the reserve. Its limit follows what others write there, so that
processes in sandboxes get "disk quota exceeded" while everything still works, and new sandboxes are refused before that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.namespace.store import btrfs
from sandyard.engine.drivers.namespace.store import image as images
from sandyard.kit.errors import FullError

_INTERVAL = 2.0
_STEP = 64 << 20  # smaller changes are not worth a transaction
_NEEDED = 256 << 20  # what a new sandbox must find


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that may still be written, and where they are missing."""

    left: int
    where: str


def measure(store: Path, image: Path | None) -> Room:
    stat = os.statvfs(store)
    rooms = [Room(stat.f_bavail * stat.f_frsize - (512 << 20), f"the store {store}")]
    folder = store if image is None else image.parent
    stat = os.statvfs(folder)
    rooms.append(Room(stat.f_bavail * stat.f_frsize - images.reserve(folder), f"the disk of {folder}"))
    return min(rooms, key=lambda room: room.left)


class Guard:
    def __init__(self, store: Path, image: Path | None, group: int | None) -> None:
        self._store = store
        self._image = image
        self._group = group
        self._limit = 0
        self._room = measure(store, image)
        self._task: asyncio.Task[None] | None = None

    def start(self, threads: Executor) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(threads))

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    def check(self) -> None:
        """From what was last measured, at most a few seconds ago. Raises FullError."""
        if self._room.left < _NEEDED:
            free = max(self._room.left, 0) >> 20
            raise FullError(f"The machine is full (disk): {self._room.where} has {free} MiB left beside its reserve.")

    async def _run(self, threads: Executor) -> None:
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(OSError):  # the next round may see better; creates are still checked
                await loop.run_in_executor(threads, self._adjust)
            await asyncio.sleep(_INTERVAL)

    def _adjust(self) -> None:
        self._room = measure(self._store, self._image)
        if self._group is None:
            return
        limit = max(btrfs.usage(self._store, self._group) + max(self._room.left, 0), 1 << 20)
        if abs(limit - self._limit) >= _STEP or self._room.left < 4 * _STEP:
            btrfs.set_limit(self._store, self._group, limit)
            self._limit = limit
