"""Snapshots of a session's sandbox. Only the newest is kept, to create a new sandbox from."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Sandbox, Session
from sandyard.platform.domain.sandboxes.e2b import TemplateNotFoundError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import utc_now

log = get_logger(__name__)


class Snapshots:
    """The newest snapshot of each session. In the database it is called checkpoint."""

    def __init__(self, database: Database, lifecycle: Lifecycle) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def forget_unusable(self, sandbox: Sandbox) -> None:
        """Forget the session's snapshot if the engine no longer has it. The next try starts with the session's
        template. If the engine refuses it for another reason, such as its isolation level, an operator can change that.
        """
        if (
            sandbox.session_id is None
            or sandbox.engine_id is not None
            or sandbox.error_code != TemplateNotFoundError.code
        ):
            return
        async with self._database.transaction() as tx:
            row = await tx.session.get(Session, sandbox.session_id)
            if row is not None and row.checkpoint == sandbox.template:
                row.checkpoint = row.checkpoint_at = None
                log.warning("checkpoint_lost", session=row.id, snapshot=sandbox.template, reason=sandbox.error)

    async def save(self, session_id: str, engine_id: str) -> None:
        """Take a snapshot of the sandbox and delete the session's previous one."""
        lock = self._locks.get(session_id)
        if lock is None:
            lock = self._locks[session_id] = asyncio.Lock()
        async with lock:  # without it, one save could delete what another has just saved
            await self._save_snapshot(session_id, engine_id)

    async def _save_snapshot(self, session_id: str, engine_id: str) -> None:
        snapshot = await self._lifecycle.engine.create_snapshot(engine_id)
        old: str | None = None
        async with self._database.transaction() as tx:
            row = await tx.session.get(Session, session_id, with_for_update=True)
            if row is None:
                old = snapshot
            else:
                old, row.checkpoint, row.checkpoint_at = row.checkpoint, snapshot, utc_now()
                tx.emit("session.checkpointed", **get_session_event_fields(row))
        try:
            if old is not None:
                await self._lifecycle.engine.delete_snapshot(old)
            await self.delete_unrecorded(session_id, keep=snapshot)
        except SandyardError as error:  # the new one is saved, and the next checkpoint cleans up again
            log.warning("checkpoint_not_removed", session=session_id, reason=error.message)

    async def delete_unrecorded(self, session_id: str, keep: str | None) -> None:
        """Delete snapshots of the session's sandboxes that a crash left unrecorded."""
        async with self._database.reading() as session:
            query = select(Sandbox.engine_id).where(Sandbox.session_id == session_id, Sandbox.engine_id.is_not(None))
            engine_ids = list((await session.execute(query)).scalars())
        for engine_id in engine_ids:
            for snapshot in await self._lifecycle.engine.list_snapshots(engine_id or ""):
                if snapshot != keep:
                    log.info("checkpoint_swept", session=session_id, snapshot=snapshot)
                    await self._lifecycle.engine.delete_snapshot(snapshot)


def get_session_event_fields(row: Session) -> dict[str, str | None]:
    """Return the ids that every event about this session contains."""
    return {
        "owner_id": row.owner_id,
        "project_id": row.project_id,
        "task_id": row.task_id,
        "session_id": row.id,
        "sandbox_id": row.sandbox_id,
    }
