"""The engine's volumes, from creation to the removal of their last file.

A row is written before its directory is created, and deleted after the directory is gone. A crash in between leaves a
row that says what to remove, and the next start removes it. A directory without a row is never removed, because user
files are not garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from sandyard.engine.contract import Driver, VolumeFiles
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.volumes import mounts
from sandyard.engine.volumes.model import Volume
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import BusyError, ConflictError, FullError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import make_random_id, make_random_secret
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet

log = get_logger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_CREATING, _LIVE, _DELETED = "making", "live", "doomed"  # as stored in the database
COLLECT_INTERVAL_S = 2.0
CLOSE_TIMEOUT_S = 5.0


class VolumeUsers(Protocol):
    def list_mounting(self, volume_id: str, *, removing: bool = False) -> Sequence[str]:
        """Return the sandboxes that mount the volume, including paused ones; with `removing`, also those being removed."""
        ...


class Volumes:
    def __init__(
        self,
        database: Database,
        driver: Driver,
        settings: EngineSettings,
        users: VolumeUsers,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._driver = driver
        self._settings = settings
        self._users = users
        self._clock = clock or SystemClock()
        self._live: dict[str, Volume] = {}
        self._names: dict[str, str] = {}  # name → id, including volumes being created
        self._pending_removal: set[str] = set()
        self._removing: set[str] = set()
        self._held: dict[str, int] = {}
        self._operations, self._background = TaskSet("volumes"), TaskSet("volumes")

    async def open(self) -> None:
        """Load the volumes. The driver must be open. Volumes left half-created or half-removed by a crash are removed
        in the background."""
        for row in self._database.query(
            "SELECT id, name, token, size_mb, created_at, state FROM volumes ORDER BY created_at, id"
        ):
            volume = Volume(row[0], row[1], Secret(row[2]), row[3], row[4])
            if row[5] == _LIVE:
                self._live[volume.id] = volume
                self._names[volume.name] = volume.id
            else:
                self._pending_removal.add(volume.id)
        self._background.spawn(self._collect_forever())

    async def close(self) -> None:
        """Stop background work. Volumes are kept. Idempotent."""
        await self._operations.wait(CLOSE_TIMEOUT_S)
        await self._operations.cancel()
        await self._background.cancel()

    # Volumes
    # ----------------------------------------------------------------------------------------------------------------

    def get(self, volume_id: str) -> Volume:
        """Return a volume. Raises NotFoundError."""
        try:
            return self._live[volume_id]
        except KeyError:
            raise NotFoundError(f"Volume '{volume_id[:200]}' not found") from None

    def find(self, name: str) -> Volume | None:
        """Return the volume with this name, or None."""
        return self._live.get(self._names.get(name, ""))

    def list(self) -> Sequence[Volume]:
        """Return all volumes, oldest first."""
        return list(self._live.values())

    async def create(self, name: str) -> Volume:
        """Create an empty volume. Raises InvalidInputError if the name is taken, as E2B does, and FullError if there
        are too many."""
        if not _NAME.fullmatch(name):
            raise InvalidInputError("Invalid volume name: use 1 to 128 letters, digits, '-' and '_'.")
        if name in self._names:
            raise InvalidInputError(f"Volume with name '{name}' already exists")
        if len(self._names) >= self._settings.max_volumes:
            raise FullError(
                f"The limit of {self._settings.max_volumes} volumes is reached. Delete one that is not needed."
            )
        size_mb = self._settings.volume_size_mb
        volume = Volume(make_random_id("v", 19), name, make_random_secret("vol_"), size_mb, self._clock.now())
        self._names[name] = volume.id
        return await self._operations.finish(self._create(volume))

    async def _create(self, volume: Volume) -> Volume:
        name, size_mb = volume.name, volume.size_mb
        try:
            self._database.execute(
                "INSERT INTO volumes (id, name, token, size_mb, created_at, state) VALUES (?, ?, ?, ?, ?, ?)",
                (volume.id, name, volume.token.reveal(), size_mb, volume.created_at, _CREATING),
            )
            try:
                await self._call_driver("create_volume", self._driver.create_volume(volume.id, size_mb))
                self._set_state(volume.id, _LIVE)
            except BaseException:
                self._pending_removal.add(volume.id)
                raise
        except BaseException:
            del self._names[name]
            raise
        self._live[volume.id] = volume
        log.info("volume_created", volume=volume.id, name=name)
        await self._database.flush()
        return volume

    async def delete(self, volume_id: str) -> None:
        """Delete a volume immediately; its files are removed in the background. Raises ConflictError, which names the
        sandboxes that mount it."""
        volume = self.get(volume_id)
        if users := self._users.list_mounting(volume_id):
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise ConflictError(
                f"Volume '{volume.name}' is mounted in {shown}. Kill these sandboxes first; paused ones count too."
            )
        self._set_state(volume_id, _DELETED)
        del self._live[volume_id]
        del self._names[volume.name]
        self._pending_removal.add(volume_id)
        log.info("volume_deleted", volume=volume_id, name=volume.name)
        self._collect()
        await self._database.flush()

    # Mounting
    # ----------------------------------------------------------------------------------------------------------------

    def resolve(self, requested: Sequence[tuple[str, str]]) -> tuple[Mapping[str, Any], ...]:
        """See `mounts.resolve`."""
        return mounts.resolve(requested, self.find)

    @contextlib.contextmanager
    def hold(self, volume_mounts: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Keep the volumes' files while a sandbox that has no record yet is being created."""
        ids = [mount["id"] for mount in volume_mounts]
        for volume_id in ids:
            self._held[volume_id] = self._held.get(volume_id, 0) + 1
        try:
            yield
        finally:
            for volume_id in ids:
                self._held[volume_id] -= 1
                if not self._held[volume_id]:
                    del self._held[volume_id]

    # Files
    # ----------------------------------------------------------------------------------------------------------------

    def get_files(self, volume: Volume) -> VolumeFiles:
        """Return the volume's files."""
        return self._driver.get_volume_files(volume.id)

    @property
    def upload_reserve(self) -> int:
        """The bytes to leave free on the disk while a file is written. A store with quotas keeps the reserve by itself."""
        return 0 if "disk" in self._driver.capabilities.limits else self._settings.disk_reserve_mb << 20

    # Removal
    # ----------------------------------------------------------------------------------------------------------------

    async def _collect_forever(self) -> None:
        while True:
            self._collect()
            await self._clock.sleep(COLLECT_INTERVAL_S)

    def _collect(self) -> None:
        """Start removing volumes that are marked for deletion and no longer in use."""
        for volume_id in self._pending_removal - self._removing:
            if volume_id not in self._held and not self._users.list_mounting(volume_id, removing=True):
                self._removing.add(volume_id)
                self._background.spawn(self._remove(volume_id))

    async def _remove(self, volume_id: str) -> None:
        try:
            await self._call_driver("delete_volume", self._driver.delete_volume(volume_id))
            self._database.execute("DELETE FROM volumes WHERE id = ?", (volume_id,))
            self._pending_removal.discard(volume_id)
            log.info("volume_removed", volume=volume_id)
        except SandyardError as error:  # retried, also by the next engine
            log.warning("volume_removal_failed", volume=volume_id, reason=error.message)
        finally:
            self._removing.discard(volume_id)

    def _set_state(self, volume_id: str, state: str) -> None:
        self._database.execute("UPDATE volumes SET state = ? WHERE id = ?", (state, volume_id))

    async def _call_driver(self, verb: str, call: Any) -> None:
        try:
            async with asyncio.timeout(self._settings.get_deadline(verb)):
                await call
        except TimeoutError:
            raise BusyError(f"The driver did not answer in time ({verb}). Try again later.") from None
