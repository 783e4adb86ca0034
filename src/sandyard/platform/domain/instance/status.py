"""The state of this installation, and what in it needs an administrator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard import __version__
from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import SandyardError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import GitOperation, ModelCall, ModelProvider, Preparation, Project, Sandbox
from sandyard.platform.domain.instance.engine_report import EngineReport, parse_report
from sandyard.platform.domain.instance.queues import Queue, read_queues
from sandyard.platform.domain.sandboxes.e2b import SandboxEngine
from sandyard.platform.settings import PlatformSettings

ENGINE_SECONDS = 3.0
LOW_DISK_FRACTION = 0.1
LOW_DISK_BYTES = 5 << 30
SLOW_GIT = timedelta(minutes=2)
SLOW_PROVISIONING = timedelta(minutes=1)
SLOW_PREPARATION = timedelta(minutes=10)
MODEL_WINDOW = timedelta(hours=1)
LISTED = 20


class Target(StrEnum):
    """The page on which an administrator can solve a problem."""

    SANDBOXES = "sandboxes"
    SANDBOX = "sandbox"
    PROJECT = "project"
    SESSION = "session"
    MODELS = "models"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that needs attention. `severe`: new work fails. `target_id` is the id of the project, sandbox or session."""

    text: str
    severe: bool = False
    target: Target | None = None
    target_id: str | None = None


@dataclass(frozen=True, slots=True)
class SlowWork:
    """Work that takes unusually long, or took: then it has an end."""

    text: str
    since: datetime | None = None  # still in progress
    seconds: float | None = None  # ended
    error: str | None = None
    target: Target | None = None
    target_id: str | None = None


@dataclass(frozen=True, slots=True)
class Disk:
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """`database` is its kind. `engine` is what the engine reports about itself; None if it does not respond or is not Sandyard's."""

    version: str
    database: str
    problems: Sequence[Problem]
    queues: Sequence[Queue]
    slow: Sequence[SlowWork]
    disk: Disk
    engine: EngineReport | None
    engine_error: str | None


class StatusReader:
    """Reads the state of the installation."""

    def __init__(self, database: Database, engine: SandboxEngine, settings: PlatformSettings, clock: Clock) -> None:
        self._database = database
        self._engine = engine
        self._settings = settings
        self._clock = clock

    async def read_queues(self, session: AsyncSession) -> Sequence[Queue]:
        return await read_queues(session, parallel_attempts=self._settings.parallel_attempts)

    async def measure_disk(self) -> Disk:
        """Return the size of the disk with the data directory, and what is free."""
        return await asyncio.to_thread(_read_disk, self._settings.data_dir)

    async def read(self) -> InstanceStatus:
        """Return the state now. Problems that stop new work are listed first. Raises DatabaseUnavailableError."""
        report, error = await self._ask_engine()
        disk = await self.measure_disk()
        now = get_time(self._clock)
        async with self._database.reading() as session:
            queues = await self.read_queues(session)
            problems = [problem async for problem in _find_problems(session, now)]
            slow = [work async for work in _find_slow_work(session, now)]
        problems += [*_find_engine_problems(report, error), *_find_disk_problems(disk, self._settings.data_dir)]
        slow += _list_slow_operations(report)
        return InstanceStatus(
            version=__version__,
            database="SQLite" if self._database.is_sqlite else "PostgreSQL",
            problems=sorted(problems, key=lambda problem: not problem.severe),
            queues=queues,
            slow=slow,
            disk=disk,
            engine=report,
            engine_error=error,
        )

    async def _ask_engine(self) -> tuple[EngineReport | None, str | None]:
        """Return the engine's report and, if it does not respond, the reason."""
        if not self._engine.configured:
            return None, "No engine is configured. Set E2B_API_KEY, and E2B_API_URL unless you use E2B Cloud."
        try:
            async with asyncio.timeout(ENGINE_SECONDS):
                return parse_report(await self._engine.read_status()), None
        except TimeoutError:
            return None, f"The engine did not respond within {ENGINE_SECONDS:.0f} s."
        except SandyardError as error:
            return None, error.message


def _read_disk(folder: Path) -> Disk:
    found = os.statvfs(folder)
    return Disk(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize)


def _find_disk_problems(disk: Disk, folder: Path) -> Iterator[Problem]:
    if disk.free < min(LOW_DISK_BYTES, disk.total * LOW_DISK_FRACTION):
        yield Problem(f"Little disk space is left at {folder}: {disk.free >> 20} MiB. Free up space.", severe=True)


def _find_engine_problems(report: EngineReport | None, error: str | None) -> Iterator[Problem]:
    if error is not None:
        yield Problem(error, severe=True)
    if report is not None and report.shortage is not None:
        yield Problem(f"No sandbox can be created. {report.shortage}", severe=True, target=Target.SANDBOXES)
    if report is not None and report.layer_store is not None and report.layer_store.problem is not None:
        yield Problem(f"Snapshots are not published in the layer store. {report.layer_store.problem}")


async def _find_problems(session: AsyncSession, now: datetime) -> AsyncIterator[Problem]:
    broken = select(Project.id, Project.name, Project.connection_error).where(
        Project.connection_error.is_not(None), Project.archived_at.is_(None)
    )
    for project_id, name, reason in await session.execute(broken.order_by(Project.name).limit(LISTED)):
        yield Problem(f"The repository of {name} cannot be used. {reason}", target=Target.PROJECT, target_id=project_id)
    failed = select(Sandbox.error, func.count(), func.max(Sandbox.id)).where(Sandbox.status == "error")
    for reason, count, newest in await session.execute(failed.group_by(Sandbox.error).limit(LISTED)):
        text = reason or "The reason is unknown."
        if count == 1:
            yield Problem(f"A sandbox has failed. {text}", target=Target.SANDBOX, target_id=newest)
        else:
            yield Problem(f"{count} sandboxes have failed. {text}", target=Target.SANDBOXES)
    bad = ~ModelCall.status.between(200, 399)
    calls = (
        select(ModelProvider.name, func.count(), func.max(ModelCall.error))
        .join(ModelProvider, ModelProvider.id == ModelCall.provider_id)
        .where(ModelCall.started_at > now - MODEL_WINDOW, bad)
        .group_by(ModelProvider.id, ModelProvider.name)
    )
    for name, count, reason in await session.execute(calls.limit(LISTED)):
        requests = "A request" if count == 1 else f"{count} requests"
        yield Problem(f"{requests} to {name} failed in the last hour. {reason or ''}".rstrip(), target=Target.MODELS)


async def _find_slow_work(session: AsyncSession, now: datetime) -> AsyncIterator[SlowWork]:
    git = select(GitOperation.kind, GitOperation.session_id, GitOperation.started_at).where(
        GitOperation.status == "running", GitOperation.started_at < now - SLOW_GIT
    )
    for kind, session_id, since in await session.execute(git.limit(LISTED)):
        yield SlowWork(f"Git: {kind}", since, target=Target.SESSION if session_id else None, target_id=session_id)
    sandboxes = select(Sandbox.id, Sandbox.created_at).where(
        Sandbox.status == "provisioning", Sandbox.created_at < now - SLOW_PROVISIONING
    )
    for sandbox_id, since in await session.execute(sandboxes.limit(LISTED)):
        yield SlowWork("Provisioning of a sandbox", since, target=Target.SANDBOX, target_id=sandbox_id)
    preparations = (
        select(Project.id, Project.name, Preparation.created_at)
        .join(Project, Project.id == Preparation.project_id)
        .where(Preparation.status == "preparing", Preparation.created_at < now - SLOW_PREPARATION)
    )
    for project_id, name, since in await session.execute(preparations.limit(LISTED)):
        yield SlowWork(f"Preparation of {name}", since, target=Target.PROJECT, target_id=project_id)


def _list_slow_operations(report: EngineReport | None) -> Iterator[SlowWork]:
    """Yield the engine's slow operations, newest first."""
    for slow in reversed([] if report is None else report.slow_operations):
        yield SlowWork(f"Engine: {slow.operation} of {slow.sandbox}", seconds=slow.seconds, error=slow.error)
