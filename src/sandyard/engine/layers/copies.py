"""Copies of layers of other hosts: `layers/hosts/<kind>/<name>/{fs/,layer.json}`, each under the name of its original.

A layer is packed as for the layer store, and its content is checked when it is unpacked, by the same confined processes:
a host is trusted with the files of its sandboxes, not with those of others. The directory of a copy is filled under a
temporary name and renamed when it is complete and on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import time
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sandyard.engine.contract import Layers
from sandyard.engine.drivers import COPIES, LAYERS
from sandyard.engine.drivers.cluster.layers import CHUNK_BYTES, LayerPackage
from sandyard.engine.drivers.layer_names import SNAPSHOT, get_original_name, make_copy_name, make_layer_name
from sandyard.engine.images import child
from sandyard.engine.images.unpack import UnpackRequest
from sandyard.engine.layers.pack import PackRequest
from sandyard.engine.layers.publisher import PackLimits
from sandyard.engine.templates.folder import remove_tree
from sandyard.kit.errors import InvalidInputError, NoSpaceError, NotFoundError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_FS, _RECORD, _PARTIAL = "fs", "layer.json", ".partial-"
_SPOOL = ".spool"  # packed layers, by digest; emptied when the engine or the host service starts
_CHECK_BYTES = 64 << 20  # the free space is checked again after so many bytes
_SPOOL_S = 600.0  # how long a packed layer is kept for further hosts


@dataclass(slots=True)
class _Packed:
    package: LayerPackage
    path: Path
    used_at: float
    readers: int = 0


class LayerFolderCopies:
    """Implements `LayerCopies` in a data directory. `find_layers` is that of the machine's driver."""

    def __init__(
        self, data_dir: Path, limits: PackLimits, find_layers: Callable[[Layers], Layers], *, rootless: bool
    ) -> None:
        self._folder = data_dir.absolute() / LAYERS / COPIES
        self._limits = limits
        self._find_layers = find_layers
        self._rootless = rootless
        self._copies: set[str] = set()  # names of the originals
        self._packed: dict[str, _Packed] = {}
        self._work: dict[tuple[str, str], asyncio.Task[None]] = {}

    @property
    def _spool(self) -> Path:
        return self._folder / _SPOOL

    def prepare(self) -> None:
        """Find the copies that exist, and remove what was left incomplete. Blocks."""
        self._folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        self._spool.mkdir(exist_ok=True)
        for leftover in (*self._folder.glob(f"{_PARTIAL}*"), *self._spool.iterdir()):
            remove_tree(leftover)
        for record in _find_records(self._folder):
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, NotFoundError):
                layer = str(json.loads(record.read_text())["layer"])
                if self._get_folder(layer) == record.parent:
                    self._copies.add(layer)

    @property
    def names(self) -> Collection[str]:
        """The names of the layers of which there is a copy."""
        return self._copies

    def has(self, layer: str) -> bool:
        if layer in self._copies:
            return True
        try:
            return Path(self._find_layers((layer,))[0]).is_dir()
        except NotFoundError:
            return False

    def resolve(self, layers: Layers) -> Layers:
        if not self._copies:
            return layers
        return tuple(make_copy_name(layer) if layer in self._copies else layer for layer in layers)

    # Packing ----------------------------------------------------------------------------------------------------------

    async def pack(self, layer: str) -> LayerPackage:
        if layer.startswith("/"):
            raise NotFoundError(f"The layer {layer} belongs to one host, because it was recorded with its path.")
        await self._share(("pack", layer), lambda: self._pack(layer))
        return self._packed[layer].package

    async def _pack(self, layer: str) -> None:
        self._discard_old()
        if (known := self._packed.get(layer)) is not None:
            known.used_at = time.monotonic()
            return
        if not self.has(layer):
            raise NotFoundError(f"The layer {layer} is not on this host.")
        path = Path(self._find_layers(self.resolve((layer,)))[0])
        limits = self._limits
        request = PackRequest(str(path), self._rootless, limits.bytes, limits.entries, limits.reserve)
        target = self._spool / uuid.uuid4().hex
        try:
            with target.open("xb") as file:
                report = await child.run_process(
                    "pack", asdict(request), f"The layer {layer}", file.fileno(), package="sandyard.engine.layers"
                )
            package = LayerPackage.from_dict(report)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        self._packed[layer] = _Packed(package, target, time.monotonic())

    def _discard_old(self) -> None:
        now = time.monotonic()
        for layer, packed in list(self._packed.items()):
            if not packed.readers and now - packed.used_at > _SPOOL_S:
                packed.path.unlink(missing_ok=True)
                del self._packed[layer]

    @asynccontextmanager
    async def open(self, layer: str) -> AsyncIterator[AsyncIterator[bytes]]:
        packed = self._packed.get(layer)
        if packed is None:
            raise NotFoundError(f"The layer {layer} is not packed.")
        packed.readers += 1
        fd = os.open(packed.path, os.O_RDONLY | os.O_CLOEXEC)

        async def read() -> AsyncIterator[bytes]:
            offset = 0
            while data := await asyncio.to_thread(os.pread, fd, CHUNK_BYTES, offset):
                offset += len(data)
                yield data

        try:
            yield read()
        finally:
            os.close(fd)
            packed.readers -= 1
            packed.used_at = time.monotonic()

    # Copies -----------------------------------------------------------------------------------------------------------

    async def add(self, layer: str, package: LayerPackage, chunks: AsyncIterable[bytes]) -> None:
        spooled = self._spool / uuid.uuid4().hex
        try:
            await self._receive(layer, package, chunks, spooled)
            await self._share(("add", layer), lambda: self._unpack(layer, package, spooled))
        finally:
            spooled.unlink(missing_ok=True)

    async def _receive(self, layer: str, package: LayerPackage, chunks: AsyncIterable[bytes], spooled: Path) -> None:
        if max(package.size, package.bytes) > self._limits.bytes:
            raise InvalidInputError(
                f"The layer {layer} is larger than {self._limits.bytes >> 20} MiB (setting layer_max_mb)."
            )
        self._check_disk(layer, package, package.size + package.bytes)
        digest, size, checked = hashlib.sha256(), 0, 0
        with spooled.open("xb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > package.size:
                    break
                if size - checked > _CHECK_BYTES:
                    checked = size
                    self._check_disk(layer, package, package.bytes)  # others may have filled it meanwhile
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if size != package.size or f"sha256:{digest.hexdigest()}" != package.digest:
            raise InvalidInputError(f"The layer {layer} arrived damaged: its digest differs. Try again.")

    def _check_disk(self, layer: str, package: LayerPackage, needed: int) -> None:
        disk = os.statvfs(self._spool)
        if disk.f_bavail * disk.f_frsize < self._limits.reserve + needed:
            raise NoSpaceError(
                f"The layer {layer} ({package.bytes >> 20} MiB) does not fit on the disk next to the reserve (setting "
                "disk_reserve_mb)."
            )

    async def _unpack(self, layer: str, package: LayerPackage, spooled: Path) -> None:
        target = self._get_folder(layer)
        if layer in self._copies:
            return
        started = time.monotonic()
        work = self._folder / f"{_PARTIAL}{uuid.uuid4().hex}"
        tree = work / _FS
        try:
            tree.mkdir(parents=True)
            tree.chmod(0o755)
            limits = self._limits
            request = UnpackRequest(
                str(tree),
                0,
                package.size,
                package.digest,
                package.diff_id,
                limits.bytes,
                limits.entries,
                limits.reserve,
                exact=True,
            )
            with spooled.open("rb") as file:
                await child.run_process("unpack", asdict(request), f"The layer {layer}", file.fileno())
            (work / _RECORD).write_text(json.dumps({"layer": layer, **package.to_dict()}))
            target.parent.mkdir(parents=True, exist_ok=True)
            work.rename(target)
        finally:
            if work.exists():
                await asyncio.shield(asyncio.to_thread(remove_tree, work))
        self._copies.add(layer)
        log.info("layer_copied", layer=layer, bytes=package.size, seconds=round(time.monotonic() - started, 3))

    async def _share(self, key: tuple[str, str], work: Callable[[], Awaitable[None]]) -> None:
        """Do something once for all tasks that want the same."""

        async def run() -> None:
            await work()

        task = self._work.get(key)
        if task is None:
            task = self._work[key] = asyncio.ensure_future(run())
            task.add_done_callback(lambda _: self._work.pop(key, None))
        await asyncio.shield(task)

    def _get_folder(self, layer: str) -> Path:
        """Return the folder of a copy. Raises NotFoundError if the layer has no proper name."""
        if layer.startswith("/"):
            raise NotFoundError(f"The layer {layer} belongs to one host, because it was recorded with its path.")
        return Path(self._find_layers((make_copy_name(layer),))[0]).parent

    async def keep_snapshots(self, snapshots: Collection[str]) -> None:
        wanted = {make_layer_name(SNAPSHOT, snapshot) for snapshot in snapshots}
        for layer in [name for name in self._copies if name.startswith(f"{SNAPSHOT}:") and name not in wanted]:
            await self._remove(layer)

    async def remove_snapshot(self, snapshot_id: str) -> None:
        await self._remove(make_layer_name(SNAPSHOT, snapshot_id))

    async def _remove(self, layer: str) -> None:
        if layer not in self._copies:
            return
        self._copies.discard(layer)
        trash = self._folder / f"{_PARTIAL}{uuid.uuid4().hex}"
        with contextlib.suppress(FileNotFoundError):
            self._get_folder(layer).rename(trash)
            await asyncio.shield(asyncio.to_thread(remove_tree, trash))

    async def collect(self, keep_s: float, used: Collection[str]) -> int:
        """Remove copies of layers that were not asked for since `keep_s` seconds and that no sandbox uses. `used`: the layers
        of sandboxes. Return how many were removed."""
        oldest, removed = time.time() - keep_s, 0
        needed = {get_original_name(layer) for layer in used}
        for layer in [name for name in self._copies if name not in needed and not name.startswith(f"{SNAPSHOT}:")]:
            record = self._get_folder(layer) / _RECORD
            if record.exists() and record.stat().st_mtime < oldest:
                await self._remove(layer)
                removed += 1
        return removed

    def touch(self, layers: Layers) -> None:
        """Remember that a sandbox was created from these layers."""
        for layer in layers:
            if layer in self._copies:
                with contextlib.suppress(OSError):
                    os.utime(self._get_folder(layer) / _RECORD)

    async def close(self) -> None:
        """End what is in progress, and remove packed layers."""
        for task in (tasks := list(self._work.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for packed in self._packed.values():
            packed.path.unlink(missing_ok=True)
        self._packed.clear()


def _find_records(folder: Path) -> Iterator[Path]:
    """Yield the records of the copies in a folder. Nothing in their files is looked at: those are of sandboxes."""
    for entry in os.scandir(folder):
        if entry.name.startswith(".") or not entry.is_dir(follow_symlinks=False):
            continue
        record = Path(entry.path, _RECORD)
        if record.is_file():
            yield record
        elif entry.name != _FS:
            yield from _find_records(Path(entry.path))
