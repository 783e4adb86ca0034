"""Release a sandbox when the attempt that used it has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from sqlalchemy import select

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Attempt, Project, Sandbox, Session
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import LIVE, utc_now
from sandyard.platform.domain.sessions.snapshots import get_session_event_fields
from sandyard.platform.domain.tasks.model import AttemptStatus
from sandyard.platform.domain.tasks.moves import ACTIVE_ATTEMPTS

log = get_logger(__name__)

ACTIVITY_GRACE = timedelta(minutes=1)
"""Sandbox activity within this time after an attempt's end is attributed to the attempt."""


class Turns(Protocol):
    async def end_agent(self, session_id: str) -> None: ...


class SandboxRelease:
    def __init__(self, database: Database, lifecycle: Lifecycle, turns: Turns) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._turns = turns

    async def release(self, session_id: str, project_id: str, *, archive: bool) -> None:
        """Delete or pause the sandbox, per the project's settings. Does nothing if work in it has started again."""
        try:
            if await self._is_in_use(session_id):
                return
            await self._turns.end_agent(session_id)
            if await self._is_in_use(session_id):
                return
            async with self._database.transaction() as tx:
                session = await tx.session.get(Session, session_id)
                project = await tx.session.get(Project, project_id)
                if session is None or session.sandbox_id is None:
                    return
                if archive and session.archived_at is None:
                    session.archived_at = session.updated_at = utc_now()
                    tx.emit("session.archived", **get_session_event_fields(session), title=session.title)
            row = await self._lifecycle.repository.get(session.sandbox_id)
            if row.status not in LIVE:
                return
            if project is not None and ProjectSettings.from_project(project).tasks.finished == "pause":
                await self._lifecycle.pause(row)
            else:
                await self._lifecycle.destroy(row)
        except SandyardError as error:  # it is paused when idle, and removed later if unused
            log.warning("sandbox_not_left", session=session_id, reason=error.message)

    async def _is_in_use(self, session_id: str) -> bool:
        """Return whether an attempt has started again in this session."""
        query = select(Attempt.id).where(Attempt.session_id == session_id, Attempt.status.in_(ACTIVE_ATTEMPTS))
        async with self._database.reading() as session:
            return await session.scalar(query.limit(1)) is not None

    async def recover(self) -> None:
        """Release the sandboxes of attempts that ended under an earlier process and were not used since. Call it once after a start."""
        final_statuses = (AttemptStatus.CANCELLED, AttemptStatus.MERGED, AttemptStatus.ARCHIVED)
        query = select(Attempt, Sandbox).join(Session, Session.id == Attempt.session_id)
        query = query.join(Sandbox, Sandbox.id == Session.sandbox_id).where(
            Attempt.status.in_(final_statuses), Sandbox.status.in_(LIVE), Sandbox.destroy_requested_at.is_(None)
        )
        async with self._database.reading() as session:
            found = (await session.execute(query)).all()
        for row, sandbox in found:
            last = sandbox.used_at or sandbox.created_at
            if row.finished_at is not None and last <= row.finished_at + ACTIVITY_GRACE:
                archived = row.status == AttemptStatus.ARCHIVED
                await self.release(row.session_id, row.project_id, archive=archived)
