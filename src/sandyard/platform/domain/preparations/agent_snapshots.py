"""Snapshots of a template with one agent installed.

Preparations and sessions start from them, so that an agent is installed once per template and not for every commit and session.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from weakref import WeakValueDictionary

from sqlalchemy import select, update

from sandyard.kit.errors import SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentSnapshot, Sandbox
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.preparations.builder import Install
from sandyard.platform.domain.preparations.cleanup import SUPERSEDED_AFTER, end_sandbox
from sandyard.platform.domain.preparations.user_limit import Ticket, UserLimit
from sandyard.platform.domain.sandboxes.commands import StoppingError
from sandyard.platform.domain.sandboxes.e2b import TemplateNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import NewSandbox, get_sandbox_event_fields, utc_now
from sandyard.platform.domain.sandboxes.service import is_work_snapshot
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)
VERSION = 2
"""Part of every key. Increase it to rebuild all snapshots."""
INSTALLER_AGENT_ID = "sandyard/agent-snapshots"
"""The agent id of sandboxes in which an agent is being installed."""


@dataclass(slots=True)
class SnapshotBuild:
    """A snapshot in progress. `output`: the last line of the installation's output."""

    task: asyncio.Task[str]
    output: str = ""


class AgentSnapshots:
    """A snapshot depends on the template's build, the agent and its install script. Those of custom agents are not shared between users."""

    def __init__(self, database: Database, lifecycle: Lifecycle, settings: PlatformSettings, install: Install) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._settings = settings
        self._install = install
        self._tasks = TaskSet("agent snapshots")
        self._limit = UserLimit(settings.preparations_per_user)
        self._builds: dict[str, SnapshotBuild] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def close(self) -> None:
        """Cancel builds in progress. `recover` in the next process removes their sandboxes."""
        await self._tasks.cancel()

    async def ensure(
        self,
        owner_id: str,
        profile: Profile,
        template: str,
        on_wait: Callable[[SnapshotBuild], Awaitable[None]] | None = None,
    ) -> str:
        """Return the snapshot to use in place of the template, building it if there is none.

        Returns the template for an agent that installs nothing, and if the template is a snapshot of somebody's work, because the sandbox in
        which agents are installed does not have a project's settings. Concurrent callers share one build; a cancelled caller only stops
        waiting. `on_wait` is called before waiting. Raises AgentInstallError, engine errors, and StoppingError if the platform stops first.
        """
        if profile.install is None:
            return template
        found = await self._find_or_build(owner_id, profile, template)
        if isinstance(found, str):
            return found
        if on_wait is not None:
            await on_wait(found)
        try:
            return await asyncio.shield(found.task)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if found.task.cancelled() and not (current and current.cancelling()):
                raise StoppingError("The platform is stopping. The agent is installed on the next request.") from None
            raise

    async def find(self, owner_id: str, profile: Profile, template: str) -> str:
        """Return the snapshot, or the template while there is none; the snapshot is then built in the background, unless as many as one user
        may have are being built for this one."""
        if profile.install is None:
            return template
        try:
            found = await self._find_or_build(owner_id, profile, template, max_waiting=0)
        except SandyardError as error:
            log.warning("agent_snapshot_not_found", agent=profile.name, template=template, reason=error.message)
            return template
        return found if isinstance(found, str) else template

    async def _find_or_build(
        self, owner_id: str, profile: Profile, template: str, *, max_waiting: int | None = None
    ) -> str | SnapshotBuild:
        if await is_work_snapshot(self._database, template):
            return template
        key = await self._make_key(owner_id, profile, template)
        async with self._get_lock(key):
            if (build := self._builds.get(key)) is not None:
                return build
            async with self._database.reading() as session:
                row = await session.scalar(select(AgentSnapshot).where(AgentSnapshot.key == key))
            if row is not None and row.snapshot is not None and await self._has_snapshot(row):
                await self.update_row(row.id, used_at=utc_now())
                return row.snapshot
            ticket = self._limit.enter(owner_id, max_waiting=max_waiting)
            task = self._tasks.spawn(self._build(owner_id, profile, template, key, row, ticket))
            build = self._builds[key] = SnapshotBuild(task)
            task.add_done_callback(lambda done: self._on_built(key, profile, ticket, done))
            return build

    def _get_lock(self, key: str) -> asyncio.Lock:
        """Return the lock for looking up or removing the snapshot of this key."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock

    def _on_built(self, key: str, profile: Profile, ticket: Ticket, task: asyncio.Task[str]) -> None:
        ticket.leave()
        del self._builds[key]
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("agent_snapshot_failed", agent=profile.name, reason=str(error))

    async def _make_key(self, owner_id: str, profile: Profile, template: str) -> str:
        assert profile.install is not None
        template_build = await self._lifecycle.engine.find_template_build(template)
        owner = None if profile.name in BUILT_IN else owner_id
        parts = [
            VERSION,
            template,
            template_build,
            profile.name,
            owner,
            profile.install.version,
            profile.install.script,
        ]
        return hashlib.sha256(json.dumps([*parts, self._settings.npm_registry]).encode()).hexdigest()

    async def _has_snapshot(self, row: AgentSnapshot) -> bool:
        return row.engine_id is not None and row.snapshot in await self._lifecycle.engine.list_snapshots(row.engine_id)

    async def _build(  # noqa: PLR0917 - what `_find_or_build` has found
        self, owner_id: str, profile: Profile, template: str, key: str, known: AgentSnapshot | None, ticket: Ticket
    ) -> str:
        """Build a snapshot when it is the ticket's turn.

        The row is stored before the sandbox is created, so that `recover` finds the sandbox after a crash.
        """
        await ticket.wait()
        new_sandbox = NewSandbox(
            template=template, idle_seconds=self._settings.idle_seconds, agent_id=INSTALLER_AGENT_ID, internal=True
        )
        sandbox = self._lifecycle.draft(owner_id, new_sandbox)
        async with self._database.transaction() as tx:
            row = await tx.session.get(AgentSnapshot, known.id) if known is not None else None
            if row is None:
                row = AgentSnapshot(
                    id=make_ordered_id("ags_"), key=key, agent=profile.name, template=template, created_at=utc_now()
                )
                tx.add(row)
            row.sandbox_id, row.snapshot, row.engine_id, row.used_at = sandbox.id, None, None, utc_now()
            tx.add(sandbox)
            tx.emit("sandbox.provisioning", **get_sandbox_event_fields(sandbox), template=sandbox.template)
        self._lifecycle.provision(sandbox.id)
        try:
            sandbox = await self._lifecycle.wait_until_provisioned(sandbox.id)
            async with self._lifecycle.using(sandbox) as engine_id:
                await self._install(
                    self._lifecycle.engine,
                    engine_id,
                    profile,
                    self._settings,
                    partial(self._record_output, key, profile),
                )
                snapshot = await self._lifecycle.engine.create_snapshot(engine_id)
            await self.update_row(row.id, snapshot=snapshot, engine_id=engine_id, used_at=utc_now())
            log.info("agent_snapshot_ready", agent=profile.name, template=template)
        except Exception:  # not if cancelled: then the platform is stopping, and `recover` cleans up
            self._tasks.spawn(self._clean_up(row.id, sandbox.id))
            raise
        self._tasks.spawn(self._clean_up(row.id, sandbox.id))
        return snapshot

    def _record_output(self, key: str, profile: Profile, line: str) -> None:
        build = self._builds.get(key)
        if build is not None and line != f"Installing {profile.title}":  # the step says so already
            build.output = line

    async def _clean_up(self, row_id: str, sandbox_id: str) -> None:
        """Remove the sandbox in which it was built, and all its snapshots except the row's own.

        Anything left after a failure is removed by `tidy`.
        """
        try:
            async with self._database.reading() as session:
                row = await session.get(AgentSnapshot, row_id)
            await end_sandbox(self._lifecycle, sandbox_id, keep=row.snapshot if row is not None else None)
            async with self._database.transaction() as tx:  # unless it is being rebuilt in another one
                own = update(AgentSnapshot).where(AgentSnapshot.id == row_id, AgentSnapshot.sandbox_id == sandbox_id)
                await tx.session.execute(own.values(sandbox_id=None))
        except SandyardError as error:
            log.warning("agent_snapshot_not_cleared", sandbox=sandbox_id, reason=error.message)

    async def update_row(self, row_id: str, **values: object) -> None:
        async with self._database.transaction() as tx:
            await tx.session.execute(update(AgentSnapshot).where(AgentSnapshot.id == row_id).values(**values))

    async def after_end(self, sandbox: Sandbox) -> None:
        """Lifecycle hook: forget a snapshot from which the engine could not create a sandbox."""
        if sandbox.engine_id is None and sandbox.error_code == TemplateNotFoundError.code:
            async with self._database.transaction() as tx:
                lost = update(AgentSnapshot).where(AgentSnapshot.snapshot == sandbox.template)
                await tx.session.execute(lost.values(snapshot=None, engine_id=None))

    async def recover(self) -> None:
        """Remove the sandboxes in which an earlier process was installing agents. Call it once after a start."""
        for row in await self._list_rows():
            if row.sandbox_id is not None:
                self._tasks.spawn(self._clean_up(row.id, row.sandbox_id))

    async def tidy(self, older_than: timedelta) -> None:
        """Remove snapshots unused for `older_than` or replaced by a newer one, and what failures left behind."""
        now, seen = utc_now(), set[tuple[str, str]]()
        for row in await self._list_rows():
            if row.key in self._builds:
                continue
            if row.sandbox_id is not None:
                await self._clean_up(row.id, row.sandbox_id)
            replaced = (row.agent, row.template) in seen and now - row.used_at > SUPERSEDED_AFTER
            if row.snapshot is not None:
                seen.add((row.agent, row.template))
            if row.snapshot is None or replaced or now - row.used_at > older_than:
                try:
                    await self._remove(row)
                except SandyardError as error:
                    log.warning("agent_snapshot_not_removed", snapshot=row.snapshot, reason=error.message)

    async def _remove(self, row: AgentSnapshot) -> None:
        """Remove the snapshot and its row, unless it was used or rebuilt since the row was read."""
        async with self._get_lock(row.key):
            async with self._database.reading() as session:
                known = await session.get(AgentSnapshot, row.id)
            if row.key in self._builds or known is None or known.used_at != row.used_at:
                return
            if known.snapshot is not None:
                await self._lifecycle.engine.delete_snapshot(known.snapshot)
            async with self._database.transaction() as tx:
                known = await tx.session.get(AgentSnapshot, row.id, with_for_update=True)
                if known is not None and known.used_at == row.used_at:
                    await tx.session.delete(known)

    async def _list_rows(self) -> list[AgentSnapshot]:
        """Return all rows, most recently used first."""
        async with self._database.reading() as session:
            return list(await session.scalars(select(AgentSnapshot).order_by(AgentSnapshot.used_at.desc())))
