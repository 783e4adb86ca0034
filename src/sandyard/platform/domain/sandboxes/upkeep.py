"""What is done for all sandboxes again and again: compare with the engine, pause the idle, clear away the stale.

State lives in the database, truth lives in the engine. Whatever the two do not agree on is settled here, in both directions, at
start and every half minute; while the engine cannot be asked nothing is concluded from its silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta

from sqlalchemy import select

from sandyard.kit.clock import Clock
from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox, Session
from sandyard.platform.domain.sandboxes.e2b import EngineSandbox, EngineState, SandboxNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW, Lifecycle
from sandyard.platform.domain.sandboxes.model import LIVE, Status, utc_now
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)

PAUSED_AT_ONCE = 16


class Upkeep:
    def __init__(self, database: Database, lifecycle: Lifecycle, settings: PlatformSettings, clock: Clock) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._settings = settings
        self._clock = clock
        self._strangers: set[str] = set()
        self._pausing = asyncio.Semaphore(PAUSED_AT_ONCE)
        self.reconciled = asyncio.Event()
        """Set when the engine has been compared with once."""

    def start(self) -> None:
        spawn, settings = self._lifecycle.tasks.spawn, self._settings
        spawn(self._every(settings.reconcile_every_s, self.reconcile))
        spawn(self._every(settings.health_every_s, self.check_health))
        spawn(self._every(max(0.5, min(5.0, settings.idle_seconds / 10)), self.pause_idle))
        spawn(self._every(settings.stale_every_s, self.cleanup_stale))

    async def _every(self, seconds: float, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await work()
            except SandyardError as error:
                log.warning("upkeep_failed", work=work.__name__, reason=error.message)
            except Exception as error:
                log.error("upkeep_crashed", work=work.__name__, exc=error)  # noqa: TRY400
            await self._clock.sleep(seconds)

    # the database against the engine -----------------------------------------------------------------------------------

    async def reconcile(self) -> None:
        lifecycle = self._lifecycle
        rows = {row.id: row for row in await lifecycle.rows.with_status(*LIVE)}
        there = {box.id: box for box in await lifecycle.engine.list({INSTANCE: lifecycle.instance})}
        for row in rows.values():
            lifecycle.activity.know(row.id, row.used_at)
            try:
                await self._settle(row, there.get(row.engine_id) if row.engine_id else None)
            except SandyardError as error:
                log.warning("sandbox_not_settled", sandbox=row.id, reason=error.message)
        for project_id in {row.project_id for row in rows.values() if row.project_id and row.status == Status.RUNNING}:
            await lifecycle.apply_network(project_id)
        await self._finish_doomed()
        known = {row.engine_id for row in rows.values()}
        strangers = {box.id for box in there.values() if box.id not in known}
        for engine_id in (
            strangers & self._strangers
        ):  # the second time: one of a moment ago may just be on its way to its row
            await self._settle_stranger(there[engine_id])
        self._strangers = strangers
        self.reconciled.set()

    async def _settle(self, row: Sandbox, box: EngineSandbox | None) -> None:
        lifecycle = self._lifecycle
        if row.doomed_at is not None:
            return  # see _finish_doomed
        if row.status == Status.PROVISIONING:
            lifecycle.provision(row.id)
        elif box is None:
            await self._settle_missing(row)
        elif box.state == EngineState.PAUSED and row.status == Status.RUNNING:
            await lifecycle.seen_paused(row.id)
        elif box.state == EngineState.RUNNING and row.status == Status.PAUSED and await self._runs_still(row):
            await lifecycle.wake(row)

    async def _settle_missing(self, row: Sandbox) -> None:
        """The list did not have it; lists are pages, and it may have been made since. Or a verb did not find it, which is what
        E2B says to `extend` of a paused one. Its own answer counts."""
        assert row.engine_id is not None
        try:
            await self._lifecycle.engine.info(row.engine_id)
        except SandboxNotFoundError:
            await self._lifecycle.lost(row.id)
        else:
            await self._lifecycle.seen_paused(row.id)

    async def _runs_still(self, row: Sandbox) -> bool:
        """The engine says so now too, and nobody has changed the row: the list may be older than a pause."""
        assert row.engine_id is not None
        box = await self._lifecycle.engine.info(row.engine_id)
        unchanged = (await self._lifecycle.rows.get(row.id)).version == row.version
        return unchanged and box.state is EngineState.RUNNING

    async def _finish_doomed(self) -> None:
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.doomed_at.is_not(None), Sandbox.status != Status.DESTROYED)
            doomed = list((await session.execute(query)).scalars())
        for row in doomed:
            await self._destroy(row)

    async def _destroy(self, row: Sandbox) -> bool:
        """One that cannot be ended now keeps nobody from ending the others."""
        try:
            await self._lifecycle.destroy(row)
        except SandyardError as error:
            log.warning("sandbox_not_destroyed", sandbox=row.id, reason=error.message)
            return False
        return True

    async def _settle_stranger(self, box: EngineSandbox) -> None:
        """Ours by its metadata, and no row has it: one whose row is still waiting for it is that row's, any other is
        ended."""
        lifecycle = self._lifecycle
        async with self._database.reading() as session:
            holder = (await session.execute(select(Sandbox).where(Sandbox.engine_id == box.id))).scalar_one_or_none()
            asked = await session.get(Sandbox, box.metadata.get(ROW, ""))
        if holder is not None and holder.status in LIVE:
            return
        if asked is not None and asked.status == Status.PROVISIONING:
            return  # its own provisioning finds it
        try:
            await lifecycle.engine.kill(box.id)
        except SandyardError as error:
            log.warning("sandbox_orphan_not_ended", engine_id=box.id, reason=error.message)
        else:
            log.warning("sandbox_orphan_ended", engine_id=box.id, sandbox=box.metadata.get(ROW))

    # health and idleness -----------------------------------------------------------------------------------------------

    async def check_health(self) -> None:
        """Ask how each running sandbox is, and keep those in use from the engine's own timeout. Wakes nothing."""
        lifecycle = self._lifecycle
        await lifecycle.rows.note_uses(lifecycle.activity.unwritten())
        for row in await lifecycle.rows.with_status(Status.RUNNING):
            if row.engine_id is not None and row.doomed_at is None:
                try:
                    await self._check(row, row.engine_id)
                except SandyardError as error:
                    log.warning("sandbox_not_checked", sandbox=row.id, reason=error.message)

    async def _check(self, row: Sandbox, engine_id: str) -> None:
        lifecycle = self._lifecycle
        try:
            if lifecycle.activity.idle_for(row.id) < row.idle_seconds:
                await lifecycle.engine.extend(engine_id, row.idle_seconds + self._settings.idle_margin_s)
            usage = await lifecycle.engine.usage(engine_id)
        except SandboxNotFoundError:
            await self._settle_missing(row)
        except ConflictError:
            await lifecycle.seen_paused(row.id)
        else:
            sample = None if usage is None else {**asdict(usage), "at": usage.at.isoformat()}
            await lifecycle.rows.note(row.id, seen_at=utc_now(), **({"usage": sample} if sample else {}))

    async def pause_idle(self) -> None:
        """Side by side: one that takes its time keeps nobody else from going to sleep."""
        lifecycle = self._lifecycle
        idle = []
        for row in await lifecycle.rows.with_status(Status.RUNNING):
            lifecycle.activity.know(row.id, row.used_at)
            if row.doomed_at is None and lifecycle.activity.idle_for(row.id) >= row.idle_seconds:
                idle.append(row)
        await asyncio.gather(*(self._pause_one(row) for row in idle))

    async def _pause_one(self, row: Sandbox) -> None:
        async with self._pausing:
            try:
                await self._lifecycle.pause(row, only_if_idle_s=row.idle_seconds)
            except SandyardError as error:
                log.warning("sandbox_not_paused", sandbox=row.id, reason=error.message)

    async def cleanup_stale(self) -> int:
        """Destroy what nobody has used for long: sandboxes without a session, or of an archived one, and failed ones. That of a
        session that may be taken up again is kept, paused. How many there were."""
        limit = utc_now() - timedelta(seconds=self._settings.stale_after_s)
        living = select(Session.id).where(Session.archived_at.is_(None))
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.status != Status.DESTROYED)
            query = query.where((Sandbox.used_at < limit) | (Sandbox.used_at.is_(None) & (Sandbox.created_at < limit)))
            query = query.where(
                Sandbox.session_id.is_(None) | Sandbox.session_id.not_in(living) | (Sandbox.status == Status.ERROR)
            )
            stale = list((await session.execute(query)).scalars())
        destroyed = 0
        for row in stale:
            if self._lifecycle.activity.idle_for(row.id) >= self._settings.stale_after_s or row.status == Status.ERROR:
                log.info("sandbox_stale", sandbox=row.id, used_at=row.used_at)
                destroyed += await self._destroy(row)
        return destroyed
