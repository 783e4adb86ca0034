"""Disk use of the platform and the engine, and removing what the retention rules allow."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from sqlalchemy import func, select, text

from sandyard.kit.disk_usage import measure
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentInput, AgentRun, AgentSnapshot, Command, Preparation, Project
from sandyard.platform.domain.preparations.service import Preparations
from sandyard.platform.domain.sandboxes.command_output import OutputFiles
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.domain.sandboxes.e2b.disk import EngineDiskState
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

NEW_SECONDS = 3600
"""Files this recent may belong to a command whose row is not written yet."""


class Place(StrEnum):
    PLATFORM = "platform"
    ENGINE = "engine"


@dataclass(frozen=True, slots=True)
class DiskEntry:
    """The disk use of one kind of data. `bytes` None: it is part of the engine's snapshots. `removable`: how many, and how many bytes, the
    retention rules allow to remove; in the result of `free`, what was removed."""

    place: Place
    kind: str
    bytes: int | None
    count: int | None = None
    oldest_at: datetime | None = None
    removable: int = 0
    removable_bytes: int | None = 0


@dataclass(frozen=True, slots=True)
class DiskRoom:
    """A disk and what is left of it, in bytes. `path` is a directory on it."""

    place: Place
    path: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class DiskState:
    """The disk use of the platform and the engine, largest first. `engine_error`: why the engine's part is missing."""

    entries: Sequence[DiskEntry]
    rooms: Sequence[DiskRoom]
    engine_error: str | None = None


class DiskKeeper:
    """Reports the disk use, and frees disk space. `tidy`: the platform's regular removal of everything that is too old."""

    def __init__(
        self,
        database: Database,
        engine: SandboxEngine,
        settings: PlatformSettings,
        files: OutputFiles,
        preparations: Preparations,
    ) -> None:
        self._database = database
        self._engine = engine
        self._settings = settings
        self._files = files
        self._preparations = preparations
        self._freeing = asyncio.Lock()
        self.tidy: Callable[[], Awaitable[None]]
        """Set when the services have started."""

    async def read(self) -> DiskState:
        """Measure everything. May take a minute. Raises DatabaseUnavailableError."""
        return await self._combine(await self._measure(), self._engine.disk.read)

    async def free(self) -> DiskState:
        """Remove what the retention rules allow, and return what was removed. Never removes anything that is in use."""
        async with self._freeing:
            before = await self._measure()
            await self.tidy()
            for folder in await self._list_orphans():
                await self._files.remove(folder.name)
            after = {entry.kind: entry for entry in await self._measure()}
            removed = [_subtract(entry, after[entry.kind]) for entry in before if entry.removable]
            log.info("disk_freed", bytes=sum(entry.removable_bytes or 0 for entry in removed))
            return await self._combine(removed, self._engine.disk.free)

    async def _combine(
        self, entries: Sequence[DiskEntry], ask_engine: Callable[[], Awaitable[EngineDiskState]]
    ) -> DiskState:
        """Add the engine's entries and room to the platform's. If the engine fails, its error is part of the result."""
        state, error = None, None
        try:
            state = await ask_engine()
        except SandyardError as failure:
            error = failure.message
        found = os.statvfs(self._settings.data_dir)
        free, total = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        rooms = [DiskRoom(Place.PLATFORM, str(self._settings.data_dir), free, total)]
        if state is not None:
            rooms.append(DiskRoom(Place.ENGINE, state.path, state.free, state.total))
            entries = [*entries, *_parse_entries(state)]
        return DiskState(sorted(entries, key=lambda entry: entry.bytes or 0, reverse=True), rooms, error)

    async def _measure(self) -> list[DiskEntry]:
        data = self._settings.data_dir
        known = [str(data / "output"), str(self._settings.git_dir)]
        files = [path for name in ("platform.db", "workflows.db") for path in data.glob(f"{name}*")]
        other = await asyncio.to_thread(measure, data, without=[*known, *map(str, files)])
        return [
            await self._measure_database(files),
            await self._measure_output(),
            await self._measure_repositories(),
            *await self._count_preparations(),
            DiskEntry(Place.PLATFORM, "other", other),
        ]

    async def _measure_database(self, files: Sequence[Path]) -> DiskEntry:
        size = sum(measure(path) for path in files)
        if not self._database.is_sqlite:
            async with self._database.reading() as session:
                size += int(await session.scalar(text("SELECT pg_database_size(current_database())")) or 0)
        return DiskEntry(Place.PLATFORM, "database", size)

    async def _measure_output(self) -> DiskEntry:
        """Measure the output of commands and agents."""
        folders = await self._files.list_folders()
        oldest = utc_now() - timedelta(days=self._settings.events_kept_days)
        has_input = AgentRun.id.in_(select(AgentInput.run_id).distinct())
        async with self._database.reading() as session:
            old = set(await session.scalars(select(Command.id).where(Command.finished_at < oldest)))
            old |= set(await session.scalars(select(AgentRun.id).where(AgentRun.ended_at < oldest, has_input)))
        removable = {folder for folder in folders if folder.name in old} | set(await self._list_orphans())
        total = await asyncio.to_thread(measure, self._settings.data_dir / "output")
        size = await asyncio.to_thread(lambda: sum(measure(folder) for folder in removable))
        oldest_at = await asyncio.to_thread(_find_oldest, folders)
        return DiskEntry(Place.PLATFORM, "output", total, len(folders), oldest_at, len(removable), size)

    async def _list_orphans(self) -> list[Path]:
        """Return the folders of output that belong to no command and no agent."""
        folders = await self._files.list_folders()  # before the rows
        async with self._database.reading() as session:
            known = set(await session.scalars(select(Command.id))) | set(await session.scalars(select(AgentRun.id)))
        now = time.time()
        return [
            folder
            for folder in folders
            if folder.name not in known and (changed := _get_time(folder)) is not None and now - changed > NEW_SECONDS
        ]

    async def _measure_repositories(self) -> DiskEntry:
        """Measure the mirrors, which contain checkpoints. Those of deleted projects may be removed."""
        folders = await asyncio.to_thread(lambda: list(self._settings.git_dir.glob("*.git")))
        async with self._database.reading() as session:
            existing = set(await session.scalars(select(Project.id)))
        removable = [folder for folder in folders if folder.stem not in existing]
        removable += await asyncio.to_thread(lambda: list(self._settings.git_dir.glob("*.removed")))
        total = await asyncio.to_thread(measure, self._settings.git_dir)
        size = await asyncio.to_thread(lambda: sum(measure(folder) for folder in removable))
        oldest_at = await asyncio.to_thread(_find_oldest, folders)
        return DiskEntry(Place.PLATFORM, "repositories", total, len(folders), oldest_at, len(removable), size)

    async def _count_preparations(self) -> list[DiskEntry]:
        """Count the snapshots that the platform keeps in the engine."""
        unused = await self._preparations.list_unused(timedelta(days=self._settings.preparations_kept_days))
        async with self._database.reading() as session:
            used = func.min(func.coalesce(Preparation.used_at, Preparation.created_at))
            query = select(func.count(), used).where(Preparation.snapshot.is_not(None))
            prepared, oldest = (await session.execute(query)).one()
            agents = select(func.count(), func.min(AgentSnapshot.used_at)).where(AgentSnapshot.snapshot.is_not(None))
            installed, oldest_install = (await session.execute(agents)).one()
        kept = [row for row in unused if row.snapshot is not None]
        return [
            DiskEntry(Place.PLATFORM, "preparations", None, prepared, oldest, len(kept), None),
            DiskEntry(Place.PLATFORM, "agents", None, installed, oldest_install),
        ]


def _parse_entries(state: EngineDiskState) -> list[DiskEntry]:
    return [
        DiskEntry(
            Place.ENGINE,
            entry.kind,
            entry.bytes,
            entry.count,
            None if entry.oldest_at is None else datetime.fromtimestamp(entry.oldest_at, UTC),
            entry.removable,
            entry.removable_bytes,
        )
        for entry in state.entries
    ]


def _subtract(before: DiskEntry, after: DiskEntry) -> DiskEntry:
    size = None
    if before.bytes is not None and after.bytes is not None:
        size = max(before.bytes - after.bytes, 0)
    count = max((before.count or 0) - (after.count or 0), 0)
    return DiskEntry(after.place, after.kind, after.bytes, after.count, after.oldest_at, count, size)


def _find_oldest(folders: Sequence[Path]) -> datetime | None:
    times = [found for folder in folders if (found := _get_time(folder)) is not None]
    return datetime.fromtimestamp(min(times), UTC) if times else None


def _get_time(path: Path) -> float | None:
    with contextlib.suppress(OSError):
        return path.stat().st_mtime
    return None
