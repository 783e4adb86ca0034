"""Fetch published snapshots, so that sandboxes can be created from them here."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sandyard.engine.contract import Limits
from sandyard.engine.images.layers import Budget, LayerFolder
from sandyard.engine.images.source import Blob, Content
from sandyard.engine.layers.manifest import Kind, Manifest, ManifestLayer, make_snapshot, parse_manifest
from sandyard.engine.layers.publisher import PackLimits
from sandyard.engine.layers.records import LayerRecords, PublicationRecords, State
from sandyard.engine.layers.store import SNAPSHOTS, LayerStore, StoredObject
from sandyard.engine.sandboxes.model import Snapshot
from sandyard.engine.sandboxes.snapshots import DEFAULT_TAG, Snapshots, is_snapshot_id
from sandyard.engine.store.database import Database
from sandyard.kit.errors import InvalidInputError, NoSpaceError, NotFoundError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks

log = get_logger(__name__)

_CONCURRENT_DOCUMENTS = 16
_LIST_SECONDS = 900.0
MAX_MANIFESTS, MAX_MANIFEST_BYTES = 50_000, 256 << 20
"""Limit for a list of all manifests. Others may write to a store, and the list is kept in memory."""
_LISTING_S = 5.0  # how long a list of all manifests is used to look for a name


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A manifest that this engine cannot read, and why."""

    id: str
    reason: str


class BlobSource:
    """The blobs of the store, as the source of layers to unpack."""

    def __init__(self, store: LayerStore, spool: Path, reserve_bytes: int) -> None:
        self._store, self._spool, self._reserve_bytes = store, spool, reserve_bytes

    @asynccontextmanager
    async def fetch(self, blob: Blob) -> AsyncIterator[Content]:
        disk = await asyncio.to_thread(os.statvfs, self._spool)
        if disk.f_bavail * disk.f_frsize < self._reserve_bytes + blob.size:
            raise NoSpaceError(
                f"The blob {blob.digest} ({blob.size >> 20} MiB) does not fit on the disk next to the engine's reserve "
                "(setting disk_reserve_mb)."
            )
        async with self._store.open_file(blob.name, self._spool, blob.size) as fd:
            yield Content(fd, 0, blob.size)


class Puller:
    """Makes published snapshots snapshots of this engine. Layers that are on this machine are not fetched again."""

    def __init__(
        self,
        *,
        store: LayerStore,
        database: Database,
        snapshots: Snapshots,
        layers: LayerRecords,
        publications: PublicationRecords,
        folders: dict[Kind, LayerFolder],
        limits: PackLimits,
        find_path: Callable[[str], Path],
        max_limits: Limits,
        is_template: Callable[[str], bool],
    ) -> None:
        """`find_path` returns where a layer is on this machine. `max_limits`: see `make_snapshot`. `is_template` returns whether
        this engine has a template with a name."""
        self._store, self._database, self._snapshots = store, database, snapshots
        self._layers, self._publications = layers, publications
        self._folders, self._limits, self._find_path = folders, limits, find_path
        self._max_limits, self._is_template = max_limits, is_template
        self._tasks: dict[str, asyncio.Task[Snapshot]] = {}
        self._listing: tuple[float, list[Manifest | Unreadable]] | None = None
        self._manifests: dict[StoredObject, Manifest] = {}  # of the last list, by what identifies their version

    async def list_manifests(self) -> list[Manifest | Unreadable]:
        """Return the manifests of all published snapshots, oldest first. Raises InvalidInputError if they are more than fit into memory,
        and UnreachableError if reading them takes too long."""
        try:
            async with asyncio.timeout(_LIST_SECONDS):
                return await self._list_manifests()
        except TimeoutError:
            raise UnreachableError(
                f"The layer store {self._store.location} is too slow: its manifests could not be read in {_LIST_SECONDS:.0f} seconds."
            ) from None

    async def _list_manifests(self) -> list[Manifest | Unreadable]:
        slots = asyncio.Semaphore(_CONCURRENT_DOCUMENTS)

        async def read(stored: StoredObject) -> Manifest | Unreadable | None:
            if (known := self._manifests.get(stored)) is not None:
                return known
            snapshot_id = stored.key.removeprefix(SNAPSHOTS).removesuffix(".json")
            async with slots:
                try:
                    return await self._read_manifest(snapshot_id, stored.size)
                except NotFoundError:  # deleted meanwhile
                    return None
                except InvalidInputError as error:
                    return Unreadable(snapshot_id, error.message)

        listed = list[StoredObject]()
        total = 0
        async for stored in self._store.list(SNAPSHOTS):
            listed.append(stored)
            total += max(stored.size, 0)
            if len(listed) > MAX_MANIFESTS or total > MAX_MANIFEST_BYTES:
                raise InvalidInputError(
                    f"The layer store {self._store.location} has more than {MAX_MANIFESTS:,} snapshots, or "
                    f"{MAX_MANIFEST_BYTES >> 20} MiB of manifests, which is too many to list. Delete some, or pull snapshots by id."
                )
        reading = [asyncio.ensure_future(read(stored)) for stored in listed]
        try:
            results = await asyncio.gather(*reading)
        finally:
            await end_tasks(*reading)
        read_now = zip(listed, results, strict=True)
        self._manifests = {stored: result for stored, result in read_now if isinstance(result, Manifest)}
        found = [result for result in results if result is not None]
        found.sort(key=lambda result: (result.created_at if isinstance(result, Manifest) else 0.0, result.id))
        self._listing = time.monotonic(), found
        return found

    async def pull(self, reference: str, identity: str) -> Snapshot:
        """Fetch a published snapshot, by id or name, with or without `:tag`. Returns at once if it is here. Raises
        NotFoundError if there is none, and InvalidInputError if a blob is damaged."""
        manifest = await self._find_manifest(reference.strip())
        if (known := self._snapshots.find(manifest.id)) is not None:
            return known
        task = self._tasks.get(manifest.id)
        if task is None:
            task = asyncio.ensure_future(self._pull(manifest, identity))
            self._tasks[manifest.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(manifest.id, None))
        return await asyncio.shield(task)

    async def close(self) -> None:
        for task in (tasks := list(self._tasks.values())):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _find_manifest(self, reference: str) -> Manifest:
        name, _, tag = reference.partition(":")
        if is_snapshot_id(name):
            try:
                manifest = await self._read_manifest(name)
            except NotFoundError:
                pass
            else:
                if tag in ("", manifest.tag):
                    return manifest
        if self._listing is None or time.monotonic() - self._listing[0] > _LISTING_S:
            await self.list_manifests()
        assert self._listing is not None
        named = [
            manifest
            for manifest in self._listing[1]
            if isinstance(manifest, Manifest) and manifest.name == name.lower()
        ]
        # like names of snapshots here: the tag `default`, otherwise the newest
        found = [manifest for manifest in named if manifest.tag == (tag or DEFAULT_TAG)] or ([] if tag else named)
        if not found:
            raise NotFoundError(f"The layer store {self._store.location} has no snapshot {reference[:200]!r}.")
        return found[-1]

    async def _read_manifest(self, snapshot_id: str, size: int | None = None) -> Manifest:
        """Return a manifest. Raises InvalidInputError if it is larger than `size`, which was counted."""
        content = await self._store.get_document(f"{SNAPSHOTS}{snapshot_id}.json")
        if size is not None and len(content) > size:
            raise InvalidInputError(
                f"The manifest of the snapshot {snapshot_id} was changed while it was read. Try again."
            )
        return parse_manifest(content, snapshot_id)

    async def _pull(self, manifest: Manifest, identity: str) -> Snapshot:
        started = time.monotonic()
        layers = [await self._ensure_layer(layer, manifest) for layer in reversed(manifest.layers)]
        layers.reverse()
        snapshot = make_snapshot(manifest, tuple(layers), self._max_limits)
        if snapshot.name is not None and (
            self._is_template(snapshot.name) or self._snapshots.resolve(snapshot.ref) is not None
        ):
            log.info("pulled_name_taken", snapshot=snapshot.id, name=snapshot.name)
            snapshot = replace(snapshot, name=None)  # a template or another snapshot of this engine has the name
        self._publications.set(identity, snapshot.id, State.PULLED, time.time())
        stored = self._snapshots.add(snapshot)
        await self._database.flush()
        seconds = round(time.monotonic() - started, 3)
        log.info("snapshot_pulled", snapshot=snapshot.id, bytes=manifest.size, layers=len(layers), seconds=seconds)
        return stored

    async def _ensure_layer(self, entry: ManifestLayer, manifest: Manifest) -> str:
        if entry.kind == "template":
            for layer in self._layers.list_permanent(entry.digest):
                if await asyncio.to_thread(self._find_path(layer).is_dir):
                    return layer
        folder = self._folders[entry.kind]
        source = BlobSource(self._store, folder.spool, self._limits.reserve)
        blob = Blob(entry.key, entry.size, entry.digest)
        budget = Budget(self._limits.bytes, self._limits.entries, self._limits.reserve)
        what = f"The layer {entry.digest} of the published snapshot {manifest.id}"
        try:
            unpacked = await folder.ensure(entry.diff_id, blob, source, budget, what, exact=True)
        except NotFoundError:
            raise NotFoundError(
                f"The published snapshot {manifest.id} is not complete: the layer store {self._store.location} does not "
                f"have the blob {entry.digest}."
            ) from None
        except InvalidInputError as error:
            if manifest.id in error.message:
                raise
            raise InvalidInputError(f"The published snapshot {manifest.id} cannot be used. {error.message}") from None
        self._layers.put(unpacked.name, entry)
        return unpacked.name
