"""Preparations: snapshots of a project's checkout after its setup. Callers that need the same preparation share it.

The row of a preparation is written before its sandbox is requested, so that after a crash the next process can clean up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Unpack
from weakref import WeakValueDictionary

from sqlalchemy import String, literal, select, update

from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.kit.text import make_json_storable, make_storable
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Preparation, PreparationStatus, Project, Sandbox
from sandyard.platform.db.models.task_details import PreparationDetail
from sandyard.platform.db.retry import retry_while_database_unavailable
from sandyard.platform.domain.agents.installation import AgentInstallError
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.preparations import recipe as recipes
from sandyard.platform.domain.preparations.agent_snapshots import AgentSnapshots, SnapshotBuild
from sandyard.platform.domain.preparations.builder import Builder, Install
from sandyard.platform.domain.preparations.cleanup import BUILDER_AGENT_ID, PreparationCleanup
from sandyard.platform.domain.preparations.model import (
    PreparationFailedError,
    Progress,
    get_preparation_event_fields,
    make_error,
)
from sandyard.platform.domain.preparations.recipe import PreparationSpec, Recipe
from sandyard.platform.domain.preparations.user_limit import Ticket, UserLimit
from sandyard.platform.domain.projects.service import Projects, has_lost_access
from sandyard.platform.domain.repositories.model import ignore_progress
from sandyard.platform.domain.sandboxes.commands import Commands, StoppingError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import (
    NewSandbox,
    OwnerWithoutAccessError,
    get_sandbox_event_fields,
    utc_now,
)
from sandyard.platform.domain.sandboxes.service import check_template
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
RETRY_AFTER = timedelta(minutes=1)
"""A failed setup is not retried within this time, unless a person asks."""


@dataclass(slots=True)
class _Build:
    row: Preparation
    sandbox: Sandbox
    task: asyncio.Task[Preparation]
    step: str = ""
    installing: SnapshotBuild | None = None


class Preparations:
    """Operations on preparations."""

    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        commands: Commands,
        *,
        projects: Projects,
        git: GitService,
        settings: PlatformSettings,
        install: Install,
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._projects = projects
        self._git = git.prepared_checkouts
        self._settings = settings
        self.agent_snapshots = AgentSnapshots(database, lifecycle, settings, install)
        self._builder = Builder(database, lifecycle, commands, git.prepared_checkouts, settings, install)
        self._cleanup = PreparationCleanup(database, lifecycle)
        self._limit = UserLimit(settings.preparations_per_user)
        self._tasks = TaskSet("preparing")
        self.builds: dict[str, _Build] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.after_end = self._cleanup.fail_lost  # hook of `Lifecycle`

    async def close(self) -> None:
        """Stop. The next process cleans up what is in progress."""
        await self._tasks.cancel()
        await self.agent_snapshots.close()

    # creating ----------------------------------------------------------------------------------------------------------

    async def prepare(
        self, caller: Principal, project: Project, *, base_branch: str | None, profile: Profile, again: bool = False
    ) -> Preparation:
        """Return a ready preparation for the newest commit of the branch, creating it if there is none.

        Concurrent callers share one; a cancelled caller only stops waiting. Raises PreparationFailedError: if the same setup failed
        less than RETRY_AFTER ago, at once and without another try, unless `again`. Raises StoppingError if the platform stops first.
        """
        row = await self.start(caller, project, base_branch=base_branch, profile=profile, again=again)
        return row if row.status == PreparationStatus.READY else await self.wait(row.id)

    async def start(
        self, caller: Principal, project: Project, *, base_branch: str | None, profile: Profile, again: bool = False
    ) -> Preparation:
        """Do the same as `prepare`, but do not wait for the result."""
        project = await self._projects.get(caller, project.id)
        template = project.template or self._settings.default_template
        await check_template(self._database, caller, template, project.id)
        base, commit = await self._git.fetch_newest(project, base_branch, ignore_progress)
        spec = await recipes.make_spec(self._git, project, base=base, commit=commit, template=template, profile=profile)
        key = spec.key
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        async with lock:
            row = await self._find(project.id, key)
            if row is not None and row.id in self.builds:
                return self.builds[row.id].row
            if row is not None and row.status == PreparationStatus.READY and await self._has_snapshot(row):
                return await self._mark_used(row)
            if row is not None and row.status == PreparationStatus.FAILED and not again and _has_just_failed(row):
                raise make_error(row)
            return await self._start_build(caller, project, spec, row)

    async def wait(self, preparation_id: str) -> Preparation:
        """Wait for a preparation in progress. Raises PreparationFailedError or another error."""
        build = self.builds.get(preparation_id)
        if build is None:
            row = await self._get(preparation_id)
            if row.status != PreparationStatus.READY:
                raise make_error(row)
            return row
        try:
            return await asyncio.shield(build.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if build.task.cancelled() and not (current and current.cancelling()):
                raise StoppingError(
                    "The platform is stopping. The preparation continues on the next request."
                ) from None
            raise

    def get_progress(self, preparation_id: str) -> Progress | None:
        """Return the current progress, or None if the preparation is not in progress."""
        build = self.builds.get(preparation_id)
        if build is None or not build.step:
            return None
        output = build.installing.output if build.installing is not None else ""
        return Progress(build.step, output or None)

    async def _start_build(
        self, caller: Principal, project: Project, spec: PreparationSpec, known: Preparation | None
    ) -> Preparation:
        recipe = await recipes.make_recipe(self._git, spec)
        old_sandbox_id = known.sandbox_id if known is not None else None
        new_sandbox = NewSandbox(
            template=spec.template,
            idle_seconds=self._settings.idle_seconds,
            envs=recipe.envs,
            agent_id=BUILDER_AGENT_ID,
            project_id=project.id,
            internal=True,
        )
        sandbox = self._lifecycle.draft(caller.user_id, new_sandbox)
        ticket = self._limit.enter(caller.user_id)
        try:
            row = await self._add_row(caller, project, spec, known, sandbox, recipe)
            build = self._build(caller, project, row, sandbox, spec, recipe, old_sandbox_id, ticket)
        except BaseException:
            ticket.leave()
            raise
        task = self._tasks.spawn(build)
        self.builds[row.id] = _Build(row, sandbox, task)

        def finish(_: asyncio.Task[Preparation]) -> None:
            ticket.leave()
            self.builds.pop(row.id, None)

        task.add_done_callback(finish)
        return row

    async def _add_row(  # noqa: PLR0917 - everything that `_start_build` has looked up
        self,
        caller: Principal,
        project: Project,
        spec: PreparationSpec,
        known: Preparation | None,
        sandbox: Sandbox,
        recipe: Recipe,
    ) -> Preparation:
        now = utc_now()
        async with self._database.transaction() as tx:
            row = await tx.session.get(Preparation, known.id) if known is not None else None
            if row is None:
                row = Preparation(id=make_ordered_id("prp_"), project_id=project.id, key=spec.key, created_at=now)
                tx.add(row)
            row.owner_id, row.sandbox_id, row.status = caller.user_id, sandbox.id, PreparationStatus.PREPARING
            row.agent, row.template = spec.profile.name, spec.template
            row.base_branch, row.base_commit = spec.base_branch, spec.base_commit
            row.snapshot = row.error = row.error_code = row.finished_at = None
            row.used_at, row.detail = now, _make_detail(recipe)
            tx.emit(
                "preparation.started",
                **get_preparation_event_fields(row),
                baseBranch=row.base_branch,
                commit=row.base_commit,
                agent=row.agent,
            )
        return row

    async def _build(  # noqa: PLR0917 - everything that `_start_build` has looked up
        self,
        caller: Principal,
        project: Project,
        row: Preparation,
        sandbox: Sandbox,
        spec: PreparationSpec,
        recipe: Recipe,
        old_sandbox_id: str | None,
        ticket: Ticket,
    ) -> Preparation:
        async def report(current_step: str, **facts: Unpack[PreparationDetail]) -> None:
            await retry_while_database_unavailable(
                lambda: self._record_progress(row.id, current_step, facts), "preparation"
            )

        async def report_installation(snapshot_build: SnapshotBuild) -> None:
            self.builds[row.id].installing = snapshot_build
            await report(f"installing {spec.profile.title} (first time only)")

        started = time.monotonic()
        try:
            if old_sandbox_id is not None:
                await self._cleanup.clean_up(row.id, old_sandbox_id)
            if ticket.must_wait:
                await report(
                    f"waiting for other preparations of this user: {self._limit.limit} may run at the same time"
                )
                await ticket.wait()
                await self._require_access(row)
            agent_snapshot = await self.agent_snapshots.ensure(
                caller.user_id, spec.profile, spec.template, report_installation
            )
            self.builds[row.id].installing = None
            sandbox.template = agent_snapshot
            await retry_while_database_unavailable(lambda: self._add_sandbox(row.id, sandbox), "preparation")
            self._lifecycle.provision(sandbox.id)
            snapshot = await self._builder.build(caller, project, sandbox, spec=spec, recipe=recipe, report=report)
            seconds = round(time.monotonic() - started, 1)
            ready = await retry_while_database_unavailable(
                lambda: self.mark_ready(row.id, snapshot, seconds), "preparation"
            )
        except StoppingError:
            raise
        except SandyardError as error:
            await retry_while_database_unavailable(partial(self._mark_failed, row.id, error), "preparation")
            await self._clean_up(row.id, sandbox.id)
            raise
        except Exception as error:
            log.error("preparation_crashed", preparation=row.id, exc=error)  # noqa: TRY400
            failure = SandyardError("Internal error while preparing the project; see the platform's log.")
            await retry_while_database_unavailable(lambda: self._mark_failed(row.id, failure), "preparation")
            await self._clean_up(row.id, sandbox.id)
            raise failure from error
        self._tasks.spawn(self._clean_up(row.id, sandbox.id))  # in the background
        return ready

    async def _require_access(self, row: Preparation) -> None:
        """Raise OwnerWithoutAccessError if the user was disabled or removed from the project while the preparation was waiting."""
        lost = has_lost_access(literal(row.owner_id), literal(row.project_id, String()))
        async with self._database.reading() as session:
            if await session.scalar(select(lost)):
                raise OwnerWithoutAccessError(
                    "The user who requested this preparation no longer has access to the project."
                )

    async def _add_sandbox(self, preparation_id: str, sandbox: Sandbox) -> None:
        """Store the sandbox. Call it when its template is set, because maintenance provisions every stored sandbox."""
        async with self._database.transaction() as tx:
            if await tx.session.get(Preparation, preparation_id) is None:  # its project was deleted
                raise _make_not_found(preparation_id)
            if await tx.session.get(Sandbox, sandbox.id) is None:
                tx.add(sandbox)
                tx.emit("sandbox.provisioning", **get_sandbox_event_fields(sandbox), template=sandbox.template)

    async def _clean_up(self, preparation_id: str, sandbox_id: str) -> None:
        try:
            await self._cleanup.clean_up(preparation_id, sandbox_id)
        except SandyardError as error:  # `tidy` tries again
            log.warning("preparation_not_cleared", preparation=preparation_id, reason=error.message)

    async def _record_progress(self, preparation_id: str, step: str, facts: PreparationDetail) -> None:
        async with self._database.transaction() as tx:
            row = await tx.session.get(Preparation, preparation_id)
            if row is None:
                raise _make_not_found(preparation_id)
            row.detail = make_json_storable({**row.detail, **facts, "step": step})
            tx.emit("preparation.progress", **get_preparation_event_fields(row), what=step[:200])
        if (build := self.builds.get(preparation_id)) is not None:
            build.step = step

    async def mark_ready(self, preparation_id: str, snapshot: str, seconds: float) -> Preparation:
        async with self._database.transaction() as tx:
            row = await tx.session.get(Preparation, preparation_id)
            if row is not None:
                row.status, row.snapshot, row.finished_at = PreparationStatus.READY, snapshot, utc_now()
                row.used_at, row.detail = row.finished_at, {**row.detail, "step": "ready", "seconds": seconds}
                tx.emit(
                    "preparation.ready",
                    **get_preparation_event_fields(row),
                    seconds=seconds,
                    warnings=row.detail.get("warnings", [])[:10],
                )
        if row is None:
            await self._lifecycle.engine.delete_snapshot(snapshot)
            raise _make_not_found(preparation_id)
        log.info("preparation_ready", preparation=row.id, project=row.project_id)
        return row

    async def _mark_failed(self, preparation_id: str, error: SandyardError) -> None:
        message = make_storable(error.message)
        async with self._database.transaction() as tx:
            row = await tx.session.get(Preparation, preparation_id)
            if row is None:
                return
            row.status, row.finished_at = PreparationStatus.FAILED, utc_now()
            row.error, row.error_code = message, error.code
            row.detail = make_json_storable({**row.detail, "failure": dict(error.extra)})
            tx.emit("preparation.failed", **get_preparation_event_fields(row), error=message[:2000], code=error.code)
        log.info("preparation_failed", preparation=preparation_id, code=error.code, reason=message[:500])

    # reading -----------------------------------------------------------------------------------------------------------

    async def get(self, caller: Principal, preparation_id: str) -> Preparation:
        row = await self._get(preparation_id)
        with contextlib.suppress(NotFoundError):
            await self._projects.get(caller, row.project_id)
            return row
        raise _make_not_found(preparation_id)

    async def list(self, caller: Principal, project_id: str, page: PageRequest) -> Listing[Preparation]:
        """List the project's preparations, newest first."""
        project = await self._projects.get(caller, project_id)
        async with self._database.reading() as session:
            query = select(Preparation).where(Preparation.project_id == project.id)
            return await list_newest_first(session, query, Preparation.id, page)

    async def delete(self, caller: Principal, preparation_id: str) -> None:
        """Delete a preparation with its snapshot. Sessions started from it are kept. Raises ConflictError while it is in progress."""
        row = await self.get(caller, preparation_id)
        if row.id in self.builds:
            raise ConflictError("The preparation is in progress. Wait for it to finish, or kill its command.")
        await self._cleanup.remove(row)

    async def _get(self, preparation_id: str) -> Preparation:
        async with self._database.reading() as session:
            row = await session.get(Preparation, preparation_id)
        if row is None:
            raise _make_not_found(preparation_id)
        return row

    async def _find(self, project_id: str, key: str) -> Preparation | None:
        async with self._database.reading() as session:
            query = select(Preparation).where(Preparation.project_id == project_id, Preparation.key == key)
            return (await session.scalars(query)).first()

    async def _has_snapshot(self, row: Preparation) -> bool:
        """Return whether the engine still has its snapshot."""
        engine_id = row.detail.get("engineId")
        return engine_id is not None and row.snapshot in await self._lifecycle.engine.list_snapshots(engine_id)

    async def _mark_used(self, row: Preparation) -> Preparation:
        async with self._database.transaction() as tx:
            await tx.session.execute(update(Preparation).where(Preparation.id == row.id).values(used_at=utc_now()))
        return row

    # maintenance ---------------------------------------------------------------------------------------------------------

    async def recover(self) -> None:
        """Mark the preparations of an earlier process as failed and remove their sandboxes. Call it once after a start."""
        await self.agent_snapshots.recover()
        for preparation_id, sandbox_id in await self._cleanup.fail_interrupted():
            self._tasks.spawn(self._clean_up(preparation_id, sandbox_id))

    async def list_unused(self, older_than: timedelta) -> Sequence[Preparation]:
        """Return the unused preparations that `tidy` would remove."""
        return await self._cleanup.list_unused(older_than, self.builds.keys())

    async def tidy(self, older_than: timedelta) -> None:
        """Remove preparations that were replaced or not used for `older_than`, and leftovers of deleted projects."""
        await self.agent_snapshots.tidy(older_than)
        await self._cleanup.remove_unused(older_than, self.builds.keys())
        building = frozenset(build.sandbox.id for build in self.builds.values())
        await self._cleanup.remove_leftovers(self.builds.keys(), building)


def _make_detail(recipe: Recipe) -> PreparationDetail:
    detail: PreparationDetail = {
        "step": "waiting for a sandbox",
        "sources": list(recipe.sources),
        "commands": [],
        "warnings": list(recipe.warnings),
        "agentsMd": recipe.agents_md,
        "envs": dict(recipe.envs),
    }
    stored: PreparationDetail = make_json_storable(detail)
    return stored


def _has_just_failed(row: Preparation) -> bool:
    """Return whether the preparation failed recently because of its setup, and not because of the engine or the remote."""
    failed_by_setup = row.error_code in (PreparationFailedError.code, AgentInstallError.code)
    return failed_by_setup and row.finished_at is not None and utc_now() - row.finished_at < RETRY_AFTER


def _make_not_found(preparation_id: str) -> NotFoundError:
    return NotFoundError(f"There is no preparation {preparation_id[:60]!r}.")
