"""The store on btrfs: one subvolume per sandbox and snapshot. Copies share all blocks; each sandbox has its own disk
limit."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sandyard.engine.contract import DiskKind, DiskReport, DiskUse, Layers
from sandyard.engine.drivers.layer_names import SNAPSHOT, make_layer_name
from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.errors import translate_os_error
from sandyard.engine.drivers.machine.store import btrfs, guard
from sandyard.engine.drivers.machine.store import image as images
from sandyard.engine.drivers.machine.store.base import SANDBOXES, SNAPSHOTS, UPPER, VOLUMES, WORK, prepare_volume
from sandyard.engine.drivers.machine.store.guard import SpaceGuard
from sandyard.engine.drivers.machine.store.trees import measure_disk_usage
from sandyard.kit.errors import SandyardError

T = TypeVar("T")


class CowStore:
    """Keeps sandboxes, snapshots and volumes as btrfs subvolumes. `image` is the file that contains the btrfs; None if
    the data directory is on btrfs itself."""

    live_copy = "cow"

    def __init__(self, path: Path, instance: str, image: Path | None) -> None:
        self.path = path
        self.limits: frozenset[str] = frozenset()
        self.missing: dict[str, str] = {}
        self._image = image
        # All subvolumes of this engine are members of one quota group, whose limit follows the machine's free space.
        self.quota_group: int | None = (1 << 48) | zlib.crc32(instance.encode())
        self.space_guard: SpaceGuard | None = None
        # btrfs calls wait for each other inside the kernel while it commits, so never call them in the loop's thread.
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="store")

    async def open(self) -> None:
        kind = await self._run_in_thread(self._open, "open the store")
        if kind is None:
            self.quota_group = None
            self.missing["disk"] = f"quotas are off on {self.path}: run `btrfs quota enable --simple {self.path}`"
            return
        self.limits = frozenset({"disk"})
        if kind == "full":  # in a common parent group, every snapshot would trigger a full quota rescan
            self.quota_group = None
        self.space_guard = SpaceGuard(self.path, self._image, self.quota_group)
        self.space_guard.start(self._threads)

    def _open(self) -> str | None:
        for name in (SANDBOXES, SNAPSHOTS, VOLUMES):
            (self.path / name).mkdir(exist_ok=True)
        if self._image is not None:
            self._repair_image(self._image)
        kind = btrfs.get_quota_kind(self.path)
        if kind is None and self._image is not None:
            kind = btrfs.enable_quota(self.path)
        if kind == "simple" and self.quota_group is not None:
            btrfs.create_group(self.path, self.quota_group)
        if kind is not None:
            btrfs.drop_stale_groups(self.path)
        return kind

    def _repair_image(self, image: Path) -> None:
        """Finish or undo a change of the image's size that a crash interrupted. An image of an earlier version is as large
        as the disk and has no allocated blocks: it is converted to one that has them all."""
        if images.count_unreserved_bytes(image):
            images.undo_growth(image, self.path)
            space = guard.measure_space(self.path, image)
            # the used space and 2 GiB more, rounded up to whole GiB
            small = -(-(space.used + (2 << 30)) // (1 << 30)) << 30
            if images.MIN_SIZE <= small < images.get_size(image):
                with contextlib.suppress(OSError):  # the guard continues in steps
                    images.shrink(image, self.path, small)
            with contextlib.suppress(OSError):  # the guard continues with these too
                images.allocate_all_blocks(image)
        images.resize_to_file(image, self.path)

    async def close(self, *, unmount: bool) -> None:
        if self.space_guard is not None:
            await self.space_guard.stop()
        self._threads.shutdown(wait=True)
        if unmount and self._image is not None:
            with contextlib.suppress(OSError):  # still in use: it stays mounted and is reused at the next start
                await asyncio.to_thread(kernel.unmount, str(self.path))

    async def _run_in_thread(self, function: Callable[[], T], action: str) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function)
        except OSError as error:
            raise translate_os_error(error, f"The store could not {action}") from error

    def has(self, sandbox: str) -> bool:
        return (self.path / SANDBOXES / sandbox / UPPER).is_dir()

    def list_names(self) -> set[str]:
        return {entry.name for entry in os.scandir(self.path / SANDBOXES)}

    async def sweep(self, sandboxes: Collection[str], snapshots: Collection[str]) -> None:
        def work() -> None:
            for folder, keep in ((SANDBOXES, sandboxes), (SNAPSHOTS, snapshots)):
                for entry in list(os.scandir(self.path / folder)):
                    if entry.name not in keep:
                        _delete(Path(entry.path))

        await self._run_in_thread(work, "remove leftovers")

    def check_room(self) -> None:
        if self.space_guard is not None:
            self.space_guard.check()

    async def wait_for_failure(self) -> str:
        if self.space_guard is None:
            await asyncio.get_running_loop().create_future()
        else:
            await self.space_guard.broken.wait()
        return f"The store {self.path} is no longer writable: the kernel has made it read-only after an error."

    def list_shared_layers(self, sandbox: str) -> Sequence[str]:
        return ()

    async def create(self, sandbox: str, disk_mb: int) -> None:
        path = self.path / SANDBOXES / sandbox

        def work() -> None:
            group = btrfs.create(path, self.quota_group)
            self._set_limit(group, disk_mb)
            for name in (UPPER, WORK):
                (path / name).mkdir(mode=0o755)

        await self._run_in_thread(work, "create a directory for the sandbox")

    async def copy(self, sandbox: str, new: str, disk_mb: int, *, stopped: bool) -> None:
        source, target = self.path / SANDBOXES / sandbox, self.path / SANDBOXES / new

        def work() -> None:
            self._set_limit(btrfs.snapshot(source, target, self.quota_group, read_only=False), disk_mb)
            _recreate_work_directory(target)

        await self._run_in_thread(work, "copy the sandbox")

    async def snapshot(self, sandbox: str, snapshot: str, *, stopped: bool) -> Layers:
        source, target = self.path / SANDBOXES / sandbox, self.path / SNAPSHOTS / snapshot
        await self._run_in_thread(
            lambda: btrfs.snapshot(source, target, self.quota_group, read_only=True), "take a snapshot"
        )
        return (make_layer_name(SNAPSHOT, snapshot),)

    async def renew(self, sandbox: str, disk_mb: int) -> None:
        path = self.path / SANDBOXES / sandbox

        def work() -> None:
            self._set_limit(btrfs.get_subvolume_id(path), disk_mb)
            _recreate_work_directory(path)

        await self._run_in_thread(work, "prepare the sandbox's directory")

    async def flush(self) -> None:
        await self._run_in_thread(lambda: kernel.syncfs(str(self.path)), "write everything to the disk")

    def _set_limit(self, group: int, disk_mb: int) -> None:
        if self.limits:
            btrfs.set_limit(self.path, group, disk_mb << 20)

    async def remove(self, sandbox: str) -> None:
        await self._run_in_thread(lambda: _delete(self.path / SANDBOXES / sandbox), "remove the sandbox's directory")

    async def remove_snapshot(self, snapshot: str) -> None:
        await self._run_in_thread(lambda: _delete(self.path / SNAPSHOTS / snapshot), "remove the snapshot")

    async def create_volume(self, volume: str, size_mb: int) -> None:
        path = self.path / VOLUMES / volume

        def work() -> None:
            group = btrfs.get_subvolume_id(path) if path.is_dir() else btrfs.create(path, self.quota_group)
            self._set_limit(group, size_mb)
            prepare_volume(path)

        await self._run_in_thread(work, "create the volume")

    async def remove_volume(self, volume: str) -> None:
        await self._run_in_thread(lambda: _delete(self.path / VOLUMES / volume), "remove the volume")

    async def measure_usage(self, sandbox: str) -> int:
        path = self.path / SANDBOXES / sandbox
        if not self.limits:
            return 0
        try:
            return await self._run_in_thread(
                lambda: btrfs.read_usage(self.path, btrfs.get_subvolume_id(path)), "read the disk usage"
            )
        except SandyardError:
            if path.exists():
                raise
            return 0

    async def measure_disk(self) -> DiskReport:
        return await self._run_in_thread(self._measure_disk, "measure what it contains")

    def _measure_disk(self) -> DiskReport:
        kernel.syncfs(str(self.path))  # quotas are those of the last commit
        own = btrfs.read_own_usages(self.path) if self.limits else None
        uses, attributed = [], 0
        for kind, folder in (
            (DiskKind.SANDBOXES, SANDBOXES),
            (DiskKind.SNAPSHOTS, SNAPSHOTS),
            (DiskKind.VOLUMES, VOLUMES),
        ):
            subvolumes = [Path(entry.path) for entry in os.scandir(self.path / folder)]
            size = sum(_measure_subvolume(path, own) for path in subvolumes)
            uses.append(DiskUse(kind, size, len(subvolumes)))
            attributed += size
        paths = {str(self.path)}
        if self._image is not None:
            used = guard.measure_space(self.path, self._image).used
            taken = self._image.stat().st_blocks * 512
            uses.append(DiskUse(DiskKind.SHARED, max(used - attributed, 0)))
            uses.append(DiskUse(DiskKind.RESERVED, max(taken - max(used, attributed), 0)))
            paths.add(str(self._image))
        elif self.quota_group is not None:  # the btrfs has other users, so only this engine's group is looked at
            used = btrfs.read_usage(self.path, self.quota_group)
            uses.append(DiskUse(DiskKind.SHARED, max(used - attributed, 0)))
        return DiskReport(tuple(uses), frozenset(paths))


def _measure_subvolume(path: Path, own: Mapping[int, int] | None) -> int:
    """Return the bytes of a subvolume by its quota group, or without quotas those of all its files."""
    if own is None:
        return measure_disk_usage(str(path))
    try:
        return own.get(btrfs.get_subvolume_id(path), 0)
    except OSError:  # it was deleted meanwhile
        return 0


def _recreate_work_directory(path: Path) -> None:
    """Recreate overlay's work directory, which still contains state of its last mount."""
    shutil.rmtree(path / WORK, ignore_errors=True)
    (path / WORK).mkdir(mode=0o755)


def _delete(path: Path) -> None:
    try:
        btrfs.delete(path)
    except OSError:
        if not path.is_dir():
            raise
        shutil.rmtree(path)  # not a subvolume: somebody copied it here
