"""Sandboxes in the database: every change of a row, with its event, is a method here."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, or_, select, true, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import InstrumentedAttribute
from sqlalchemy.orm.exc import StaleDataError

from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, Sandbox, Session
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects import service as projects
from sandyard.platform.domain.sandboxes.model import OwnerWithoutAccessError, Status, get_sandbox_event_fields, utc_now
from sandyard.platform.domain.users.model import Principal

_TRIES = 5


def is_visible_to(principal: Principal, *, internal: bool = False) -> ColumnElement[bool]:
    """Return the condition for sandboxes that this person may see and enter.

    With `internal`, include sandboxes of their projects that only the platform enters, to read what happened there.
    """
    if principal.is_admin:
        return true()
    shared = _is_in_visible_project(Sandbox.project_id, principal)
    mine = and_(or_(Sandbox.owner_id == principal.user_id, shared), Sandbox.internal.is_(False))
    return or_(mine, shared) if internal else mine


def is_session_visible_to(principal: Principal) -> ColumnElement[bool]:
    """Return the same condition for sessions."""
    if principal.is_admin:
        return true()
    return or_(Session.owner_id == principal.user_id, _is_in_visible_project(Session.project_id, principal))


def _is_in_visible_project(project_id: InstrumentedAttribute[str | None], principal: Principal) -> ColumnElement[bool]:
    """Return the condition that a project is named and visible. Never NULL, so that it can be negated."""
    return and_(project_id.is_not(None), project_id.in_(select(Project.id).where(projects.is_visible_to(principal))))


async def require_project_access(database_session: AsyncSession, principal: Principal, row: Session) -> None:
    """Raise OwnerWithoutAccessError if the caller has left the session's project, and so may only read, stop and delete the session."""
    if row.project_id is None:
        return
    seen = select(Project.id).where(Project.id == row.project_id, projects.is_visible_to(principal))
    if await database_session.scalar(seen) is None:
        raise OwnerWithoutAccessError(
            "You no longer have access to the project of this session. Ask the project's owner to add you again."
        )


async def require_owner_access(database_session: AsyncSession, row: Session) -> None:
    """Raise OwnerWithoutAccessError if the session's owner has lost access to its project.

    Nobody can use the sandbox of such a session, and its owner may still read the session: nothing new may be written to it.
    """
    if row.project_id is not None and not await projects.owner_has_access(database_session, row):
        raise OwnerWithoutAccessError


class SandboxRepository:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, sandbox_id: str) -> Sandbox:
        async with self._database.reading() as session:
            row = await session.get(Sandbox, sandbox_id)
        if row is None:
            raise NotFoundError(f"There is no sandbox {sandbox_id[:60]!r}.")
        return row

    async def get_for(self, principal: Principal, sandbox_id: str, *, internal: bool = False) -> Sandbox:
        """Return the sandbox. Raises NotFoundError also if this person may not see it. `internal`: only to read, not to
        enter it."""
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.id == sandbox_id, is_visible_to(principal, internal=internal))
            row = (await session.execute(query)).scalar_one_or_none()
        if row is None:
            raise NotFoundError(f"There is no sandbox {sandbox_id[:60]!r}.")
        return row

    async def list_with_status(self, *statuses: Status) -> list[Sandbox]:
        async with self._database.reading() as session:
            query = select(Sandbox).where(Sandbox.status.in_(statuses)).order_by(Sandbox.id)
            return list((await session.execute(query)).scalars())

    async def page(
        self,
        principal: Principal,
        page: PageRequest,
        *,
        everybody: bool = False,
        status: Status | None = None,
        session_id: str | None = None,
    ) -> Listing[Sandbox]:
        """List sandboxes, newest first. Deleted sandboxes are listed only on request."""
        query = select(Sandbox).where(is_visible_to(principal))
        if not everybody:
            query = query.where(Sandbox.owner_id == principal.user_id)
        query = query.where(Sandbox.status == status if status is not None else Sandbox.status != Status.DESTROYED)
        if session_id is not None:
            query = query.where(Sandbox.session_id == session_id)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, Sandbox.id, page)

    async def change(
        self,
        sandbox_id: str,
        event: str | None,
        /,
        *,
        when: Iterable[Status],
        version: int | None = None,
        **changes: Any,
    ) -> Sandbox:
        """Change a row and emit an event.

        Raises ConflictError if the row no longer has one of these statuses and, if given, this version.
        """
        allowed = set(when)
        for last in [False] * (_TRIES - 1) + [True]:
            try:
                async with self._database.transaction() as tx:
                    row = await tx.session.get(Sandbox, sandbox_id)
                    if row is None:
                        raise NotFoundError(f"There is no sandbox {sandbox_id[:60]!r}.")
                    if row.status not in allowed or version not in (None, row.version):
                        raise ConflictError(f"Sandbox {sandbox_id} is {row.status}.")
                    for name, value in changes.items():
                        setattr(row, name, value)
                    if event is not None:
                        tx.emit(event, **get_sandbox_event_fields(row), status=row.status, error=row.error)
            except StaleDataError:  # another platform process was faster
                if last:
                    raise ConflictError(
                        f"Sandbox {sandbox_id} is being changed by another request. Try again."
                    ) from None
            else:
                return row
        raise AssertionError

    async def set_fields(self, sandbox_id: str, **fields: Any) -> None:
        """Set fields of the row without an event or a new version."""
        async with self._database.transaction() as tx:
            await tx.session.execute(update(Sandbox).where(Sandbox.id == sandbox_id).values(**fields))

    async def record_uses(self, uses: dict[str, datetime]) -> None:
        """Store when sandboxes were last used, by their ids."""
        if not uses:
            return
        async with self._database.transaction() as tx:
            for sandbox_id, moment in uses.items():
                await tx.session.execute(update(Sandbox).where(Sandbox.id == sandbox_id).values(used_at=moment))


def build_sandbox_row(owner_id: str, **fields: Any) -> Sandbox:
    sandbox_id = make_ordered_id("sbx_")
    return Sandbox(
        id=sandbox_id,
        owner_id=owner_id,
        idempotency_key=sandbox_id.replace("_", "-"),
        status=Status.PROVISIONING,
        created_at=utc_now(),
        command_count=0,
        pause_count=0,
        **fields,
    )
