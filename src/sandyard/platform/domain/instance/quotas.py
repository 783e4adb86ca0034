"""The resource usage of users and projects, and their limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import NotFoundError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, Sandbox, User
from sandyard.platform.domain.models.ledger import Ledger, select_calls
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.running_limit import SandboxUse, read_use
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.quotas import UserQuotas
from sandyard.platform.settings import PlatformSettings


class QuotaName(StrEnum):
    RUNNING_SANDBOXES = "runningSandboxes"
    CPUS = "cpus"
    MEMORY_MB = "memoryMb"
    DISK_MB = "diskMb"
    MONTHLY_USD = "monthlyUsd"
    MONTHLY_TOKENS = "monthlyTokens"


@dataclass(frozen=True, slots=True)
class Quota:
    """The usage of one resource, and its limit. None: no limit."""

    name: QuotaName
    used: float
    limit: float | None


@dataclass(frozen=True, slots=True)
class UserQuotaState:
    """The quotas of a user. `own`: the limits that an administrator has set for this user. `items`: the limits in effect."""

    items: Sequence[Quota]
    own: UserQuotas


class QuotaService:
    """Reads the usage of users and projects, and changes the limits of users. Limits of projects are in their settings."""

    def __init__(
        self, database: Database, projects: Projects, ledger: Ledger, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._projects = projects
        self._ledger = ledger
        self._settings = settings
        self._clock = clock

    async def read_user(self, caller: Principal, user_id: str) -> UserQuotaState:
        """Return the use and the limits of a user. Users may see their own; administrators may see everyone's."""
        if user_id != caller.user_id:
            caller.require_admin()
        async with self._database.reading() as session:
            user = await session.get(User, user_id)
            if user is None:
                raise NotFoundError(f"There is no user {user_id[:60]}.")
            use = await read_use(session, Sandbox.owner_id == user_id)
        own = UserQuotas.from_user(user)
        limits = own.with_defaults(self._settings)
        spent = await self._read_spent(owner_id=user_id)
        values = {name: getattr(limits, name) for name in UserQuotas.model_fields}
        return UserQuotaState(_make_quotas(use, spent, values), own)

    async def read_project(self, caller: Principal, project_id: str) -> Sequence[Quota]:
        """Return the use and the limits of a project that the caller may see."""
        project: Project = await self._projects.get(caller, project_id)
        async with self._database.reading() as session:
            use = await read_use(session, Sandbox.project_id == project_id)
        settings = ProjectSettings.from_project(project)
        monthly = settings.tasks.monthly_budget
        spent = await self._read_spent(project_id=project_id)
        values = {**settings.quotas.model_dump(), "monthly_usd": monthly.usd, "monthly_tokens": monthly.tokens}
        return _make_quotas(use, spent, values)

    async def set_user(self, caller: Principal, user_id: str, quotas: UserQuotas) -> UserQuotaState:
        """Set the limits of a user. They apply to what starts from now on."""
        caller.require_admin()
        async with self._database.transaction() as tx:
            user = await tx.session.get(User, user_id, with_for_update=True)
            if user is None:
                raise NotFoundError(f"There is no user {user_id[:60]}.")
            user.quotas = quotas.model_dump(by_alias=True, exclude_none=True)
            tx.emit("user.updated", owner_id=user.id, userId=user.id, changed=["quotas"])
        return await self.read_user(caller, user_id)

    async def _read_spent(self, *, owner_id: str | None = None, project_id: str | None = None) -> tuple[float, int]:
        """Return the dollars and tokens of this month."""
        month = get_time(self._clock).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        totals = await self._ledger.get_totals(*select_calls(owner_id=owner_id, project_id=project_id, since=month))
        return totals.cost_usd or 0.0, totals.tokens


def _make_quotas(use: SandboxUse, spent: tuple[float, int], limits: dict[str, float | None]) -> Sequence[Quota]:
    usd, tokens = spent
    return [
        Quota(QuotaName.RUNNING_SANDBOXES, use.running_sandboxes, limits["running_sandboxes"]),
        Quota(QuotaName.CPUS, use.cpus, limits["cpus"]),
        Quota(QuotaName.MEMORY_MB, use.memory_mb, limits["memory_mb"]),
        Quota(QuotaName.DISK_MB, use.disk_mb, limits["disk_mb"]),
        Quota(QuotaName.MONTHLY_USD, usd, limits["monthly_usd"]),
        Quota(QuotaName.MONTHLY_TOKENS, tokens, limits["monthly_tokens"]),
    ]
