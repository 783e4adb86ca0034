"""Poll open pull requests if there are no webhooks, and recover after a crash.

Each is polled every `forge_poll_s`, or every ten minutes while webhooks of its project arrive. Polls are spread over that time. A project
whose forge fails, rejects requests or is low on its rate limit is paused for a while; the others continue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.orm import load_only

from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.access import Access
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError
from sandyard.platform.domain.forge.model import ForgeKind, PullState
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.users.tokens import instant
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
ROUNDS = 6
"""Rounds per polling interval."""
HEARD_WITHIN, HEARD_POLL_S = timedelta(hours=1), 600.0
LONGEST_REST_S = 3600.0
POLLED = "polled"
"""The event name of records that were found by polling instead of a webhook."""
UNFINISHED = timedelta(days=1)
"""How long after a merge deleting the branch is retried."""
AT_ONCE = 4
_GLANCE = (PullRequest.id, PullRequest.project_id, PullRequest.state, PullRequest.looked_at, PullRequest.created_at)


@dataclass(slots=True)
class _Rest:
    """A project is paused until then; after another failure, for twice as long."""

    until: datetime
    seconds: float


class Follower:
    def __init__(
        self, database: Database, pulls: PullRequests, access: Access, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._pulls = pulls
        self._access = access
        self._poll_s = settings.forge_poll_s
        self._clock = clock
        self._tasks = TaskSet("follower")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._resting: dict[str, _Rest] = {}
        self._tried: dict[str, datetime] = {}

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except SandyardError as error:
                log.warning("follow_failed", reason=error.message)
            except Exception as error:
                log.error("follow_crashed", exc=error)  # noqa: TRY400
            await self._clock.sleep(self._poll_s / ROUNDS)

    async def round(self) -> None:
        """Poll what is due now, or a part of it if there is much."""
        now = instant(self._clock)
        async with self._database.reading() as session:
            rows = list(await session.scalars(_followed(now)))
            heard_query = select(Delivery.project_id, func.max(Delivery.received_at)).group_by(Delivery.project_id)
            heard_query = heard_query.where(Delivery.received_at > now - HEARD_WITHIN, Delivery.event != POLLED)
            heard = {project_id for project_id, _ in (await session.execute(heard_query)).all()}
            ids = {row.project_id for row in rows}
            projects = {row.id: row for row in await session.scalars(select(Project).where(Project.id.in_(ids)))}
        known = {row.id for row in rows}
        self._tried = {pull_id: at for pull_id, at in self._tried.items() if pull_id in known}
        await asyncio.gather(
            *(
                self._follow(projects[project_id], list(group), heard=project_id in heard, now=now)
                for project_id, group in groupby(rows, key=lambda row: row.project_id)
                if project_id in projects
            )
        )

    async def _follow(self, project: Project, rows: Sequence[PullRequest], *, heard: bool, now: datetime) -> None:
        rest = self._resting.get(project.id)
        if rest is not None and rest.until > now:
            return
        every = max(self._poll_s, HEARD_POLL_S) if heard else self._poll_s
        due = self._due(rows, every, now)
        if not due:
            return
        async with self._slots:
            try:
                if await self._few_left(project, now):
                    return
                for row in due:
                    self._tried[row.id] = now
                    await self._one(row.id)
            except SandyardError as error:
                self._rest(project, error, now)
            except Exception as error:
                log.error("follow_crashed", project=project.id, exc=error)  # noqa: TRY400
                self._rest(project, SandyardError(str(error)), now)
            else:
                self._resting.pop(project.id, None)

    def _due(self, rows: Sequence[PullRequest], every: float, now: datetime) -> list[PullRequest]:
        """Return marked rows, then a part of the others, starting with the one polled longest ago."""
        marked = [row for row in rows if row.looked_at is None]
        limit = now - timedelta(seconds=every)
        last = {row.id: max(row.looked_at, self._tried.get(row.id, row.looked_at)) for row in rows if row.looked_at}
        others = sorted((row for row in rows if row.id in last and last[row.id] <= limit), key=lambda row: last[row.id])
        share = math.ceil(len(rows) * self._poll_s / ROUNDS / every)
        marked.sort(key=lambda row: self._tried.get(row.id, row.created_at))
        return [*marked, *others[:share]]

    async def _one(self, pull_id: str) -> None:
        async with self._database.reading() as session:
            row = await session.get(PullRequest, pull_id)
        if row is None:
            return  # its project was deleted meanwhile
        if row.state == PullState.MERGED and row.looked_at is not None:
            await self._pulls.finish(row)
        else:
            await self._pulls.refresh(row, max_wait_s=0)

    async def _few_left(self, project: Project, now: datetime) -> bool:
        """Return whether the rate limit is low: the last requests are reserved for people."""
        budget = await self._access.budget(project)
        if budget is None or not budget.low or budget.resets_at <= now:
            return False
        self._resting[project.id] = _Rest(budget.resets_at, self._poll_s)
        log.warning("forge_budget_low", project=project.id, remaining=budget.remaining, resets_at=budget.resets_at)
        return True

    def _rest(self, project: Project, error: SandyardError, now: datetime) -> None:
        before = self._resting.get(project.id)
        seconds = min(LONGEST_REST_S, before.seconds * 2 if before else self._poll_s)
        until = now + timedelta(seconds=seconds)
        if isinstance(error, ForgeRateLimitedError) and error.until is not None:
            until = max(until, error.until)
        self._resting[project.id] = _Rest(until, seconds)
        log.warning("pull_requests_not_followed", project=project.id, until=until, reason=error.message)


def _followed(now: datetime) -> Select[PullRequest]:
    """Return a query of only what is needed to see which are due: full rows can be megabytes, and this runs in every round."""
    unfinished = and_(
        PullRequest.state == PullState.MERGED,
        PullRequest.branch_deleted_at.is_(None),
        PullRequest.merged_at > now - UNFINISHED,
    )
    reopenable = and_(PullRequest.state == PullState.CLOSED, PullRequest.closed_at > now - UNFINISHED)
    living = select(Project.id).where(Project.archived_at.is_(None))
    return (
        select(PullRequest)
        .options(load_only(*_GLANCE, raiseload=True))
        .where(PullRequest.forge == ForgeKind.GITHUB, PullRequest.number.is_not(None))
        .where(PullRequest.project_id.in_(living))
        .where(or_(PullRequest.state == PullState.OPEN, PullRequest.looked_at.is_(None), unfinished, reopenable))
        .order_by(PullRequest.project_id, PullRequest.id)
    )
