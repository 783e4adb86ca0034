"""Poll pull requests and labelled issues if there are no webhooks, and recover after a crash.

Each open pull request is polled every `forge_poll_s`, or every ten minutes while webhooks of its project arrive. Polls are spread over that
time. So are, for each project that turns issues into tasks, the open issues with its label; an unchanged response costs nothing. An issue
counts once, even if a webhook reported it too, and even if its task was deleted. A project whose forge fails, rejects requests or is low on
its rate limit is paused for a while; the others continue.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import load_only

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.access import Access
from sandyard.platform.domain.forge.deliveries import LabelledIssue, parse_labelled_issue
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError
from sandyard.platform.domain.forge.model import ForgeKind, PullState
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.forge.webhooks import KEPT, IssueTrigger, issue_key
from sandyard.platform.domain.projects.model import ProjectSettings
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
_ROWS = 20
"""Projects loaded in one batch."""


@dataclass(slots=True)
class _Pause:
    """A project is paused until then; after another failure, for twice as long."""

    until: datetime
    seconds: float


class PullRequestPoller:
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
        self._resting: dict[str, _Pause] = {}
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
        now = get_time(self._clock)
        async with self._database.reading() as session:
            rows = list(await session.scalars(_select_followed(now)))
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
        budget = await self._access.get_budget(project)
        if budget is None or not budget.low or budget.resets_at <= now:
            return False
        self._resting[project.id] = _Pause(budget.resets_at, self._poll_s)
        log.warning("forge_budget_low", project=project.id, remaining=budget.remaining, resets_at=budget.resets_at)
        return True

    def _rest(self, project: Project, error: SandyardError, now: datetime) -> None:
        before = self._resting.get(project.id)
        seconds = min(LONGEST_REST_S, before.seconds * 2 if before else self._poll_s)
        until = now + timedelta(seconds=seconds)
        if isinstance(error, ForgeRateLimitedError) and error.until is not None:
            until = max(until, error.until)
        self._resting[project.id] = _Pause(until, seconds)
        log.warning("pull_requests_not_followed", project=project.id, until=until, reason=error.message)


def _select_followed(now: datetime) -> Select[PullRequest]:
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


class IssuePoller:
    def __init__(
        self, database: Database, access: Access, settings: PlatformSettings, clock: Clock, *, on_issue: IssueTrigger
    ) -> None:
        self._database = database
        self._access = access
        self._poll_s = settings.forge_poll_s
        self._clock = clock
        self._on_issue = on_issue
        self._tasks = TaskSet("issues")
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._next: dict[str, datetime] = {}
        self._failed: dict[str, float] = {}

    def start(self) -> None:
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        await self._tasks.cancel()

    async def _run(self) -> None:
        while True:
            try:
                await self.round()
            except SandyardError as error:
                log.warning("issues_failed", reason=error.message)
            except Exception as error:
                log.error("issues_crashed", exc=error)  # noqa: TRY400
            await self._clock.sleep(self._poll_s)

    async def round(self) -> None:
        """Poll all projects that are due."""
        now = get_time(self._clock)
        projects = await self._polled_projects()
        async with self._database.reading() as session:
            lately = select(Delivery.project_id).where(
                Delivery.received_at > now - HEARD_WITHIN, Delivery.event != POLLED
            )
            heard = set(await session.scalars(lately.distinct()))
        due = [row for row in projects if self._next.get(row.id, now) <= now]
        await asyncio.gather(*(self._look(row, heard=row.id in heard, now=now) for row in due))

    async def _polled_projects(self) -> list[Project]:
        living = select(Project).where(Project.archived_at.is_(None), Project.repository.is_not(None))
        found: list[Project] = []
        last = ""
        async with self._database.reading() as session:
            while rows := list(
                await session.scalars(living.where(Project.id > last).order_by(Project.id).limit(_ROWS))
            ):
                found += [row for row in rows if self._wants(row)]
                last = rows[-1].id
                await asyncio.sleep(0)  # let other tasks run
        return found

    def _wants(self, project: Project) -> bool:
        if ProjectSettings.of(project).tasks.issue_label is None:
            return False
        try:
            return self._access.forge(project) == ForgeKind.GITHUB
        except SandyardError:
            return False

    async def _look(self, project: Project, *, heard: bool, now: datetime) -> None:
        every = max(self._poll_s, HEARD_POLL_S) if heard else self._poll_s
        self._next[project.id] = now + timedelta(seconds=every - 1)
        async with self._slots:
            try:
                budget = await self._access.get_budget(project)
                if budget is not None and budget.low and budget.resets_at > now:
                    self._next[project.id] = budget.resets_at
                    return
                for issue in await self._found(project, now):
                    await self._take(project, issue, now)
                self._failed.pop(project.id, None)
            except SandyardError as error:
                self._rest(project, error, now)
            except Exception as error:
                log.error("issues_crashed", project=project.id, exc=error)  # noqa: TRY400
                self._rest(project, SandyardError(str(error)), now)

    async def _found(self, project: Project, now: datetime) -> list[LabelledIssue]:
        """Return issues that are not known yet, and record that the known ones still exist."""
        label = ProjectSettings.of(project).tasks.issue_label or ""
        github = await self._access.github(project, max_wait_s=0)
        said = [parse_labelled_issue(one, label) for one in await github.list_issues(label)]
        issues = {issue_key(issue.number): issue for issue in said if issue is not None}
        async with self._database.reading() as session:
            known = select(Delivery.delivery, Delivery.received_at).where(Delivery.project_id == project.id)
            rows = (await session.execute(known.where(Delivery.delivery.in_(issues)))).all()
        fading = [key for key, received_at in rows if received_at < now - KEPT / 2]
        if fading:
            async with self._database.transaction() as tx:
                for key in fading:
                    row = await tx.session.get(Delivery, (project.id, key))
                    if row is not None:
                        row.received_at = now
        return [issue for key, issue in issues.items() if key not in {row[0] for row in rows}]

    async def _take(self, project: Project, issue: LabelledIssue, now: datetime) -> None:
        try:
            async with self._database.transaction() as tx:
                key = issue_key(issue.number)
                tx.add(Delivery(project_id=project.id, delivery=key, event=POLLED, received_at=now))
                await tx.session.flush()
                await self._on_issue(tx, project, issue)
        except IntegrityError:  # a webhook reported it at the same time
            return
        log.info("issue_taken", project=project.id, number=issue.number)

    def _rest(self, project: Project, error: SandyardError, now: datetime) -> None:
        """Pause the project, twice as long after each failure."""
        seconds = min(LONGEST_REST_S, self._failed.get(project.id, self._poll_s / 2) * 2)
        until = now + timedelta(seconds=seconds)
        if isinstance(error, ForgeRateLimitedError) and error.until is not None:
            until = max(until, error.until)
        self._failed[project.id], self._next[project.id] = seconds, until
        log.warning("issues_not_followed", project=project.id, until=until, reason=error.message)
