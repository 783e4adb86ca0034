"""Limit what the sandboxes of one user, and of one project, use together. All users share the capacity of the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, Sandbox, User
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.e2b import EngineQuotaError
from sandyard.platform.domain.sandboxes.model import LIVE, Status
from sandyard.platform.domain.users.quotas import UserQuotas

MIB = 1 << 20
_STARTED = (Status.PROVISIONING, Status.RUNNING)


class RunningLimitError(EngineQuotaError):
    """The user or the project has the maximum number of running sandboxes. Tasks wait, as they do while the engine is full."""

    code, status = "too_many_sandboxes", 429

    def __init__(self, limit: int, of: str, advice: str) -> None:
        super().__init__(
            f"The limit of {limit} running sandboxes {of} is reached. Pause or delete a sandbox that you do not need now, or {advice}."
        )


class QuotaExceededError(EngineQuotaError):
    """The sandboxes of the user or the project would use more than they may together. Tasks wait."""

    code, status = "quota_exceeded", 429


@dataclass(frozen=True, slots=True)
class SandboxUse:
    """The total usage of sandboxes: the size of those that run, and the disk space of all. Memory and disk are in MiB."""

    running_sandboxes: int = 0
    cpus: int = 0
    memory_mb: int = 0
    disk_mb: int = 0
    unknown: int = 0
    """Sandboxes being created whose size is not known yet."""


@dataclass(frozen=True, slots=True)
class _Limits:
    """Limits of a user or a project. None: no limit. `of` and `advice` are parts of messages."""

    of: str
    advice: str
    matches: ColumnElement[bool]
    running_sandboxes: int | None
    cpus: int | None
    memory_mb: int | None
    disk_mb: int | None

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in (self.running_sandboxes, self.cpus, self.memory_mb, self.disk_mb))


class RunningLimit:
    """Checks limits before a sandbox starts. The platform's own sandboxes do not count.

    Sandboxes being started count by their rows and until then by what this process knows of them. So concurrent requests cannot
    exceed a limit. The size of a new sandbox is that of the last one of its template, until the engine reports its own. If there was
    none, and the size is limited, only one is created at a time. `resolve` returns the limits of a user, with the defaults.
    """

    def __init__(self, database: Database, resolve: Callable[[UserQuotas], UserQuotas] = lambda quotas: quotas) -> None:
        self._database = database
        self._resolve = resolve
        self._starting: dict[str, Sandbox] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @contextlib.asynccontextmanager
    async def start(self, row: Sandbox) -> AsyncIterator[None]:
        """Count the sandbox as running until the context ends, when its row must say so. Raises RunningLimitError and
        QuotaExceededError."""
        if row.internal:
            yield
            return
        async with contextlib.AsyncExitStack() as stack:
            for key in sorted({row.owner_id, row.project_id or row.owner_id}):
                await stack.enter_async_context(self._locks.setdefault(key, asyncio.Lock()))
            await self._set_size(row)
            await self.check(row.owner_id, row.project_id, row)
            self._starting[row.id] = row
        try:
            yield
        finally:
            self._starting.pop(row.id, None)

    async def check(self, owner_id: str, project_id: str | None = None, row: Sandbox | None = None) -> None:
        """Raise RunningLimitError or QuotaExceededError if this sandbox, or any other, may not be started now."""
        async with self._database.reading() as session:
            for limits in await self._load_limits(session, owner_id, project_id):
                if limits.is_set:
                    starting = [
                        sandbox
                        for sandbox in self._starting.values()
                        if _belongs(sandbox, limits, owner_id, project_id)
                    ]
                    use = await read_use(session, limits.matches, starting)
                    _check(limits, use, row)

    async def _load_limits(self, session: AsyncSession, owner_id: str, project_id: str | None) -> Sequence[_Limits]:
        quotas = self._resolve(UserQuotas.from_user(await session.get(User, owner_id)))
        found = [
            _Limits(
                "per user",
                "ask an administrator to raise your limit (Settings, People)",
                Sandbox.owner_id == owner_id,
                quotas.running_sandboxes,
                quotas.cpus,
                quotas.memory_mb,
                quotas.disk_mb,
            )
        ]
        project = await session.get(Project, project_id) if project_id is not None else None
        if project is not None:
            own = ProjectSettings.from_project(project).quotas
            found.append(
                _Limits(
                    f"of the project {project.name}",
                    "raise the limit in the project's settings (quotas)",
                    Sandbox.project_id == project_id,
                    own.running_sandboxes,
                    own.cpus,
                    own.memory_mb,
                    own.disk_mb,
                )
            )
        return found

    async def _set_size(self, row: Sandbox) -> None:
        """Give a new sandbox the size of the last one of its template, as far as there was one."""
        if row.cpu_count is not None:
            return
        query = select(Sandbox.cpu_count, Sandbox.memory_mb).where(
            Sandbox.template == row.template, Sandbox.cpu_count.is_not(None)
        )
        async with self._database.reading() as session:
            last = (await session.execute(query.order_by(Sandbox.id.desc()).limit(1))).first()
        if last is not None:
            row.cpu_count, row.memory_mb = last


async def read_use(session: AsyncSession, matches: ColumnElement[bool], starting: Sequence[Sandbox] = ()) -> SandboxUse:
    """Return the resources used by the sandboxes that match, including those being started."""
    query = select(func.count(), func.sum(Sandbox.cpu_count), func.sum(Sandbox.memory_mb)).where(
        matches,
        Sandbox.status.in_(_STARTED),
        Sandbox.internal.is_(False),
        Sandbox.id.not_in([row.id for row in starting]),
    )
    count, cpus, memory = (await session.execute(query)).one()
    unknown = await session.scalar(
        query.with_only_columns(func.count()).where(Sandbox.status == Status.PROVISIONING, Sandbox.cpu_count.is_(None))
    )
    samples = await session.scalars(
        select(Sandbox.usage).where(matches, Sandbox.status.in_(LIVE), Sandbox.internal.is_(False))
    )
    disk = sum(sample["disk_bytes"] for sample in samples if sample)
    return SandboxUse(
        count + len(starting),
        int(cpus or 0) + sum(row.cpu_count or 0 for row in starting),
        int(memory or 0) + sum(row.memory_mb or 0 for row in starting),
        disk // MIB,
        (unknown or 0) + sum(row.cpu_count is None for row in starting),
    )


def _belongs(row: Sandbox, limits: _Limits, owner_id: str, project_id: str | None) -> bool:
    return row.owner_id == owner_id if limits.of == "per user" else row.project_id == project_id


def _check(limits: _Limits, use: SandboxUse, row: Sandbox | None) -> None:
    if limits.running_sandboxes is not None and use.running_sandboxes >= limits.running_sandboxes:
        raise RunningLimitError(limits.running_sandboxes, limits.of, limits.advice)
    limits_size = limits.cpus is not None or limits.memory_mb is not None
    if limits_size and row is not None and row.cpu_count is None and use.unknown:
        raise QuotaExceededError(
            f"The size of sandboxes of the template {row.template[:60]} is not known before the first one runs, and processors or memory "
            f"{limits.of} are limited. Try again when the sandbox that is being created is running."
        )
    sizes: tuple[tuple[str, int | None, int, int], ...] = (
        ("processors", limits.cpus, use.cpus, (row.cpu_count if row is not None else None) or 0),
        ("MiB of memory", limits.memory_mb, use.memory_mb, (row.memory_mb if row is not None else None) or 0),
    )
    for what, limit, used, needed in sizes:
        if limit is not None and (used + needed > limit or used >= limit):
            raise QuotaExceededError(
                f"The limit of {limit} {what} for running sandboxes {limits.of} does not allow another sandbox: {used} are in use"
                + (f", and it needs {needed}" if needed else "")
                + f". Pause or delete a sandbox that you do not need now, or {limits.advice}."
            )
    if limits.disk_mb is not None and use.disk_mb >= limits.disk_mb:
        raise QuotaExceededError(
            f"The limit of {limits.disk_mb} MiB of disk space for sandboxes {limits.of} is reached: {use.disk_mb} MiB are used. Delete "
            f"sandboxes or files in them, or {limits.advice}."
        )


def get_sizes(values: Any) -> dict[str, int]:
    """Return the columns with the size that the engine reports."""
    return {
        name: value
        for name in ("cpu_count", "memory_mb")
        if isinstance(value := getattr(values, name, None), int) and value > 0
    }
