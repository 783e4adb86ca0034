"""Poll pull requests and labelled issues if there are no webhooks, and recover after a crash.

Each open pull request is polled every `forge_poll_s`, or every ten minutes while webhooks of its project arrive. Polls are spread over that
time. For each project that turns issues into tasks, the open issues with its label are polled as often; an unchanged response costs nothing.
An issue counts once, even if a webhook reported it too, and even if its task was deleted. A project whose forge fails, rejects requests, is
slow or is low on its rate limit is paused for a while; the others continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import groupby

from sqlalchemy import Select, and_, func, or_, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import load_only

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.owner_tasks import OwnerTasks
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge.access import ForgeAccess
from sandyard.platform.domain.forge.deliveries import LabelledIssue, parse_labelled_issue
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError, ForgeUnreachableError
from sandyard.platform.domain.forge.model import ForgeKind, PullState
from sandyard.platform.domain.forge.service import PullRequests
from sandyard.platform.domain.forge.webhooks import DELIVERY_RETENTION, IssueTrigger, make_issue_key
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
ROUNDS = 6
"""Rounds per polling interval."""
WEBHOOK_WINDOW, WEBHOOK_POLL_S = timedelta(hours=1), 600.0
"""A project that received a webhook within this time is polled only this often."""
MAX_PAUSE_S = 3600.0
POLLED = "polled"
"""The event name of records that were found by polling instead of a webhook."""
RECENT = timedelta(days=1)
"""How long after a merge deleting the branch is retried, and a closed pull request is still polled."""
MAX_CONCURRENT_PROJECTS, MAX_CONCURRENT_PROJECTS_PER_OWNER = 16, 2
PROJECT_SECONDS = 120.0
"""How long polling one project may take. After half of it, no further pull request is started; the next round continues."""
_POLLED_COLUMNS = (
    PullRequest.id,
    PullRequest.project_id,
    PullRequest.state,
    PullRequest.looked_at,
    PullRequest.created_at,
)
BATCH_SIZE = 20
"""Projects loaded in one batch."""


@dataclass(slots=True)
class _Pause:
    """A project is paused until `until`. After another failure, it is paused for twice as many `seconds`."""

    until: datetime
    seconds: float


def _make_project_tasks(tasks: TaskSet) -> OwnerTasks:
    """Return the tasks that poll one project each. Rounds do not wait for slow projects, and these delay only others of the same owner."""
    return OwnerTasks(tasks, MAX_CONCURRENT_PROJECTS, MAX_CONCURRENT_PROJECTS_PER_OWNER)


async def _cancel_deleted(tasks: OwnerTasks, session: AsyncSession) -> None:
    """Cancel the tasks of projects that were deleted or archived meanwhile."""
    if not tasks.running:
        return
    query = select(Project.id).where(Project.id.in_(list(tasks.running)), Project.archived_at.is_(None))
    existing = set(await session.scalars(query))
    for project_id, task in tasks.running.items():
        if project_id not in existing:
            task.cancel()


@contextlib.asynccontextmanager
async def _limit_time() -> AsyncIterator[None]:
    """Raise ForgeUnreachableError if the block takes longer than PROJECT_SECONDS."""
    try:
        async with asyncio.timeout(PROJECT_SECONDS):
            yield
    except TimeoutError:
        message = f"The forge is too slow: polling the project was stopped after {PROJECT_SECONDS:g} s."
        raise ForgeUnreachableError(message) from None


async def _poll_forever(name: str, poll: Callable[[], Awaitable[None]], clock: Clock, interval_s: float) -> None:
    """Poll at this interval. A failure is logged as `NAME_failed` or `NAME_crashed`, and the next round is tried again."""
    while True:
        try:
            await poll()
        except SandyardError as error:
            log.warning(f"{name}_failed", reason=error.message)
        except Exception as error:
            log.error(f"{name}_crashed", exc=error)  # noqa: TRY400
        await clock.sleep(interval_s)


class PullRequestPoller:
    """Polls open pull requests, and for a day those that were closed or whose merged branch is not deleted yet."""

    def __init__(
        self, database: Database, pulls: PullRequests, access: ForgeAccess, settings: PlatformSettings, clock: Clock
    ) -> None:
        self._database = database
        self._pulls = pulls
        self._access = access
        self._poll_s = settings.forge_poll_s
        self._clock = clock
        self._tasks = TaskSet("pull-request-poller")
        self._projects = _make_project_tasks(self._tasks)
        self._pauses: dict[str, _Pause] = {}
        self._polled_at: dict[str, datetime] = {}

    def start(self) -> None:
        self._tasks.spawn(_poll_forever("follow", self.poll, self._clock, self._poll_s / ROUNDS))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def poll(self) -> None:
        """Start polling what is due now, or a part of it if there is much. Skips projects that are still being polled."""
        now = get_time(self._clock)
        async with self._database.reading() as session:
            rows = list(await session.scalars(_select_polled(now)))
            webhook_query = select(Delivery.project_id, func.max(Delivery.received_at)).group_by(Delivery.project_id)
            webhook_query = webhook_query.where(Delivery.received_at > now - WEBHOOK_WINDOW, Delivery.event != POLLED)
            with_webhooks = {project_id for project_id, _ in (await session.execute(webhook_query)).all()}
            ids = {row.project_id for row in rows}
            projects = {row.id: row for row in await session.scalars(select(Project).where(Project.id.in_(ids)))}
            await _cancel_deleted(self._projects, session)
        known = {row.id for row in rows}
        self._polled_at = {pull_id: at for pull_id, at in self._polled_at.items() if pull_id in known}
        for project_id, group in groupby(rows, key=lambda row: row.project_id):
            if project_id in projects and project_id not in self._projects.running:
                self._start_project(projects[project_id], list(group), project_id in with_webhooks, now)

    async def wait(self) -> None:
        """Wait until nothing is being polled."""
        await self._projects.wait()

    def _start_project(self, project: Project, rows: Sequence[PullRequest], has_webhooks: bool, now: datetime) -> None:
        pause = self._pauses.get(project.id)
        if pause is not None and pause.until > now:
            return
        interval = max(self._poll_s, WEBHOOK_POLL_S) if has_webhooks else self._poll_s
        if due := self._select_due(rows, interval, now):
            self._projects.start(project.id, project.owner_id, partial(self._poll_project, project, due))

    async def _poll_project(self, project: Project, due: Sequence[PullRequest]) -> None:
        try:
            async with _limit_time():
                started = self._clock.now()
                if await self._pause_if_budget_low(project, get_time(self._clock)):
                    return
                for row in due:
                    if self._clock.now() - started > PROJECT_SECONDS / 2:
                        break
                    self._polled_at[row.id] = get_time(self._clock)
                    await self._poll_pull_request(row.id)
        except SandyardError as error:
            self._pause(project, error)
        except Exception as error:
            log.error("follow_crashed", project=project.id, exc=error)  # noqa: TRY400
            self._pause(project, SandyardError(str(error)))
        else:
            self._pauses.pop(project.id, None)

    def _select_due(self, rows: Sequence[PullRequest], interval: float, now: datetime) -> list[PullRequest]:
        """Return marked rows, then a part of the others, starting with the one polled longest ago."""
        marked = [row for row in rows if row.looked_at is None]
        limit = now - timedelta(seconds=interval)
        last = {row.id: max(row.looked_at, self._polled_at.get(row.id, row.looked_at)) for row in rows if row.looked_at}
        others = sorted((row for row in rows if row.id in last and last[row.id] <= limit), key=lambda row: last[row.id])
        share = math.ceil(len(rows) * self._poll_s / ROUNDS / interval)
        marked.sort(key=lambda row: self._polled_at.get(row.id, row.created_at))
        return [*marked, *others[:share]]

    async def _poll_pull_request(self, pull_id: str) -> None:
        async with self._database.reading() as session:
            row = await session.get(PullRequest, pull_id)
        if row is None:
            return  # its project was deleted meanwhile
        if row.state == PullState.MERGED and row.looked_at is not None:
            await self._pulls.delete_merged_branch(row)
        else:
            await self._pulls.refresh(row, max_wait_s=0)

    async def _pause_if_budget_low(self, project: Project, now: datetime) -> bool:
        """Pause the project and return True if its rate limit is low: the last requests are reserved for people."""
        budget = await self._access.get_budget(project)
        if budget is None or not budget.low or budget.resets_at <= now:
            return False
        self._pauses[project.id] = _Pause(budget.resets_at, self._poll_s)
        log.warning("forge_budget_low", project=project.id, remaining=budget.remaining, resets_at=budget.resets_at)
        return True

    def _pause(self, project: Project, error: SandyardError) -> None:
        before = self._pauses.get(project.id)
        seconds = min(MAX_PAUSE_S, before.seconds * 2 if before else self._poll_s)
        until = get_time(self._clock) + timedelta(seconds=seconds)
        if isinstance(error, ForgeRateLimitedError) and error.until is not None:
            until = max(until, error.until)
        self._pauses[project.id] = _Pause(until, seconds)
        log.warning("pull_requests_not_followed", project=project.id, until=until, reason=error.message)


def _select_polled(now: datetime) -> Select[PullRequest]:
    """Return a query of only what is needed to see which are due: full rows can be megabytes, and this runs in every round."""
    unfinished = and_(
        PullRequest.state == PullState.MERGED,
        PullRequest.branch_deleted_at.is_(None),
        PullRequest.merged_at > now - RECENT,
    )
    reopenable = and_(PullRequest.state == PullState.CLOSED, PullRequest.closed_at > now - RECENT)
    not_archived = select(Project.id).where(Project.archived_at.is_(None))
    return (
        select(PullRequest)
        .options(load_only(*_POLLED_COLUMNS, raiseload=True))
        .where(PullRequest.forge == ForgeKind.GITHUB, PullRequest.number.is_not(None))
        .where(PullRequest.project_id.in_(not_archived))
        .where(or_(PullRequest.state == PullState.OPEN, PullRequest.looked_at.is_(None), unfinished, reopenable))
        .order_by(PullRequest.project_id, PullRequest.id)
    )


class IssuePoller:
    """Polls the labelled issues of projects that turn issues into tasks."""

    def __init__(
        self,
        database: Database,
        access: ForgeAccess,
        settings: PlatformSettings,
        clock: Clock,
        *,
        on_issue: IssueTrigger,
    ) -> None:
        self._database = database
        self._access = access
        self._poll_s = settings.forge_poll_s
        self._clock = clock
        self._on_issue = on_issue
        self._tasks = TaskSet("issue-poller")
        self._projects = _make_project_tasks(self._tasks)
        self._due_at: dict[str, datetime] = {}
        self._pause_s: dict[str, float] = {}

    def start(self) -> None:
        self._tasks.spawn(_poll_forever("issues", self.poll, self._clock, self._poll_s))

    async def close(self) -> None:
        await self._tasks.cancel()

    async def poll(self) -> None:
        """Start polling all projects that are due. Skips projects that are still being polled."""
        now = get_time(self._clock)
        projects = await self._list_projects()
        async with self._database.reading() as session:
            webhook_query = select(Delivery.project_id).where(
                Delivery.received_at > now - WEBHOOK_WINDOW, Delivery.event != POLLED
            )
            with_webhooks = set(await session.scalars(webhook_query.distinct()))
            await _cancel_deleted(self._projects, session)
        for row in projects:
            if self._due_at.get(row.id, now) <= now and row.id not in self._projects.running:
                interval = max(self._poll_s, WEBHOOK_POLL_S) if row.id in with_webhooks else self._poll_s
                self._due_at[row.id] = now + timedelta(seconds=interval - 1)
                self._projects.start(row.id, row.owner_id, partial(self._poll_project, row))

    async def wait(self) -> None:
        """Wait until nothing is being polled."""
        await self._projects.wait()

    async def _list_projects(self) -> list[Project]:
        """Return the projects whose issues become tasks."""
        query = select(Project).where(Project.archived_at.is_(None), Project.repository.is_not(None))
        found: list[Project] = []
        last = ""
        async with self._database.reading() as session:
            while rows := list(
                await session.scalars(query.where(Project.id > last).order_by(Project.id).limit(BATCH_SIZE))
            ):
                found += [row for row in rows if self._turns_issues_into_tasks(row)]
                last = rows[-1].id
                await asyncio.sleep(0)  # let other tasks run
        return found

    def _turns_issues_into_tasks(self, project: Project) -> bool:
        if ProjectSettings.from_project(project).tasks.issue_label is None:
            return False
        try:
            return self._access.get_forge(project) == ForgeKind.GITHUB
        except SandyardError:
            return False

    async def _poll_project(self, project: Project) -> None:
        try:
            async with _limit_time():
                now = get_time(self._clock)
                budget = await self._access.get_budget(project)
                if budget is not None and budget.low and budget.resets_at > now:
                    self._due_at[project.id] = budget.resets_at
                    return
                for issue in await self._list_new_issues(project, now):
                    await self._record_issue(project, issue, now)
            self._pause_s.pop(project.id, None)
        except SandyardError as error:
            self._pause(project, error)
        except Exception as error:
            log.error("issues_crashed", project=project.id, exc=error)  # noqa: TRY400
            self._pause(project, SandyardError(str(error)))

    async def _list_new_issues(self, project: Project, now: datetime) -> list[LabelledIssue]:
        """Return issues that are not known yet, and record that the known ones still exist."""
        label = ProjectSettings.from_project(project).tasks.issue_label or ""
        github = await self._access.get_github_repository(project, max_wait_s=0)
        parsed = [parse_labelled_issue(item, label) for item in await github.list_issues(label)]
        issues = {make_issue_key(issue.number): issue for issue in parsed if issue is not None}
        async with self._database.reading() as session:
            known = select(Delivery.delivery, Delivery.received_at).where(Delivery.project_id == project.id)
            rows = (await session.execute(known.where(Delivery.delivery.in_(issues)))).all()
        expiring = [key for key, received_at in rows if received_at < now - DELIVERY_RETENTION / 2]
        if expiring:
            async with self._database.transaction() as tx:
                for key in expiring:
                    row = await tx.session.get(Delivery, (project.id, key))
                    if row is not None:
                        row.received_at = now
        return [issue for key, issue in issues.items() if key not in {row[0] for row in rows}]

    async def _record_issue(self, project: Project, issue: LabelledIssue, now: datetime) -> None:
        try:
            async with self._database.transaction() as tx:
                key = make_issue_key(issue.number)
                tx.add(Delivery(project_id=project.id, delivery=key, event=POLLED, received_at=now))
                await tx.session.flush()
                await self._on_issue(tx, project, issue)
        except IntegrityError:  # a webhook reported it at the same time
            return
        log.info("issue_taken", project=project.id, number=issue.number)

    def _pause(self, project: Project, error: SandyardError) -> None:
        """Pause the project, twice as long after each failure."""
        seconds = min(MAX_PAUSE_S, self._pause_s.get(project.id, self._poll_s / 2) * 2)
        until = get_time(self._clock) + timedelta(seconds=seconds)
        if isinstance(error, ForgeRateLimitedError) and error.until is not None:
            until = max(until, error.until)
        self._pause_s[project.id], self._due_at[project.id] = seconds, until
        log.warning("issues_not_followed", project=project.id, until=until, reason=error.message)
