"""Clean up: sandboxes used for preparations, unused snapshots, and leftovers of crashes."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from itertools import groupby

from sqlalchemy import and_, func, not_, select, update

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Preparation, PreparationStatus, Sandbox
from sandyard.platform.domain.preparations.model import get_preparation_event_fields
from sandyard.platform.domain.sandboxes.e2b import TemplateNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import LIVE, utc_now

log = get_logger(__name__)
BUILDER_AGENT_ID = "sandyard/preparing"
"""The agent id of sandboxes used for preparations."""
KEPT_PER_BRANCH = 3
"""How many preparations are kept per project, base branch and agent, in addition to those used within the last hour."""
SUPERSEDED_AFTER = timedelta(hours=1)
START_GRACE = timedelta(minutes=5)
"""How long a new preparation may be unknown to this process: its row is written first."""


class PreparationCleanup:
    """Removes what preparations leave behind. One whose row still names a sandbox has to be cleaned up, unless it is in progress."""

    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle

    async def clean_up(self, preparation_id: str, sandbox_id: str) -> None:
        """Remove the sandbox of a preparation that has ended, and its snapshots except that of the preparation. Idempotent."""
        async with self._database.reading() as session:
            row = await session.get(Preparation, preparation_id)
        await end_sandbox(self._lifecycle, sandbox_id, keep=row.snapshot if row is not None else None)
        async with self._database.transaction() as tx:
            statement = update(Preparation).where(
                Preparation.id == preparation_id, Preparation.sandbox_id == sandbox_id
            )
            await tx.session.execute(statement.values(sandbox_id=None))

    async def remove(self, row: Preparation) -> None:
        """Remove a preparation. The snapshot goes before the row: a row without its snapshot is prepared again."""
        if row.snapshot is not None:
            await self._lifecycle.engine.delete_snapshot(row.snapshot)
        if row.sandbox_id is not None:
            await end_sandbox(self._lifecycle, row.sandbox_id, keep=None)
        async with self._database.transaction() as tx:
            current = await tx.session.get(Preparation, row.id, with_for_update=True)
            if current is None or current.used_at != row.used_at:
                return  # it was used meanwhile, and is prepared again
            await tx.session.delete(current)
            tx.emit("preparation.deleted", **get_preparation_event_fields(row))
        log.info("preparation_removed", preparation=row.id)

    async def fail_interrupted(self) -> list[tuple[str, str]]:
        """Mark preparations in progress as failed, and return those that need cleaning up, with their sandboxes."""
        now = utc_now()
        async with self._database.transaction() as tx:
            in_progress = select(Preparation).where(Preparation.status == PreparationStatus.PREPARING)
            for row in await tx.session.scalars(in_progress):
                row.status, row.finished_at, row.error_code = PreparationStatus.FAILED, now, "interrupted"
                row.error = "The platform stopped during the preparation. It is prepared again on the next request."
                tx.emit("preparation.failed", **get_preparation_event_fields(row), error=row.error, code=row.error_code)
        async with self._database.reading() as session:
            query = select(Preparation.id, Preparation.sandbox_id).where(Preparation.sandbox_id.is_not(None))
            return [
                (row_id, sandbox) for row_id, sandbox in (await session.execute(query)).all() if sandbox is not None
            ]

    async def fail_lost(self, sandbox: Sandbox) -> None:
        """Lifecycle hook: mark a preparation as failed if no sandbox can be created from its snapshot."""
        if sandbox.engine_id is not None or sandbox.error_code != TemplateNotFoundError.code:
            return
        async with self._database.transaction() as tx:
            query = select(Preparation).where(
                Preparation.snapshot == sandbox.template, Preparation.status == PreparationStatus.READY
            )
            for row in await tx.session.scalars(query):
                row.status, row.snapshot, row.error_code = PreparationStatus.FAILED, None, "snapshot_lost"
                row.error = "The engine no longer has the snapshot. It is prepared again on the next request."
                tx.emit("preparation.failed", **get_preparation_event_fields(row), error=row.error, code=row.error_code)
                log.warning("preparation_lost", preparation=row.id, snapshot=sandbox.template, reason=sandbox.error)

    async def remove_unused(self, older_than: timedelta, busy: Collection[str]) -> None:
        """Remove the preparations that `list_unused` returns."""
        for row in await self.list_unused(older_than, busy):
            await self._try_remove(row)

    async def list_unused(self, older_than: timedelta, busy: Collection[str]) -> list[Preparation]:
        """Return preparations that were not used for longer than `older_than`, and those that newer ones have replaced.

        One is replaced if `KEPT_PER_BRANCH` others were used more recently, and it was not used for `SUPERSEDED_AFTER`. It is kept while
        a sandbox created from it is live, because provisioning that sandbox again needs the snapshot. `busy`: those in progress.
        """
        used, now = func.coalesce(Preparation.used_at, Preparation.created_at), utc_now()
        order = (Preparation.project_id, Preparation.base_branch, Preparation.agent, used.desc())
        async with self._database.reading() as session:
            rows = [row for row in await session.scalars(select(Preparation).order_by(*order)) if row.id not in busy]
            live = set(await session.scalars(select(Sandbox.template).where(Sandbox.status.in_(LIVE)).distinct()))
        unused_rows = []
        for _, same in groupby(rows, key=lambda row: (row.project_id, row.base_branch, row.agent)):
            for rank, row in enumerate(same):
                unused = now - (row.used_at or row.created_at)
                replaced = rank >= KEPT_PER_BRANCH and unused > SUPERSEDED_AFTER and row.snapshot not in live
                if unused > older_than or replaced:
                    unused_rows.append(row)
        return unused_rows

    async def _try_remove(self, row: Preparation) -> None:
        async with self._database.reading() as session:
            current = await session.get(Preparation, row.id)
        if current is None or current.used_at != row.used_at:
            return  # it was used meanwhile
        try:
            await self.remove(current)
        except SandyardError as error:
            log.warning("preparation_not_removed", preparation=row.id, reason=error.message)

    async def remove_leftovers(self, busy: Collection[str], building: Collection[str]) -> None:
        """Remove sandboxes of preparations that could not be cleaned up earlier, and of deleted projects.

        `busy` and `building` are the preparations and sandboxes in use. `busy` is read again for each, because it may change meanwhile.
        """
        is_starting = and_(
            Preparation.status == PreparationStatus.PREPARING, Preparation.used_at > utc_now() - START_GRACE
        )
        async with self._database.reading() as session:
            query = select(Preparation.id, Preparation.sandbox_id).where(
                Preparation.sandbox_id.is_not(None), not_(is_starting)
            )
            leftovers = [
                (row_id, sandbox_id) for row_id, sandbox_id in (await session.execute(query)).all() if sandbox_id
            ]
            orphans = select(Sandbox.id).where(Sandbox.agent_id == BUILDER_AGENT_ID, Sandbox.project_id.is_(None))
            orphan_ids = [row_id for row_id in await session.scalars(orphans) if row_id not in building]
        for preparation_id, sandbox_id in leftovers:
            if preparation_id not in busy:
                try:
                    await self.clean_up(preparation_id, sandbox_id)
                except SandyardError as error:
                    log.warning(
                        "preparation_not_cleared", preparation=preparation_id, sandbox=sandbox_id, reason=error.message
                    )
        for sandbox_id in orphan_ids:
            try:
                await end_sandbox(self._lifecycle, sandbox_id, keep=None)
                await self._lifecycle.repository.set_fields(sandbox_id, agent_id=None)
            except SandyardError as error:
                log.warning("preparation_sandbox_not_removed", sandbox=sandbox_id, reason=error.message)


async def end_sandbox(lifecycle: Lifecycle, sandbox_id: str, keep: str | None) -> None:
    """Delete a sandbox used for building, and all its snapshots except `keep`. Idempotent."""
    try:
        await lifecycle.destroy(await lifecycle.repository.get(sandbox_id), keep_work=False)
        sandbox = await lifecycle.repository.get(sandbox_id)
    except NotFoundError:
        return
    if sandbox.engine_id is not None:
        for snapshot in await lifecycle.engine.list_snapshots(sandbox.engine_id):
            if snapshot != keep:
                await lifecycle.engine.delete_snapshot(snapshot)
