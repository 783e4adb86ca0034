"""The store in plain directories: works on every file system and without root. No disk limit; a running sandbox is
copied.

A stopped sandbox is not copied but shared: its directory becomes a read-only layer, `shared/<n>/upper`, on top of which
it continues with an empty directory, and so does every copy of it. `stack.json`, in a sandbox's or a snapshot's
directory, lists the shared layers it uses in addition to those it was created from; a shared layer that is no longer
listed anywhere is removed.

Trees are copied and removed by the zygote, which has the privileges for files that sandboxes created.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandyard.engine.contract import DiskKind, DiskReport, DiskUse, Layers
from sandyard.engine.drivers.layer_names import SHARED, SNAPSHOT, make_layer_name
from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.store.base import (
    SANDBOXES,
    SHARED_LAYERS,
    SNAPSHOTS,
    UPPER,
    VOLUMES,
    WORK,
    prepare_volume,
)
from sandyard.engine.drivers.machine.store.guard import measure_room
from sandyard.engine.drivers.machine.store.trees import measure_disk_usage
from sandyard.kit.errors import FullError

TRASH = "trash"
_STACK_FILE = "stack.json"
_MIN_ROOM = 256 << 20

SendRequest = Callable[[str, dict[str, Any]], Awaitable[Any]]


class PlainStore:
    """Keeps sandboxes, snapshots and volumes as plain directories."""

    live_copy = "copy"
    limits: frozenset[str] = frozenset()

    def __init__(self, path: Path, send_request: SendRequest, reason: str) -> None:
        """`send_request` sends `copy` or `remove` to the zygote; `reason` says why this machine does not have the btrfs
        store."""
        self.path = path
        self.missing: Mapping[str, str] = {
            "disk": f"no disk limit per sandbox or volume, and a running one is copied instead of shared: {reason}",
        }
        self._send_request = send_request
        self._removals: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        try:
            for name in (SANDBOXES, SNAPSHOTS, VOLUMES, SHARED_LAYERS, TRASH):
                (self.path / name).mkdir(exist_ok=True, mode=0o755)
        except OSError as error:
            raise translate_os_error(error, "The store could not be created") from error

    async def close(self, *, unmount: bool) -> None:
        await asyncio.gather(*self._removals, return_exceptions=True)

    def _to_zygote_path(self, *parts: str) -> str:
        """Return the path as the zygote sees it."""
        return "/".join(("/store", *parts))

    def has(self, sandbox: str) -> bool:
        return (self.path / SANDBOXES / sandbox).is_dir()

    def list_names(self) -> set[str]:
        return {entry.name for entry in os.scandir(self.path / SANDBOXES)}

    async def sweep(self, sandboxes: Collection[str], snapshots: Collection[str]) -> None:
        for folder, keep in ((SANDBOXES, sandboxes), (SNAPSHOTS, snapshots)):
            for name in {entry.name for entry in os.scandir(self.path / folder)} - set(keep):
                self._move_to_trash(folder, name)
        for name in sandboxes:
            with contextlib.suppress(FileNotFoundError, FileExistsError):  # a crash while it was being shared
                (self.path / SANDBOXES / name / UPPER).mkdir(mode=0o755)
        for name in [entry.name for entry in os.scandir(self.path / TRASH)]:
            self._schedule_removal(name)
        self._remove_unused_layers()

    def check_room(self) -> None:
        room = measure_room(self.path, None)
        if room.left < _MIN_ROOM:
            free = max(room.left, 0) >> 20
            raise FullError(
                f"The machine is full (disk): {room.where} has {free} MiB left, not counting its reserve. "
                "Delete sandboxes or snapshots, or free some disk space."
            )

    async def wait_for_failure(self) -> str:
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        return await never

    def list_shared_layers(self, sandbox: str) -> Sequence[str]:
        return tuple(str(self.path / SHARED_LAYERS / name / UPPER) for name in self._read_stack(SANDBOXES, sandbox))

    def _read_stack(self, folder: str, name: str) -> list[str]:
        """Return the names of the shared layers, topmost first."""
        with contextlib.suppress(FileNotFoundError):
            return list(json.loads((self.path / folder / name / _STACK_FILE).read_text()))
        return []

    async def create(self, sandbox: str, disk_mb: int) -> None:
        self._create_directory(SANDBOXES, sandbox, [])

    def _create_directory(self, folder: str, name: str, stack: list[str]) -> None:
        path = self.path / folder / name
        try:
            path.mkdir(mode=0o700)
            if stack:
                (path / _STACK_FILE).write_text(json.dumps(stack))
            for inner in (UPPER, WORK) if folder == SANDBOXES else ():
                (path / inner).mkdir(mode=0o755)
        except OSError as error:
            raise translate_os_error(error, "The store could not create a directory") from error

    async def copy(self, sandbox: str, new: str, disk_mb: int, *, stopped: bool) -> None:
        if stopped:
            self._create_directory(SANDBOXES, new, self._share(sandbox))
            return
        self._create_directory(SANDBOXES, new, self._read_stack(SANDBOXES, sandbox))
        (self.path / SANDBOXES / new / UPPER).rmdir()
        await self._copy(sandbox, SANDBOXES, new)

    async def snapshot(self, sandbox: str, snapshot: str, *, stopped: bool) -> Layers:
        if stopped:
            stack = self._share(sandbox)
            self._create_directory(SNAPSHOTS, snapshot, stack)
            return _name_shared_layers(stack)
        stack = self._read_stack(SANDBOXES, sandbox)
        self._create_directory(SNAPSHOTS, snapshot, stack)
        await self._copy(sandbox, SNAPSHOTS, snapshot)
        return (make_layer_name(SNAPSHOT, snapshot), *_name_shared_layers(stack))

    async def _copy(self, sandbox: str, folder: str, name: str) -> None:
        paths = {
            "source": self._to_zygote_path(SANDBOXES, sandbox, UPPER),
            "target": self._to_zygote_path(folder, name, UPPER),
        }
        await self._send_request("copy", paths)

    def _share(self, sandbox: str) -> list[str]:
        """Turn a stopped sandbox's directory into a shared layer. Return its layers. The sandbox has all its files at
        any instant of a crash: the name is recorded first, and a layer that does not exist yet counts as empty."""
        path = self.path / SANDBOXES / sandbox
        name = uuid.uuid4().hex
        stack = [name, *self._read_stack(SANDBOXES, sandbox)]
        shared = self.path / SHARED_LAYERS / name
        try:
            (shared / UPPER).mkdir(parents=True)
            _replace_file(path / _STACK_FILE, json.dumps(stack))
            (path / UPPER).rename(shared / UPPER)  # replaces the empty directory
            (path / UPPER).mkdir(mode=0o755)
        except OSError as error:
            raise translate_os_error(error, "The store could not share the sandbox's directory") from error
        return stack

    async def renew(self, sandbox: str, disk_mb: int) -> None:
        self._move_to_trash(f"{SANDBOXES}/{sandbox}", WORK)
        try:
            (self.path / SANDBOXES / sandbox / WORK).mkdir(mode=0o755)
        except OSError as error:
            raise translate_os_error(error, "The store could not prepare the sandbox's directory") from error

    async def flush(self) -> None:
        await asyncio.to_thread(kernel.syncfs, str(self.path))

    async def remove(self, sandbox: str) -> None:
        self._move_to_trash(SANDBOXES, sandbox)
        self._remove_unused_layers()

    async def remove_snapshot(self, snapshot: str) -> None:
        self._move_to_trash(SNAPSHOTS, snapshot)
        self._remove_unused_layers()

    async def create_volume(self, volume: str, size_mb: int) -> None:
        path = self.path / VOLUMES / volume
        try:
            path.mkdir(exist_ok=True)
            prepare_volume(path)
        except OSError as error:
            raise translate_os_error(error, "The store could not create a volume") from error

    async def remove_volume(self, volume: str) -> None:
        self._move_to_trash(VOLUMES, volume)

    def _move_to_trash(self, folder: str, name: str) -> None:
        """Remove a directory at once, and its contents in the background. Does nothing if it does not exist."""
        trash = f"{name}-{uuid.uuid4().hex[:8]}"
        with contextlib.suppress(FileNotFoundError):
            (self.path / folder / name).rename(self.path / TRASH / trash)
            self._schedule_removal(trash)

    def _schedule_removal(self, name: str) -> None:
        async def work() -> None:
            with contextlib.suppress(Exception):  # `sweep` tries again
                await self._send_request("remove", {"path": self._to_zygote_path(TRASH, name)})

        task = asyncio.get_running_loop().create_task(work())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)

    def _remove_unused_layers(self) -> None:
        """Remove shared layers that no sandbox or snapshot uses."""
        shared = {entry.name for entry in os.scandir(self.path / SHARED_LAYERS)}
        if shared:
            for folder in (SANDBOXES, SNAPSHOTS):
                for entry in os.scandir(self.path / folder):
                    shared -= set(self._read_stack(folder, entry.name))
        for name in shared:
            self._move_to_trash(SHARED_LAYERS, name)

    async def measure_usage(self, sandbox: str) -> int:
        return await asyncio.to_thread(measure_disk_usage, str(self.path / SANDBOXES / sandbox / UPPER))

    async def measure_disk(self) -> DiskReport:
        return await asyncio.to_thread(self._measure_disk)

    def _measure_disk(self) -> DiskReport:
        def measure(kind: DiskKind, folder: str) -> DiskUse:
            paths = [entry.path for entry in os.scandir(self.path / folder)]
            return DiskUse(kind, sum(measure_disk_usage(path) for path in paths), len(paths))

        kinds = {
            DiskKind.SANDBOXES: SANDBOXES,
            DiskKind.SNAPSHOTS: SNAPSHOTS,
            DiskKind.SHARED: SHARED_LAYERS,
            DiskKind.VOLUMES: VOLUMES,
            DiskKind.REMOVING: TRASH,
        }
        uses = tuple(measure(kind, folder) for kind, folder in kinds.items())
        return DiskReport(uses, frozenset({str(self.path)}))


def _name_shared_layers(stack: Sequence[str]) -> Layers:
    return tuple(make_layer_name(SHARED, name) for name in stack)


def _replace_file(path: Path, text: str) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(path)
