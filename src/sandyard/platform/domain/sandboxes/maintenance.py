"""Periodic work for all sandboxes: reconcile with the engine, pause idle ones and those whose owner lost access, delete stale ones.

The database holds the desired state, the engine the actual state. Differences are resolved here in both directions, at
start and every half minute. While the engine is unavailable, nothing is concluded from missing responses.

Each round starts the work of each sandbox in the background, in its owner's share, and does not wait for it. If the last
round's work of the same kind has not ended for a sandbox, a round skips that sandbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial

from sqlalchemy import select

from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.owner_tasks import OwnerSlots, OwnerTasks
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Sandbox, Session
from sandyard.platform.domain.projects.service import has_lost_access
from sandyard.platform.domain.sandboxes.e2b import EngineSandbox, EngineState, SandboxNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW, SLOTS, SLOTS_PER_OWNER, Lifecycle
from sandyard.platform.domain.sandboxes.model import LIVE, Status, make_usage_sample, utc_now
from sandyard.platform.domain.sandboxes.running_limit import get_sizes
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

ACCESS_EVERY_S = 5.0


class SandboxMaintenance:
    def __init__(
        self,
        database: Database,
        lifecycle: Lifecycle,
        settings: PlatformSettings,
        clock: Clock,
        *,
        stop_agent: Callable[[str], Awaitable[None]],
    ) -> None:
        """`stop_agent` is called with the id of a session. It cancels the session's turns and ends its agent."""
        self._database = database
        self._lifecycle = lifecycle
        self._settings = settings
        self._clock = clock
        self._stop_agent = stop_agent
        self._orphans: set[str] = set()
        self._cleanup_slots = OwnerSlots(SLOTS, SLOTS_PER_OWNER)
        # separate limits, so that slow work of one kind does not delay another
        self._reconciling, self._checking, self._pausing, self._stopping = (
            OwnerTasks(lifecycle.tasks, SLOTS, SLOTS_PER_OWNER) for _ in range(4)
        )
        self.reconciled = asyncio.Event()
        """Set after the first comparison with the engine. What follows from it may still be in progress: see `wait`."""

    def start(self) -> None:
        spawn, settings = self._lifecycle.tasks.spawn, self._settings
        spawn(self._repeat(settings.reconcile_every_s, self.reconcile))
        spawn(self._repeat(settings.health_every_s, self.check_health))
        spawn(self._repeat(max(0.5, min(5.0, settings.idle_seconds / 10)), self.pause_idle))
        spawn(self._repeat(ACCESS_EVERY_S, self.stop_without_access))
        spawn(self._repeat(settings.stale_every_s, self.cleanup_stale))

    async def _repeat(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await work()
            except SandyardError as error:
                log.warning("upkeep_failed", work=work.__name__, reason=error.message)
            except Exception as error:
                log.error("upkeep_crashed", work=work.__name__, exc=error)  # noqa: TRY400
            await self._clock.sleep(seconds)

    async def wait(self) -> None:
        """Wait until the work that rounds have started has ended."""
        for tasks in (self._reconciling, self._checking, self._pausing, self._stopping):
            await tasks.wait()

    # reconciliation ---------------------------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        """Compare all sandboxes with the engine's list, and start what follows from it."""
        lifecycle, start = self._lifecycle, self._reconciling.start
        rows = await lifecycle.repository.list_with_status(*LIVE)
        there = {box.id: box for box in await lifecycle.engine.list({INSTANCE: lifecycle.instance})}
        outdated = set[str]()
        for project_id in {row.project_id for row in rows if row.project_id and row.status == Status.RUNNING}:
            outdated |= {row.id for row in await lifecycle.list_with_outdated_network(project_id)}
        for row in rows:
            lifecycle.activity.load(row.id, row.used_at)
            if row.destroy_requested_at is None:
                box = there.get(row.engine_id) if row.engine_id else None
                start(row.id, row.owner_id, partial(self._reconcile_sandbox, row, box, row.id in outdated))
        await self._give_up_stranded(rows)
        await self._finish_requested_destroys()
        known = {row.engine_id for row in rows}
        orphans = {box.id for box in there.values() if box.id not in known}
        for engine_id in orphans & self._orphans:  # only the second time, because a new one may not be in its row yet
            box = there[engine_id]
            async with self._database.reading() as session:
                asked = await session.get(Sandbox, box.metadata.get(ROW, ""))
            start(engine_id, asked.owner_id if asked is not None else "", partial(self._reconcile_orphan, box))
        self._orphans = orphans
        self.reconciled.set()

    async def _reconcile_sandbox(self, row: Sandbox, box: EngineSandbox | None, is_network_outdated: bool) -> None:
        try:
            await self._reconcile_row(row, box)
        except SandyardError as error:
            log.warning("sandbox_not_settled", sandbox=row.id, reason=error.message)
        if is_network_outdated:
            await self._lifecycle.update_network(row.id)

    async def _reconcile_row(self, row: Sandbox, box: EngineSandbox | None) -> None:
        lifecycle = self._lifecycle
        if row.cpu_count is None and box is not None and (sizes := get_sizes(box)):
            await lifecycle.repository.set_fields(row.id, **sizes)  # of an earlier version, which did not record them
        if row.status == Status.PROVISIONING:
            lifecycle.provision(row.id)
        elif box is None:
            await self._reconcile_missing(row)
        elif box.state == EngineState.PAUSED and row.status == Status.RUNNING:
            await lifecycle.record_pause(row.id)
        elif box.state == EngineState.RUNNING and row.status == Status.PAUSED and await self._is_still_running(row):
            await lifecycle.resume(row, to_reconcile=True)  # `stop_without_access` pauses it again if necessary

    async def _reconcile_missing(self, row: Sandbox) -> None:
        """Handle a sandbox that was not in the list or that the engine did not find.

        Lists are paged, and it may have been created since; E2B also answers `extend` of a paused sandbox this way.
        Only a direct request decides.
        """
        assert row.engine_id is not None
        try:
            await self._lifecycle.engine.get_info(row.engine_id)
        except SandboxNotFoundError:
            await self._lifecycle.mark_lost(row.id)
        else:
            await self._lifecycle.record_pause(row.id)

    async def _give_up_stranded(self, rows: Sequence[Sandbox]) -> None:
        """Give up the sandboxes of tasks whose host is lost with all their files: the tasks continue in new ones from their saved
        work. Those of people are kept in case the host returns, also if they belong to a task."""
        if not (of_tasks := await self._list_of_attempts(rows)):
            return
        try:
            stranded = await self._lifecycle.engine.hosts.list_stranded()
        except SandyardError as error:  # the rest of this maintenance does not need it
            log.warning("hosts_not_listed", reason=error.message)
            return
        for row in of_tasks:
            if row.engine_id in stranded:
                await self._lifecycle.mark_lost(row.id, "Its host was lost, with all its files.")
                self._reconciling.start(row.id, row.owner_id, partial(self._kill_lost, row.engine_id))

    async def _list_of_attempts(self, rows: Sequence[Sandbox]) -> Sequence[Sandbox]:
        """Return the sandboxes in which the agents of tasks work."""
        of_tasks = [row for row in rows if row.task_id is not None and row.destroy_requested_at is None]
        if not of_tasks:
            return ()
        query = (
            select(Session.sandbox_id)
            .join(Attempt, Attempt.session_id == Session.id)
            .where(Session.sandbox_id.in_([row.id for row in of_tasks]))
        )
        async with self._database.reading() as session:
            used = set(await session.scalars(query))
        return [row for row in of_tasks if row.id in used]

    async def _kill_lost(self, engine_id: str) -> None:
        """End a sandbox that is not needed even if its host returns. If that fails, it is ended as an orphan later."""
        try:
            await self._lifecycle.engine.kill(engine_id)
        except SandyardError as error:
            log.warning("lost_sandbox_not_ended", engine_id=engine_id, reason=error.message)

    async def _is_still_running(self, row: Sandbox) -> bool:
        """Return whether the engine still reports it as running and the row is unchanged, because the list may predate
        a pause."""
        assert row.engine_id is not None
        box = await self._lifecycle.engine.get_info(row.engine_id)
        unchanged = (await self._lifecycle.repository.get(row.id)).version == row.version
        return unchanged and box.state is EngineState.RUNNING

    async def _finish_requested_destroys(self) -> None:
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.destroy_requested_at.is_not(None), Sandbox.status != Status.DESTROYED)
            requested = list((await session.execute(query)).scalars())
        for row in requested:
            self._reconciling.start(row.id, row.owner_id, partial(self._finish_destroy, row.id))

    async def _finish_destroy(self, sandbox_id: str) -> None:
        await self._destroy(await self._lifecycle.repository.get(sandbox_id))  # it may have ended while this waited

    async def _destroy(self, row: Sandbox) -> bool:
        """Delete a sandbox. Failures are only logged, so that the others are still deleted."""
        try:
            await self._lifecycle.destroy(row)
        except SandyardError as error:
            log.warning("sandbox_not_destroyed", sandbox=row.id, reason=error.message)
            return False
        return True

    async def _reconcile_orphan(self, box: EngineSandbox) -> None:
        """Handle a sandbox that is ours by its metadata but that no row has: keep it if its row still waits for it,
        otherwise end it."""
        lifecycle = self._lifecycle
        async with self._database.reading() as session:
            holder = (await session.execute(select(Sandbox).where(Sandbox.engine_id == box.id))).scalar_one_or_none()
            asked = await session.get(Sandbox, box.metadata.get(ROW, ""))
        if holder is not None and holder.status in LIVE:
            return
        if asked is not None and asked.status == Status.PROVISIONING:
            return  # its own provisioning will find it
        try:
            await lifecycle.engine.kill(box.id)
        except SandyardError as error:
            log.warning("sandbox_orphan_not_ended", engine_id=box.id, reason=error.message)
        else:
            log.warning("sandbox_orphan_ended", engine_id=box.id, sandbox=box.metadata.get(ROW))

    # health and idleness ----------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Start checking each running sandbox and extending the engine's timeout of those in use. Resumes nothing."""
        lifecycle = self._lifecycle
        await lifecycle.repository.record_uses(lifecycle.activity.take_unwritten())
        for row in await lifecycle.repository.list_with_status(Status.RUNNING):
            if row.engine_id is not None and row.destroy_requested_at is None:
                self._checking.start(row.id, row.owner_id, partial(self._check_one, row, row.engine_id))

    async def _check_one(self, row: Sandbox, engine_id: str) -> None:
        try:
            await self._check(row, engine_id)
        except SandyardError as error:
            log.warning("sandbox_not_checked", sandbox=row.id, reason=error.message)

    async def _check(self, row: Sandbox, engine_id: str) -> None:
        lifecycle = self._lifecycle
        try:
            if lifecycle.activity.idle_for(row.id) < row.idle_seconds:
                await lifecycle.engine.extend(engine_id, row.idle_seconds + self._settings.idle_margin_s)
            usage = await lifecycle.engine.get_usage(engine_id)
        except SandboxNotFoundError:
            await self._reconcile_missing(row)
        except ConflictError:
            await lifecycle.record_pause(row.id)
        else:
            sample = None if usage is None else make_usage_sample(usage)
            await lifecycle.repository.set_fields(row.id, seen_at=utc_now(), **({"usage": sample} if sample else {}))

    async def pause_idle(self) -> None:
        """Start pausing idle sandboxes."""
        lifecycle = self._lifecycle
        for row in await lifecycle.repository.list_with_status(Status.RUNNING):
            lifecycle.activity.load(row.id, row.used_at)
            if row.destroy_requested_at is None and lifecycle.activity.idle_for(row.id) >= row.idle_seconds:
                self._pausing.start(row.id, row.owner_id, partial(self._pause_one, row))

    async def _pause_one(self, row: Sandbox) -> None:
        try:
            await self._lifecycle.pause(row, only_if_idle_s=row.idle_seconds)
        except SandyardError as error:
            log.warning("sandbox_not_paused", sandbox=row.id, reason=error.message)

    async def stop_without_access(self) -> None:
        """Start stopping agents and pausing sandboxes whose owner was disabled or removed from the project."""
        lost = has_lost_access(Sandbox.owner_id, Sandbox.project_id)
        query = select(Sandbox).where(Sandbox.status == Status.RUNNING, Sandbox.internal.is_(False), lost)
        async with self._database.reading() as session:
            rows = list(await session.scalars(query))
        for row in rows:
            self._stopping.start(row.id, row.owner_id, partial(self._stop_one, row))

    async def _stop_one(self, row: Sandbox) -> None:
        try:
            if row.session_id is not None:
                await self._stop_agent(row.session_id)
            await self._lifecycle.pause(row)
        except SandyardError as error:
            log.warning("sandbox_not_paused", sandbox=row.id, reason=error.message)
        else:
            log.info("sandbox_without_access_paused", sandbox=row.id, owner=row.owner_id)

    async def cleanup_stale(self) -> int:
        """Delete sandboxes that were not used for long: without a session, of an archived session, or failed. Returns
        how many.

        Sandboxes of sessions that may be continued are kept, paused.
        """
        limit = utc_now() - timedelta(seconds=self._settings.stale_after_s)
        living = select(Session.id).where(Session.archived_at.is_(None))
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.status != Status.DESTROYED)
            query = query.where((Sandbox.used_at < limit) | (Sandbox.used_at.is_(None) & (Sandbox.created_at < limit)))
            query = query.where(
                Sandbox.session_id.is_(None) | Sandbox.session_id.not_in(living) | (Sandbox.status == Status.ERROR)
            )
            stale = list((await session.execute(query)).scalars())
        return sum(await asyncio.gather(*(self._destroy_stale(row) for row in stale)))

    async def _destroy_stale(self, row: Sandbox) -> bool:
        async with self._cleanup_slots.slot(row.owner_id):
            idle_s = self._lifecycle.activity.idle_for(row.id)
            if idle_s < self._settings.stale_after_s and row.status != Status.ERROR:
                return False
            log.info("sandbox_stale", sandbox=row.id, used_at=row.used_at)
            return await self._destroy(row)
