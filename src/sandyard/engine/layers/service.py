"""The layer store of an engine: publishing, pulling and sweeping, in the background."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.engine.contract import Layers
from sandyard.engine.drivers import FETCHED_SNAPSHOTS, FETCHED_TEMPLATES
from sandyard.engine.drivers.layer_names import FETCHED_SNAPSHOT, FETCHED_TEMPLATE, SHARED, SNAPSHOT, get_layer_kind
from sandyard.engine.images.layers import LayerFolder
from sandyard.engine.layers.manifest import Kind, Manifest, ManifestLayer
from sandyard.engine.layers.publisher import FetchLayers, PackLimits, Publisher
from sandyard.engine.layers.puller import Puller, Unreadable
from sandyard.engine.layers.records import LayerRecords, Publication, PublicationRecords, State
from sandyard.engine.layers.store import (
    BLOBS,
    IDENTITY,
    S3_PREFIX,
    AccessDeniedError,
    DirectoryStore,
    LayerStore,
    S3Options,
    StoredObject,
    StoreFullError,
)
from sandyard.engine.sandboxes.model import Snapshot
from sandyard.engine.sandboxes.snapshots import Snapshots
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.store.datadir import DataDir
from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError, UnreachableError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import end_tasks

log = get_logger(__name__)

_FIRST_RETRY_S, _MAX_RETRY_S = 1.0, 60.0
_CHECK_INTERVAL_S = 30.0
_MIN_GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a snapshot could not be published. `retry_at` is a time of the monotonic clock."""

    reason: str
    count: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the layer store. `problem`: why it cannot be used now."""

    location: str
    problem: str | None
    pending: int  # snapshots that are not published yet
    failures: dict[str, str]  # reasons, by snapshot
    published: int  # snapshots of this engine that are durable
    published_bytes: int  # since the start of the engine
    failure_count: int  # failed attempts since the start of the engine
    sweep_problem: str | None


class LayerService:
    """Call `prepare` before the driver opens, `open` after the sandboxes are open, and `close` before they close."""

    def __init__(
        self,
        settings: EngineSettings,
        data: DataDir,
        database: Database,
        *,
        store: LayerStore | None = None,
        rootless: bool = False,
    ) -> None:
        """`store`: by default the one of the settings. Raises InvalidInputError or UnsupportedError if it is not valid."""
        self._settings, self._data, self._database = settings, data, database
        self._store = store or open_store(settings)
        self._rootless = rootless
        self._folders: dict[Kind, LayerFolder] = {
            "snapshot": LayerFolder(data.layers / FETCHED_SNAPSHOTS, settings.layer_keep_s, FETCHED_SNAPSHOT),
            "template": LayerFolder(data.layers / FETCHED_TEMPLATES, settings.layer_keep_s, FETCHED_TEMPLATE),
        }
        self._publications = PublicationRecords(database)
        self._wake = asyncio.Event()
        self._exclusive = asyncio.Lock()  # blobs are not swept while something is published
        self._identity: str | None = None
        self._problem: str | None = None
        self._sweep_problem: str | None = None
        self._failures: dict[str, Failure] = {}
        self._failure_count = 0
        self._tasks: list[asyncio.Task[None]] = []
        self.fetch_layers: FetchLayers | None = None
        """Makes sure that the driver finds layers that are on another host. Set it before `open`."""
        self._snapshots: Snapshots
        self._layers: LayerRecords
        self._publisher: Publisher
        self._puller: Puller

    def prepare(self) -> None:
        """Create the folders for fetched layers. Blocks briefly."""
        self._data.layers.mkdir(mode=0o700, exist_ok=True)
        for folder in self._folders.values():
            folder.prepare()

    def open(
        self,
        snapshots: Snapshots,
        uses_layer: Callable[[str], bool],
        find_layers: Callable[[Layers], Layers],
        is_template: Callable[[str], bool],
    ) -> None:
        """Start publishing. `uses_layer` returns whether a sandbox, snapshot or template needs a layer, `find_layers` is
        that of the driver. `is_template` returns whether this engine has a template with a name: a fetched snapshot does not
        get that name."""

        def find_path(layer: str) -> Path:
            return Path(find_layers((layer,))[0])

        settings = self._settings
        limits = PackLimits(settings.layer_max_mb << 20, settings.layer_max_files, settings.disk_reserve_mb << 20)
        self._snapshots, self._uses_layer = snapshots, uses_layer
        self._layers = LayerRecords(self._database, settings.templates_dir, find_path)
        self._publisher = Publisher(
            store=self._store,
            database=self._database,
            snapshots=snapshots,
            layers=self._layers,
            publications=self._publications,
            spool=self._folders["snapshot"].spool,
            limits=limits,
            refresh_after_s=self._grace_s / 2,
            get_kind=self.get_kind,
            find_path=find_path,
            rootless=self._rootless,
            fetch_layers=self.fetch_layers,
        )
        self._puller = Puller(
            store=self._store,
            database=self._database,
            snapshots=snapshots,
            layers=self._layers,
            publications=self._publications,
            folders=self._folders,
            limits=limits,
            find_path=find_path,
            max_limits=settings.default_limits,
            is_template=is_template,
        )
        self._identity = self._database.get_meta(self._identity_key)
        snapshots.on_change = self._wake.set
        self._tasks = [asyncio.create_task(work) for work in (self._publish_forever(), self._sweep_forever())]

    async def close(self) -> None:
        """Stop. What was not published is published by the next engine. Idempotent."""
        tasks, self._tasks = self._tasks, []
        if tasks:
            await end_tasks(*tasks)
            await self._puller.close()
            self._publisher.discard()
        await self._store.close()

    @property
    def _grace_s(self) -> float:
        return max(self._settings.layer_store_grace_s, _MIN_GRACE_S)

    @property
    def _identity_key(self) -> str:
        return f"layer_store:{self._store.location}"

    def get_kind(self, layer: str) -> Kind:
        """Return whether a layer is part of a snapshot or of a template."""
        if layer.startswith("/"):  # of a record of an earlier version
            is_snapshot = Path(layer).is_relative_to(self._data.store.absolute())
        else:
            is_snapshot = get_layer_kind(layer) in (SNAPSHOT, SHARED, FETCHED_SNAPSHOT)
        return "snapshot" if is_snapshot else "template"

    # For clients ------------------------------------------------------------------------------------------------------

    def is_durable(self, snapshot_id: str) -> bool:
        """Return whether the snapshot is in the store, as far as this engine knows."""
        publication = self._publications.get(self._identity, snapshot_id)
        return publication is not None and publication.state.is_durable

    @property
    def status(self) -> Status:
        pending = self._list_pending()
        return Status(
            location=self._store.location,
            problem=self._problem,
            pending=len(pending),
            failures={
                snapshot.id: self._failures[snapshot.id].reason for snapshot in pending if snapshot.id in self._failures
            },
            published=sum(self.is_durable(snapshot.id) for snapshot in self._snapshots.list_all()),
            published_bytes=self._publisher.published_bytes,
            failure_count=self._failure_count,
            sweep_problem=self._sweep_problem,
        )

    def find_problem(self) -> str | None:
        """Return a problem that operators should know: the store is unreachable, or snapshots cannot be published. None if there
        is no problem."""
        status = self.status
        if status.problem is not None:
            return f"{status.problem} Snapshots waiting to be published: {status.pending}."
        if status.failures:
            snapshot_id, reason = next(iter(status.failures.items()))
            return f"{len(status.failures)} snapshots could not be published. {snapshot_id}: {reason}"
        return status.sweep_problem

    async def list_published(self) -> Sequence[Manifest | Unreadable]:
        """Return the snapshots in the store, oldest first."""
        await self._connect()
        return await self._puller.list_manifests()

    async def pull(self, reference: str) -> Snapshot:
        """Fetch a published snapshot by id or name. Raises NotFoundError."""
        return await self._puller.pull(reference, await self._connect())

    async def pull_missing(self, name: str) -> None:
        """Fetch a published snapshot that a client wants to use, if there is one."""
        try:
            await self.pull(name)
        except NotFoundError as error:
            log.info("snapshot_not_published", name=name[:200], reason=error.message)
        except (UnreachableError, AccessDeniedError) as error:
            raise UnreachableError(
                f"template '{name[:200]}' is not on this engine, and the layer store could not be asked for it: {error.message}"
            ) from error

    # Publishing -------------------------------------------------------------------------------------------------------

    def _list_pending(self) -> list[Snapshot]:
        return [snapshot for snapshot in self._snapshots.list_all() if not self._is_done(snapshot.id)]

    def _is_done(self, snapshot_id: str) -> bool:
        publication = self._publications.get(self._identity, snapshot_id)
        return publication is not None and publication.state is not State.PUBLISHING

    async def _publish_forever(self) -> None:
        connect_failures = 0
        while True:
            self._wake.clear()
            delay = _CHECK_INTERVAL_S
            try:
                identity = await self._connect()
            except SandyardError as error:
                if self._problem is None:
                    log.warning("layer_store_away", location=self._store.location, reason=error.message)
                self._problem = error.message
                connect_failures += 1
                delay = _compute_delay(connect_failures)
            else:
                if self._problem is not None:
                    log.info("layer_store_back", location=self._store.location)
                self._problem, connect_failures = None, 0
                try:
                    delay = min(delay, await self._work(identity))
                except Exception as error:
                    log.error("layers_not_published", exc=error)  # noqa: TRY400 - `exc` is our own keyword
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    if connect_failures:
                        await asyncio.sleep(delay)  # new snapshots do not bring the store back
                    await self._wake.wait()

    async def _work(self, identity: str) -> float:
        """Do what is due. Return the seconds until something is due again."""
        await self._remove_deleted(identity)
        due = _CHECK_INTERVAL_S
        for snapshot in self._list_pending():
            failure = self._failures.get(snapshot.id)
            if failure is not None and failure.retry_at > time.monotonic():
                due = min(due, failure.retry_at - time.monotonic())
                continue
            if self._snapshots.find(snapshot.id) is None:
                continue
            try:
                async with self._exclusive:
                    await self._publisher.publish(snapshot, identity)
            except SandyardError as error:
                delay = self._record_failure(snapshot.id, error)
                due = min(due, delay)
                if isinstance(error, (UnreachableError, AccessDeniedError, StoreFullError)):
                    self._problem = error.message  # of the whole store: the other snapshots wait too
                    return delay
            else:
                self._failures.pop(snapshot.id, None)
        for snapshot_id in self._failures.keys() - {snapshot.id for snapshot in self._list_pending()}:
            del self._failures[snapshot_id]
        return 0 if self._list_deleted(identity) else due

    def _record_failure(self, snapshot_id: str, error: SandyardError) -> float:
        before = self._failures.get(snapshot_id)
        count = 1 if before is None else before.count + 1
        delay = _compute_delay(count)
        self._failures[snapshot_id] = Failure(error.message, count, time.monotonic() + delay)
        self._failure_count += 1
        log.warning("snapshot_not_published", snapshot=snapshot_id, reason=error.message, retry_s=delay)
        return delay

    def _list_deleted(self, identity: str) -> list[str]:
        known = self._publications.list(identity)
        return [snapshot_id for snapshot_id in known if self._snapshots.find(snapshot_id) is None]

    async def _remove_deleted(self, identity: str) -> None:
        for snapshot_id in self._list_deleted(identity):
            try:
                await self._publisher.remove(snapshot_id, identity)
            except SandyardError as error:  # retried with the next round
                log.warning("snapshot_not_unpublished", snapshot=snapshot_id, reason=error.message)
                return

    async def _connect(self) -> str:
        """Return the identity of the store, created if it is new. Raises UnreachableError or AccessDeniedError."""
        known = self._database.get_meta(self._identity_key)
        try:
            raw = await self._store.get_document(IDENTITY)
        except NotFoundError:
            if known is not None and not self._store.location.startswith(S3_PREFIX):
                raise UnreachableError(
                    f"The layer store {self._store.location} is empty, but was not before: it is probably not mounted. If it "
                    f"is a new one, run `touch {self._store.location}/{IDENTITY}`."
                ) from None
            raw = b""
        identity = _parse_identity(raw)
        if identity is None:
            identity = uuid.uuid4().hex
            await self._store.put_document(IDENTITY, json.dumps({"format": 1, "id": identity}).encode() + b"\n")
        if identity != known:
            self._database.set_meta(self._identity_key, identity)
            self._wake.set()  # nothing is published in this store yet
            log.info("layer_store_opened", location=self._store.location, id=identity)
        self._identity = identity
        return identity

    # Sweeping ---------------------------------------------------------------------------------------------------------

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.layer_store_sweep_s)
            try:
                await self.sweep()
            except SandyardError as error:
                self._sweep_problem = f"The layer store is not swept: {error.message}"
                log.warning("layer_store_not_swept", reason=error.message)
            except OSError as error:
                log.warning("layers_not_collected", reason=str(error))
            except Exception as error:
                self._sweep_problem = "The layer store is not swept: internal error, see the engine's log."
                log.error("layer_store_sweep_crashed", exc=error)  # noqa: TRY400 - `exc` is our own keyword
            else:
                self._sweep_problem = None

    async def sweep(self) -> int:
        """Delete blobs that no manifest needs, and fetched layers that nothing here uses. Return how many blobs were
        deleted."""
        identity = await self._connect()
        async with self._exclusive:
            removed = await self._sweep_blobs(identity)
        await self.collect()
        self._layers.forget_missing()
        return removed

    async def collect(self) -> None:
        """Remove fetched layers that nothing here uses."""
        for folder in self._folders.values():
            await folder.collect(self._uses_layer)

    @property
    def layer_folders(self) -> Sequence[LayerFolder]:
        """The folders of fetched layers."""
        return tuple(self._folders.values())

    async def _sweep_blobs(self, identity: str) -> int:
        blobs = {stored.key: stored async for stored in self._store.list(BLOBS)}
        oldest = time.time() - self._grace_s  # younger ones may be about to be referenced by any engine
        old = [stored for stored in blobs.values() if stored.modified < oldest]
        manifests = await self._puller.list_manifests()  # after the blobs
        for manifest in manifests:
            if isinstance(manifest, Unreadable):  # its blobs are unknown
                raise SandyardError(f"It is not known which blobs are needed. {manifest.reason}")
        readable = [manifest for manifest in manifests if isinstance(manifest, Manifest)]
        own = self._publications.list(identity)  # only our own, because there may be many others
        complete = {
            manifest.id
            for manifest in readable
            if manifest.id in own and all([await self._has_blob(layer, blobs) for layer in manifest.layers])
        }
        self._publish_incomplete(identity, complete)
        self._update_pulled(identity, {manifest.id for manifest in readable})
        needed = {layer.key for manifest in readable for layer in manifest.layers}
        removed = 0
        for stored in old:
            if stored.key in needed:
                continue
            current = await self._store.find(stored.key)
            if current is not None and current.modified == stored.modified:  # no publisher has refreshed it
                await self._store.delete(stored.key)
                removed += 1
        if removed:
            log.info("layer_store_swept", blobs=removed)
        return removed

    async def _has_blob(self, layer: ManifestLayer, blobs: Mapping[str, StoredObject]) -> bool:
        """Return whether the store has a blob of the right size. `blobs` may lack one that is new."""
        found = blobs.get(layer.key) or await self._store.find(layer.key)
        return found is not None and found.size == layer.size

    def _publish_incomplete(self, identity: str, complete: Collection[str]) -> None:
        """Publish the snapshots again whose manifest or blobs are no longer there."""
        for snapshot_id, publication in self._publications.list(identity).items():
            if publication.state is State.PUBLISHED and snapshot_id not in complete:
                log.warning("snapshot_not_complete", snapshot=snapshot_id)
                if self._snapshots.find(snapshot_id) is not None:
                    self._publications.set(identity, snapshot_id, State.PUBLISHING, time.time())
                    self._wake.set()

    def _update_pulled(self, identity: str, published: set[str]) -> None:
        """Remember which pulled snapshots the store no longer has, and forget those that were not used for a while: they
        can be pulled again."""
        now = time.time()
        for snapshot_id, publication in self._publications.list(identity).items():
            if publication.state not in (State.PULLED, State.MISSING) or self._snapshots.find(snapshot_id) is None:
                continue
            state = State.PULLED if snapshot_id in published else State.MISSING
            used = self._snapshots.is_used(snapshot_id)
            if used or state is not publication.state:
                self._publications.set(identity, snapshot_id, state, now if used else publication.used_at)
            elif state is State.PULLED and self._is_stale(publication, now):
                self._publications.delete(identity, snapshot_id)  # first, so that its manifest stays
                self._snapshots.delete(snapshot_id)
                log.info("pulled_snapshot_evicted", snapshot=snapshot_id)

    def _is_stale(self, publication: Publication, now: float) -> bool:
        return now - publication.used_at > self._settings.layer_keep_s


def open_store(settings: EngineSettings) -> LayerStore:
    """Return the layer store of the settings. Does not contact it. Raises InvalidInputError, or UnsupportedError if a
    package is missing."""
    location, secret = settings.layer_store, settings.layer_store_secret_key
    if location is None:
        raise InvalidInputError("This engine has no layer store. Start it with --layer-store.")
    if not location.startswith(S3_PREFIX):
        return DirectoryStore(Path(location))
    from sandyard.engine.layers.s3 import S3Store  # noqa: PLC0415 - an optional dependency

    options = S3Options(
        endpoint=settings.layer_store_endpoint,
        region=settings.layer_store_region,
        access_key=settings.layer_store_access_key,
        secret_key=None if secret is None else secret.reveal(),
    )
    return S3Store.from_location(location, options)


async def check_store(store: LayerStore) -> None:
    """Store, read and delete a small object. Raises SandyardError, with the reason and the remedy."""
    key, content = f"{BLOBS}{os.urandom(32).hex()}", b"written by sandyard doctor\n"
    await store.put_document(key, content)
    try:
        if await store.get_document(key) != content:
            raise SandyardError(f"The layer store {store.location} does not return what was stored in it.")
    finally:
        await store.delete(key)


def _parse_identity(raw: bytes) -> str | None:
    try:
        identity: Any = json.loads(raw)["id"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return identity if isinstance(identity, str) and 0 < len(identity) <= 64 else None


def _compute_delay(failures: int) -> float:
    """Return the seconds to wait after that many failures in a row."""
    return min(_MAX_RETRY_S, _FIRST_RETRY_S * float(2 ** min(failures - 1, 10)))
