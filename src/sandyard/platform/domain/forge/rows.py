"""Read access to pull requests, and who may see which."""

from __future__ import annotations

from sqlalchemy import ColumnElement, or_, select, true

from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, PullRequest, Session
from sandyard.platform.domain.forge.model import PullState
from sandyard.platform.domain.paging import Listing, PageRequest, newest_first
from sandyard.platform.domain.projects import service as projects
from sandyard.platform.domain.users.model import Principal


def visible_to(caller: Principal) -> ColumnElement[bool]:
    """Return the condition for pull requests the user may see: those of their projects and sessions."""
    if caller.is_admin:
        return true()
    shared = select(Project.id).where(projects.visible_to(caller))
    own = select(Session.id).where(Session.owner_id == caller.user_id)
    return or_(PullRequest.project_id.in_(shared), PullRequest.session_id.in_(own))


class PullRows:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def get_for(self, caller: Principal, pull_id: str) -> PullRequest:
        found = await self._newest(caller, PullRequest.id == pull_id)
        if not found:
            raise NotFoundError(f"There is no pull request {pull_id[:60]!r}.")
        return found[0]

    async def numbered(self, caller: Principal, project_id: str | None, number: int) -> PullRequest:
        """Return a pull request by number. Raises ConflictError if several of the user's projects have it and none is named."""
        wanted = [PullRequest.number == number]
        if project_id is not None:
            wanted.append(PullRequest.project_id == project_id)
        found = await self._newest(caller, *wanted)
        if not found:
            raise NotFoundError(f"There is no pull request {number}.")
        if len(found) > 1:
            raise ConflictError(f"Several of your projects have a pull request {number}. Set projectId.")
        return found[0]

    async def newest_of(self, caller: Principal, condition: ColumnElement[bool], of: str) -> PullRequest:
        found = await self._newest(caller, condition)
        if not found:
            raise NotFoundError(f"{of} has no pull request.")
        return found[0]

    async def _newest(self, caller: Principal, *wanted: ColumnElement[bool]) -> list[PullRequest]:
        query = select(PullRequest).where(visible_to(caller), *wanted).order_by(PullRequest.id.desc()).limit(2)
        async with self._database.reading() as session:
            return list(await session.scalars(query))

    async def page(
        self, caller: Principal, page: PageRequest, project_id: str | None, state: PullState | None
    ) -> Listing[PullRequest]:
        query = select(PullRequest).where(visible_to(caller))
        if project_id is not None:
            query = query.where(PullRequest.project_id == project_id)
        if state is not None:
            query = query.where(PullRequest.state == state)
        async with self._database.reading() as session:
            return await newest_first(session, query, PullRequest.id, page)

    async def of_branch(self, project_id: str, branch: str) -> list[PullRequest]:
        """List pull requests of a branch, newest first."""
        query = select(PullRequest).where(PullRequest.project_id == project_id, PullRequest.head_branch == branch)
        async with self._database.reading() as session:
            return list(await session.scalars(query.order_by(PullRequest.id.desc())))

    async def goes_into(self, project_id: str, branch: str) -> bool:
        """Return whether an open pull request is to be merged into this branch."""
        query = select(PullRequest.id).where(
            PullRequest.project_id == project_id,
            PullRequest.base_branch == branch,
            PullRequest.state == PullState.OPEN,
        )
        async with self._database.reading() as session:
            return await session.scalar(query.limit(1)) is not None
