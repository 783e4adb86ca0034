"""Disk use of an engine, by kind, and removing what the retention rules allow."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.builds.service import Builds
from sandyard.engine.contract import DiskKind
from sandyard.engine.images.layers import MANIFEST, LayerFolder
from sandyard.engine.images.service import Images
from sandyard.engine.layers.service import LayerService
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.datadir import DataDir
from sandyard.engine.templates.folder import TemplateFolder
from sandyard.engine.templates.unused import UnusedVersions
from sandyard.kit.disk_usage import measure
from sandyard.kit.logging import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """Disk use of one kind of data. `removable` and `removable_bytes`: what the retention rules allow to remove now."""

    kind: str
    bytes: int
    count: int | None = None
    oldest_at: float | None = None
    removable: int = 0
    removable_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DiskState:
    """The entries, largest first, and the disk that they are on. Templates can be on another disk."""

    entries: Sequence[DiskEntry]
    free: int
    total: int
    path: str


class EngineDisk:
    """Measures and frees disk space. `uses_layer` returns whether a sandbox, snapshot or template needs a layer; it is called
    in the event loop in which this object is created."""

    def __init__(
        self,
        settings: EngineSettings,
        data: DataDir,
        *,
        sandboxes: Sandboxes,
        images: Images,
        builds: Builds,
        layers: LayerService | None,
        uses_layer: Callable[[str], bool],
    ) -> None:
        self._settings = settings
        self._data = data
        self._sandboxes = sandboxes
        self._images = images
        self._builds = builds
        self._layers = layers
        self._uses_layer = uses_layer
        self._loop = asyncio.get_running_loop()
        # until then, a pool may have sandboxes of a replaced version
        keep_s = max(settings.templates_keep_s, 2 * settings.pool_idle_s)
        self._templates = TemplateFolder(settings.templates_dir)
        self._versions = UnusedVersions(self._templates, keep_s, self._is_layer_used)
        self._freeing = asyncio.Lock()
        self._reading: asyncio.Task[DiskState] | None = None

    async def read(self) -> DiskState:
        """Measure everything. Takes seconds if there are many files. Callers at the same time get the same result."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
        return await asyncio.shield(self._reading)

    async def _read(self) -> DiskState:
        report = await self._sandboxes.components.calls.driver.measure_disk()
        own = await asyncio.to_thread(self._measure_folders, frozenset(report.paths))
        components = self._sandboxes.components
        oldest = {
            DiskKind.SANDBOXES: [sandbox.created_at for sandbox in components.list_sandboxes(removing=False)],
            DiskKind.SNAPSHOTS: [snapshot.created_at for snapshot in components.snapshots.list_all()],
        }
        driver = [
            DiskEntry(use.kind.value, use.bytes, use.count, min(oldest.get(use.kind, ()), default=None))
            for use in report.uses
        ]
        disk = os.statvfs(self._data.path)
        entries = sorted([*driver, *own], key=lambda entry: entry.bytes, reverse=True)
        return DiskState(
            [entry for entry in entries if entry.bytes or entry.count],
            disk.f_bavail * disk.f_frsize,
            disk.f_blocks * disk.f_frsize,
            str(self._data.path),
        )

    async def free(self) -> DiskState:
        """Remove what the retention rules allow, and return what was removed, in `removable` and `removable_bytes` of the
        entries."""
        async with self._freeing:
            before = await self._read()
            self._sandboxes.components.snapshots.remove_unused()
            self._builds.cache.shrink()
            await asyncio.to_thread(self._builds.archives.shrink)
            await self._images.collect(self._uses_layer)
            if self._layers is not None:
                await self._layers.collect()
            await asyncio.to_thread(lambda: self._versions.remove(self._versions.find()))
            after = {entry.kind: entry for entry in (await self._read()).entries}
        removed = [_subtract(entry, after.get(entry.kind)) for entry in before.entries if entry.removable]
        log.info("disk_freed", bytes=sum(entry.removable_bytes for entry in removed))
        disk = os.statvfs(self._data.path)
        return DiskState(removed, disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize, str(self._data.path))

    def _is_layer_used(self, layer: str) -> bool:
        """Return whether something needs a layer. Call it in another thread: it waits for the event loop, which owns the records."""

        async def ask() -> bool:
            return self._uses_layer(layer)

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()

    def _measure_folders(self, measured: frozenset[str]) -> list[DiskEntry]:
        """Measure everything except the paths that the driver has measured."""
        data = self._data
        entries = [
            self._measure_layers("images", [self._images.layer_folder], data.images),
            self._measure_layers("layers", self._layers.layer_folders if self._layers is not None else [], data.layers),
            self._measure_uploads(),
            self._measure_templates(),
        ]
        folders = {str(data.images), str(data.layers), str(data.uploads), str(self._settings.templates_dir.absolute())}
        files = [path for path in data.path.glob(f"{data.database.name}*") if path.is_file()]
        entries.append(DiskEntry("database", sum(measure(path) for path in files)))
        known = frozenset({*measured, *folders, *map(str, files)})
        entries.append(DiskEntry("other", measure(data.path, without=known)))
        return entries

    def _measure_layers(self, kind: str, folders: Sequence[LayerFolder], path: Path) -> DiskEntry:
        layers = [(folder, layer) for folder in folders for layer in folder.list_layers()]
        paths, unneeded = [layer for _, layer in layers], []
        for folder, layer in layers:
            with contextlib.suppress(FileNotFoundError):
                if not folder.is_needed(layer, self._is_layer_used):
                    unneeded.append(layer)
        return DiskEntry(
            kind,
            measure(path),
            len(paths),
            _find_oldest([layer / MANIFEST for layer in paths]),
            len(unneeded),
            sum(measure(layer) for layer in unneeded),
        )

    def _measure_uploads(self) -> DiskEntry:
        folder = self._data.uploads
        paths = list(folder.iterdir()) if folder.is_dir() else []
        excess = self._builds.archives.list_excess() if paths else []
        sizes = sum(measure(path) for path in excess)
        return DiskEntry("uploads", measure(folder), len(paths), _find_oldest(paths), len(excess), sizes)

    def _measure_templates(self) -> DiskEntry:
        versions, unused = self._versions.list_all(), self._versions.find()
        incomplete = measure(self._templates.directory, without={str(version.path) for version in versions})
        return DiskEntry(
            "templates",
            incomplete + sum(self._templates.measure(version) for version in versions),
            len(versions),
            min((version.created_at for version in versions), default=None),
            len(unused),
            sum(self._templates.measure(version) for version in unused),
        )


def _find_oldest(paths: Sequence[Path]) -> float | None:
    """Return the oldest modification time of these files."""
    times = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            times.append(path.stat().st_mtime)
    return min(times, default=None)


def _subtract(before: DiskEntry, after: DiskEntry | None) -> DiskEntry:
    """Return what was removed of a kind between two measurements."""
    if after is None:
        return dataclasses.replace(before, removable=before.count or 0, removable_bytes=before.bytes)
    return dataclasses.replace(
        after,
        removable=max((before.count or 0) - (after.count or 0), 0),
        removable_bytes=max(before.bytes - after.bytes, 0),
    )
