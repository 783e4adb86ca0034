"""Whose usage a user may see: that of their projects and sessions."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.errors import NotFoundError
from sandyard.platform.db.models import ModelCall, Project, Session, Task
from sandyard.platform.domain.projects.service import visible_to
from sandyard.platform.domain.sandboxes.repository import sessions_visible_to
from sandyard.platform.domain.users.model import Principal


def calls_visible_to(caller: Principal) -> list[ColumnElement[bool]]:
    if caller.is_admin:
        return []
    projects = select(Project.id).where(visible_to(caller))
    sessions = select(Session.id).where(sessions_visible_to(caller))
    return [or_(ModelCall.project_id.in_(projects), ModelCall.session_id.in_(sessions))]


async def require_visible(
    reading: AsyncSession,
    caller: Principal,
    *,
    session_id: str | None,
    task_id: str | None,
    project_id: str | None,
) -> None:
    """Raise NotFoundError for what does not exist or the caller may not see."""
    projects = select(Project.id).where(visible_to(caller))
    for what, given, query in (
        ("session", session_id, select(Session.id).where(Session.id == session_id, sessions_visible_to(caller))),
        ("task", task_id, select(Task.id).where(Task.id == task_id, Task.project_id.in_(projects))),
        ("project", project_id, projects.where(Project.id == project_id)),
    ):
        if given is not None and await reading.scalar(query) is None:
            raise NotFoundError(f"There is no {what} {given[:60]!r}.")
