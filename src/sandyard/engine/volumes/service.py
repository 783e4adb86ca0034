"""Which volumes there are, from the wish for one to the last of its files.

A row is written before its directory is made, and deleted after that is gone: a crash in between leaves a row that says what
is to be removed, and the next start does. What no row names is never removed: files of people are no garbage.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from sandyard.engine.contract import Driver
from sandyard.engine.settings import EngineSettings
from sandyard.engine.store.database import Database
from sandyard.engine.volumes import mounts
from sandyard.engine.volumes.content import Content
from sandyard.engine.volumes.model import Volume
from sandyard.engine.volumes.upload import Upload
from sandyard.kit.clock import Clock, SystemClock
from sandyard.kit.errors import BusyError, ConflictError, FullError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.ids import random_id, random_secret
from sandyard.kit.logging import get_logger
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet

T = TypeVar("T")
log = get_logger(__name__)

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_MAKING, _LIVE, _DOOMED = "making", "live", "doomed"
COLLECT_S = 2.0
CLOSING_S = 5.0
THREADS = 8


class Users(Protocol):
    def who_mounts(self, volume_id: str, *, dying: bool = False) -> Sequence[str]:
        """The sandboxes that have it mounted, paused ones too; with `dying`, also those that are just being removed."""
        ...


class Volumes:
    def __init__(
        self,
        database: Database,
        driver: Driver,
        settings: EngineSettings,
        users: Users,
        *,
        clock: Clock | None = None,
    ) -> None:
        self._database = database
        self._driver = driver
        self._settings = settings
        self._users = users
        self._clock = clock or SystemClock()
        self._live: dict[str, Volume] = {}
        self._names: dict[str, str] = {}  # name → id, of those under way too
        self._doomed: set[str] = set()
        self._removing: set[str] = set()
        self._held: dict[str, int] = {}
        self._verbs, self._background = TaskSet("volumes"), TaskSet("volumes")
        # Their own: files of tenants may be slow, and whoever waits for them must not be in anybody's way.
        self._threads = ThreadPoolExecutor(THREADS, "volumes")

    async def open(self) -> None:
        """The driver is open. What a crash left half-made or half-removed is removed in the background."""
        for row in self._database.query(
            "SELECT id, name, token, size_mb, created_at, state FROM volumes ORDER BY created_at, id"
        ):
            volume = Volume(row[0], row[1], Secret(row[2]), row[3], row[4])
            if row[5] == _LIVE:
                self._live[volume.id] = volume
                self._names[volume.name] = volume.id
            else:
                self._doomed.add(volume.id)
        self._background.spawn(self._collect_forever())

    async def close(self) -> None:
        """Volumes stay. Idempotent."""
        await self._verbs.wait(CLOSING_S)
        await self._verbs.cancel()
        await self._background.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Which there are --------------------------------------------------------------------------------------------------------

    def get(self, volume_id: str) -> Volume:
        """NotFoundError."""
        try:
            return self._live[volume_id]
        except KeyError:
            raise NotFoundError(f"Volume '{volume_id[:200]}' not found") from None

    def find(self, name: str) -> Volume | None:
        return self._live.get(self._names.get(name, ""))

    def list(self) -> Sequence[Volume]:
        """Oldest first."""
        return list(self._live.values())

    async def create(self, name: str) -> Volume:
        """An empty one. InvalidInputError for a name that is taken, as at E2B; FullError when there are too many."""
        if not _NAME.fullmatch(name):
            raise InvalidInputError("Invalid volume name: use 1 to 128 letters, digits, '-' and '_'.")
        if name in self._names:
            raise InvalidInputError(f"Volume with name '{name}' already exists")
        if len(self._names) >= self._settings.max_volumes:
            raise FullError(f"There are {self._settings.max_volumes} volumes already: delete one that is not needed.")
        size_mb = self._settings.volume_size_mb
        volume = Volume(random_id("v", 19), name, random_secret("vol_"), size_mb, self._clock.now())
        self._names[name] = volume.id
        return await self._verbs.finish(self._create(volume))

    async def _create(self, volume: Volume) -> Volume:
        name, size_mb = volume.name, volume.size_mb
        try:
            self._database.execute(
                "INSERT INTO volumes (id, name, token, size_mb, created_at, state) VALUES (?, ?, ?, ?, ?, ?)",
                (volume.id, name, volume.token.reveal(), size_mb, volume.created_at, _MAKING),
            )
            try:
                await self._ask("create_volume", self._driver.create_volume(volume.id, size_mb))
                self._mark(volume.id, _LIVE)
            except BaseException:
                self._doomed.add(volume.id)
                raise
        except BaseException:
            del self._names[name]
            raise
        self._live[volume.id] = volume
        log.info("volume_created", volume=volume.id, name=name)
        await self._database.flush()
        return volume

    async def delete(self, volume_id: str) -> None:
        """Gone for everybody at once; its files follow. ConflictError names the sandboxes that have it mounted."""
        volume = self.get(volume_id)
        if users := self._users.who_mounts(volume_id):
            shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
            raise ConflictError(
                f"Volume '{volume.name}' is mounted in {shown}: kill what uses it first. Paused sandboxes count too."
            )
        self._mark(volume_id, _DOOMED)
        del self._live[volume_id]
        del self._names[volume.name]
        self._doomed.add(volume_id)
        log.info("volume_deleted", volume=volume_id, name=volume.name)
        self._collect()
        await self._database.flush()

    # Mounting ---------------------------------------------------------------------------------------------------------------

    def resolve(self, wanted: Sequence[tuple[str, str]]) -> tuple[Mapping[str, Any], ...]:
        """See `mounts.resolve`."""
        return mounts.resolve(wanted, self.find)

    @contextlib.contextmanager
    def held(self, mounted: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Keep their files while a sandbox is being made that has no record yet."""
        ids = [mount["id"] for mount in mounted]
        for volume_id in ids:
            self._held[volume_id] = self._held.get(volume_id, 0) + 1
        try:
            yield
        finally:
            for volume_id in ids:
                self._held[volume_id] -= 1
                if not self._held[volume_id]:
                    del self._held[volume_id]

    # What is in them ----------------------------------------------------------------------------------------------------------

    def content(self, volume: Volume) -> Content:
        """Its verbs block: hand them to `run`."""
        return Content(self._driver.volume_path(volume.id))

    async def begin(self, content: Content, path: str, **options: Any) -> Upload:
        # where the store has quotas, it leaves the reserve by itself
        reserve = 0 if "disk" in self._driver.capabilities.limits else self._settings.disk_reserve_mb << 20
        return await self.run(lambda: Upload.begin(content, path, reserve=reserve, **options))

    async def run(self, work: Callable[[], T]) -> T:
        """In a thread. Goes on to its end when the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    # Removing -----------------------------------------------------------------------------------------------------------------

    async def _collect_forever(self) -> None:
        while True:
            self._collect()
            await self._clock.sleep(COLLECT_S)

    def _collect(self) -> None:
        """Begin to remove what is doomed and not in use any more."""
        for volume_id in self._doomed - self._removing:
            if volume_id not in self._held and not self._users.who_mounts(volume_id, dying=True):
                self._removing.add(volume_id)
                self._background.spawn(self._remove(volume_id))

    async def _remove(self, volume_id: str) -> None:
        try:
            await self._ask("delete_volume", self._driver.delete_volume(volume_id))
            self._database.execute("DELETE FROM volumes WHERE id = ?", (volume_id,))
            self._doomed.discard(volume_id)
            log.info("volume_removed", volume=volume_id)
        except SandyardError as error:  # tried again, also by the next engine
            log.warning("volume_removal_failed", volume=volume_id, reason=error.message)
        finally:
            self._removing.discard(volume_id)

    def _mark(self, volume_id: str, state: str) -> None:
        self._database.execute("UPDATE volumes SET state = ? WHERE id = ?", (state, volume_id))

    async def _ask(self, verb: str, call: Any) -> None:
        try:
            async with asyncio.timeout(self._settings.deadline(verb)):
                await call
        except TimeoutError:
            raise BusyError(f"The driver does not answer ({verb}); the engine goes on trying.") from None
