"""Find the project whose settings apply to a sandbox or session: its own, or the deleted one that it was in."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.models import DeletedProject, Project, Sandbox, Session


async def find_project(database_session: AsyncSession, owned: Session | Sandbox) -> Project | DeletedProject | None:
    """Return the project whose settings apply. None if there is none, or if a deleted one restricted nothing."""
    if owned.project_id is not None and (project := await database_session.get(Project, owned.project_id)) is not None:
        return project
    # a row that was read before the project was deleted still names it
    deleted_id = owned.deleted_project_id or owned.project_id
    return await database_session.get(DeletedProject, deleted_id) if deleted_id is not None else None
