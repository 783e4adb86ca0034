"""Poll for labelled issues if there are no webhooks.

For each project that turns issues into tasks, the open issues with its label are polled every `forge_poll_s`, or every ten minutes while its
webhooks arrive; an unchanged response costs nothing. Each issue counts once, even if a webhook reported it too, and even if its task was
deleted. A project whose forge fails, rejects requests or is low on its rate limit is paused for a while.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError

from sandyard.kit.clock import Clock
from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Delivery, Project
from sandyard.platform.domain.forge.access import Access
from sandyard.platform.domain.forge.deliveries import LabelledIssue, labelled_issue
from sandyard.platform.domain.forge.errors import ForgeRateLimitedError
from sandyard.platform.domain.forge.follow import AT_ONCE, HEARD_POLL_S, HEARD_WITHIN, LONGEST_REST_S, POLLED
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.forge.webhooks import KEPT, IssueTrigger, issue_key
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.users.tokens import instant
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

_ROWS = 20
"""Projects loaded in one batch."""


class IssueFollower:
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
        now = instant(self._clock)
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
                budget = await self._access.budget(project)
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
        said = [labelled_issue(one, label) for one in await github.issues(label)]
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
