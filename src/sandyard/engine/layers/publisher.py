"""Publish snapshots in the background: first all layers, then the manifest.

What has to be done follows from comparing two lists: the snapshots that clients have, and those that were published. So
a crash at any time loses nothing: a snapshot without a publication is published, and a publication without a snapshot is
removed. Layers are packed by another process, from directories that are never changed.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from sandyard.engine.contract import Layers
from sandyard.engine.images import child
from sandyard.engine.layers.manifest import Kind, ManifestLayer, PackedLayer, make_manifest
from sandyard.engine.layers.pack import PackRequest
from sandyard.engine.layers.records import LayerRecords, PublicationRecords, State
from sandyard.engine.layers.store import SNAPSHOTS, LayerStore
from sandyard.engine.sandboxes.model import Snapshot
from sandyard.engine.sandboxes.snapshots import Snapshots
from sandyard.engine.store.database import Database
from sandyard.kit.errors import UnreachableError
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

FetchLayers = Callable[[Layers], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class PackLimits:
    """The limits of one layer, and the space that must stay free on the disk."""

    bytes: int
    entries: int
    reserve: int


@dataclass(frozen=True, slots=True)
class _Spooled:
    """A layer that is packed, but not stored yet."""

    layer: str
    packed: PackedLayer
    path: Path


class Publisher:
    """Publishes one snapshot at a time. `refresh_after_s`: older blobs get a new date before they are used again, so that
    nobody sweeps them meanwhile. `get_kind` returns what a layer is part of, `find_path` where it is on this machine."""

    def __init__(
        self,
        *,
        store: LayerStore,
        database: Database,
        snapshots: Snapshots,
        layers: LayerRecords,
        publications: PublicationRecords,
        spool: Path,
        limits: PackLimits,
        refresh_after_s: float,
        get_kind: Callable[[str], Kind],
        find_path: Callable[[str], Path],
        rootless: bool,
        fetch_layers: FetchLayers | None = None,
    ) -> None:
        self._store, self._database, self._snapshots = store, database, snapshots
        self._layers, self._publications = layers, publications
        self._spool, self._limits, self._refresh_after_s = spool, limits, refresh_after_s
        self._get_kind, self._find_path, self._rootless = get_kind, find_path, rootless
        self._fetch_layers = fetch_layers
        self._spooled: _Spooled | None = None
        self.published_bytes = 0  # blobs that this engine has stored since its start

    async def publish(self, snapshot: Snapshot, identity: str) -> None:
        """Publish a snapshot in the store with this identity. Idempotent. Cancellable."""
        started = time.monotonic()
        with self._snapshots.hold((*snapshot.snapshots, snapshot.id)):
            # from now on its manifest may be there, and must be removed when the snapshot is deleted
            self._publications.set(identity, snapshot.id, State.PUBLISHING, time.time())
            await self._database.flush()
            if self._fetch_layers is not None:
                await self._fetch_layers(snapshot.layers)
            layers = [await self._publish_layer(layer) for layer in reversed(snapshot.layers)]
            layers.reverse()
            manifest = make_manifest(snapshot, layers)
            await self._store.put_document(f"{SNAPSHOTS}{snapshot.id}.json", manifest.encode())
            for layer in layers:  # no blob was swept by another engine before the manifest was there
                if await self._store.find(layer.key) is None:
                    raise UnreachableError(f"The blob {layer.digest} disappeared while it was being published.")
        if self._snapshots.find(snapshot.id) is None:
            return  # deleted in the meantime: the manifest is removed next
        self._publications.set(identity, snapshot.id, State.PUBLISHED, time.time())
        await self._database.flush()
        seconds = round(time.monotonic() - started, 3)
        log.info("snapshot_published", snapshot=snapshot.id, bytes=manifest.size, layers=len(layers), seconds=seconds)

    async def remove(self, snapshot_id: str, identity: str) -> None:
        """Remove the manifest of a deleted snapshot. Its blobs are swept later, if no other manifest needs them."""
        await self._store.delete(f"{SNAPSHOTS}{snapshot_id}.json")
        self._publications.delete(identity, snapshot_id)
        log.info("snapshot_unpublished", snapshot=snapshot_id)

    async def _publish_layer(self, layer: str) -> ManifestLayer:
        packed = self._layers.get(layer)
        if packed is None or not await self._is_stored(packed):
            async with self._pack(layer) as spooled:
                packed = spooled.packed
                if not await self._is_stored(packed):
                    await self._store.put_file(packed.key, spooled.path)
                    self.published_bytes += packed.size
        return ManifestLayer(**packed.model_dump(), kind=self._get_kind(layer), name=_make_label(layer))

    async def _is_stored(self, packed: PackedLayer) -> bool:
        """Return whether the store has this blob, and keep it from being swept before it is referenced."""
        found = await self._store.find(packed.key)
        if found is None:
            return False
        if found.size != packed.size:
            log.warning("layer_blob_damaged", key=packed.key, size=found.size, expected=packed.size)
            await self._store.delete(packed.key)
            return False
        if found.modified < time.time() - self._refresh_after_s:
            await self._store.refresh(packed.key)
        return True

    @asynccontextmanager
    async def _pack(self, layer: str) -> AsyncIterator[_Spooled]:
        """Provide the packed layer. If it cannot be stored now, the file is kept for the next attempt."""
        if self._spooled is not None and self._spooled.layer != layer:
            self._discard_spooled()
        if self._spooled is None or not self._spooled.path.exists():
            self._spooled = await self._make_file(layer)
        yield self._spooled
        self._discard_spooled()

    async def _make_file(self, layer: str) -> _Spooled:
        path = self._spool / uuid.uuid4().hex
        limits = self._limits
        layer_path = str(self._find_path(layer))
        request = PackRequest(layer_path, self._rootless, limits.bytes, limits.entries, limits.reserve)
        try:
            with path.open("xb") as target:
                report = await child.run_process(
                    "pack",
                    asdict(request),
                    f"The layer {layer}",
                    target.fileno(),
                    package="sandyard.engine.layers",
                )
            packed = PackedLayer.model_validate(report)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        if report["sockets"]:
            log.warning("layer_sockets_left_out", layer=layer, count=report["sockets"])
        self._layers.put(layer, packed)
        return _Spooled(layer, packed, path)

    def _discard_spooled(self) -> None:
        if self._spooled is not None:
            self._spooled.path.unlink(missing_ok=True)
            self._spooled = None

    def discard(self) -> None:
        """Remove the temporary file."""
        with contextlib.suppress(OSError):
            self._discard_spooled()


def _make_label(layer: str) -> str:
    """Return the name of a layer for people, without the directories of this machine."""
    path = Path(layer)
    return (f"{path.parent.parent.name}/{path.parent.name}" if path.is_absolute() else layer)[-300:]
