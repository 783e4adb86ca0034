"""Projects: created by anyone, visible to their owner and members, changed by their owner. Administrators may do everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    SQLColumnExpression,
    String,
    and_,
    delete,
    exists,
    literal,
    not_,
    or_,
    select,
    true,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import ForbiddenError, InvalidInputError, NotFoundError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.text import make_storable
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import (
    Attempt,
    Credential,
    DeletedProject,
    Project,
    ProjectMember,
    Sandbox,
    Session,
    User,
)
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects import remotes
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.patterns import check_patterns, run_in_thread
from sandyard.platform.domain.repositories import ref_names
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.domain.users.model import Principal

UNCHANGED: Any = object()
"""Default of parameters of `update` for which None is a value."""


class Projects:
    """Operations on projects. Raises NotFoundError if the caller may not see the project, ForbiddenError if only its owner may do this."""

    def __init__(self, database: Database, clock: Clock, destinations: Destinations | None = None) -> None:
        """`destinations`: the hosts that projects of users who are not administrators may use. None means any, and local paths too."""
        self._database = database
        self._clock = clock
        self._destinations = destinations
        self.on_change: list[Callable[[str], object]] = []
        """Callbacks, called with the id of a project whose settings changed."""

    async def create(
        self,
        caller: Principal,
        name: str,
        *,
        repository: str | None = None,
        base_branch: str | None = None,
        settings: ProjectSettings | None = None,
        trusted: bool = False,
    ) -> Project:
        """Create a project. Without `base_branch`, the remote's default branch is used.

        Raises InvalidPatternError, RepositoryInvalidError, and ForbiddenError for a path on this machine, which only an administrator may
        set, unless it is `trusted` because the platform created it.
        """
        project = await self.draft(
            caller, name, repository=repository, base_branch=base_branch, settings=settings, trusted=trusted
        )
        return await self.store(project)

    async def draft(
        self,
        caller: Principal,
        name: str,
        *,
        repository: str | None = None,
        base_branch: str | None = None,
        settings: ProjectSettings | None = None,
        trusted: bool = False,
    ) -> Project:
        """Return a project that is not stored yet. Raises like `create`."""
        now, settings = get_time(self._clock), settings or ProjectSettings()
        await _check_patterns(settings)
        project = Project(
            id=make_ordered_id("prj_"),
            owner_id=caller.user_id,
            name=name,
            repository=None
            if repository is None
            else remotes.normalize_repository(caller, repository, trusted=trusted),
            base_branch=None if base_branch is None else ref_names.check_name(base_branch),
            template=settings.template,
            settings=settings.to_column(),
            created_at=now,
            updated_at=now,
        )
        async with self._database.reading() as session:
            await self._check_destinations(session, project)
        return project

    async def store(self, project: Project) -> Project:
        """Store a draft."""
        async with self._database.transaction() as tx:
            await self._check_destinations(tx.session, project)
            tx.add(project)
            tx.emit("project.created", owner_id=project.owner_id, project_id=project.id, name=project.name)
        return project

    async def record_connection_error(self, project_id: str, error: str | None) -> None:
        await record_connection_error(self._database, project_id, error)

    async def list(self, caller: Principal, page: PageRequest, *, archived: bool = False) -> Listing[Project]:
        query = select(Project).where(is_visible_to(caller))
        query = query.where(Project.archived_at.is_not(None) if archived else Project.archived_at.is_(None))
        async with self._database.reading() as session:
            return await list_newest_first(session, query, Project.id, page)

    async def get(self, caller: Principal, project_id: str) -> Project:
        async with self._database.reading() as session:
            return await _load(session, caller, project_id)

    async def get_owner_id(self, project_id: str) -> str:
        """Return the id of the project's owner, or `project_id` itself if the project is deleted or not stored yet."""
        async with self._database.reading() as session:
            return await session.scalar(select(Project.owner_id).where(Project.id == project_id)) or project_id

    async def require_may_delete(self, caller: Principal, owned: Session | Sandbox, noun: str) -> None:
        """Raise ForbiddenError unless the caller owns the session or sandbox or its project, or is an administrator."""
        if caller.is_admin or owned.owner_id == caller.user_id:
            return
        if owned.project_id is None or await self.get_owner_id(owned.project_id) != caller.user_id:
            raise ForbiddenError(f"Only the {noun}'s owner, the project's owner or an administrator may delete it.")

    async def get_remote(self, project: Project) -> Remote:
        """Return the remote for a connection. Raises RepositoryInvalidError if the project has none."""
        async with self._database.reading() as session:
            return await remotes.get_remote(session, project)

    async def is_trusted(self, project: Project) -> bool:
        """Return whether the project may use private networks. See `remotes.is_trusted`."""
        async with self._database.reading() as session:
            return await remotes.is_trusted(session, project)

    async def _check_destinations(self, session: AsyncSession, project: Project) -> None:
        """Raise PrivateAddressError if the project uses private addresses that it may not use."""
        if self._destinations is not None and not await remotes.is_trusted(session, project):
            remotes.check_not_private(self._destinations, project.repository, ProjectSettings.from_project(project))

    async def get_changeable(self, caller: Principal, project_id: str) -> Project:
        """Return the project. Raises ForbiddenError if the caller may see but not change it."""
        project = await self.get(caller, project_id)
        require_owner(caller, project)
        return project

    async def update(
        self,
        caller: Principal,
        project_id: str,
        *,
        name: str | None = None,
        repository: str | None = UNCHANGED,
        base_branch: str | None = UNCHANGED,
        settings: ProjectSettings | None = None,
        archived: bool | None = None,
    ) -> Project:
        """Change the given fields. `settings` replaces all settings. The old repository's data is kept until the next fetch.

        Raises like `create`, and ConflictError if the project's credentials would go to another server.
        """
        if settings is not None:
            await self.get_changeable(caller, project_id)
            await _check_patterns(settings)
        async with self._database.transaction() as tx:
            project = await _load(tx.session, caller, project_id)
            await self._apply_changes(tx.session, caller, project, name, repository, base_branch, settings)
            if archived is not None and archived != (project.archived_at is not None):
                project.archived_at = get_time(self._clock) if archived else None
            project.updated_at = get_time(self._clock)
            tx.emit("project.updated", owner_id=project.owner_id, project_id=project.id, name=project.name)
        for callback in self.on_change:
            callback(project.id)
        return project

    async def draft_update(
        self,
        caller: Principal,
        project_id: str,
        *,
        repository: str | None = UNCHANGED,
        base_branch: str | None = UNCHANGED,
        settings: ProjectSettings | None = None,
    ) -> Project:
        """Return the project as `update` would store it, to test its connection. Raises like `update`."""
        async with self._database.reading() as session:
            project = await _load(session, caller, project_id)
            session.expunge(project)
            await self._apply_changes(session, caller, project, None, repository, base_branch, settings)
        return project

    async def _apply_changes(  # noqa: PLR0917 - the parameters of `update`
        self,
        session: AsyncSession,
        caller: Principal,
        project: Project,
        name: str | None,
        repository: str | None,
        base_branch: str | None,
        settings: ProjectSettings | None,
    ) -> None:
        require_owner(caller, project)
        before = remotes.list_servers(project.repository, ProjectSettings.from_project(project))
        if name is not None:
            project.name = name
        if repository is not UNCHANGED and repository != project.repository:
            project.repository = None if repository is None else remotes.normalize_repository(caller, repository)
            project.connection_error = None
            if self._destinations is not None:
                await remotes.check_local_path(session, project)
        if base_branch is not UNCHANGED:
            project.base_branch = None if base_branch is None else ref_names.check_name(base_branch)
        if settings is not None:
            project.settings, project.template = settings.to_column(), settings.template
        if repository is not UNCHANGED or settings is not None:
            await self._check_destinations(session, project)
        if await _has_credentials(session, project.id):
            remotes.check_server_change(
                before, remotes.list_servers(project.repository, ProjectSettings.from_project(project))
            )

    async def delete(self, caller: Principal, project_id: str) -> None:
        """Delete the project with its tasks and secrets.

        Its sessions and sandboxes are kept by their owners. Those of users who had lost access go to the project's owner. The settings
        that restrict sandboxes still apply to them and to their copies.
        """
        async with self._database.transaction() as tx:
            project = await _load(tx.session, caller, project_id)
            require_owner(caller, project)
            await self._hand_over(tx.session, project)
            if ProjectSettings.from_project(project).restricts_sandboxes:
                await self._keep_settings(tx, project)
            await tx.session.execute(delete(Project).where(Project.id == project.id))
            tx.emit("project.deleted", owner_id=project.owner_id, project_id=project.id, name=project.name)

    async def _hand_over(self, session: AsyncSession, project: Project) -> None:
        """Give sessions and sandboxes of users who have lost access to the project's owner: without the project, nothing would show that
        they lost it."""
        for table in (Session, Sandbox):
            lost = has_lost_access(table.owner_id, table.project_id)
            statement = update(table).where(table.project_id == project.id, lost).values(owner_id=project.owner_id)
            await session.execute(statement, execution_options={"synchronize_session": False})

    async def _keep_settings(self, tx: Transaction, project: Project) -> None:
        tx.add(
            DeletedProject(
                id=project.id,
                owner_id=project.owner_id,
                repository=project.repository,
                settings=project.settings,
                deleted_at=get_time(self._clock),
            )
        )
        for table in (Session, Sandbox):
            statement = update(table).where(table.project_id == project.id).values(deleted_project_id=project.id)
            await tx.session.execute(statement, execution_options={"synchronize_session": False})

    async def list_members(self, caller: Principal, project_id: str) -> Sequence[User]:
        """List members by name, without the owner."""
        async with self._database.reading() as session:
            await _load(session, caller, project_id)
            query = select(User).join(ProjectMember).where(ProjectMember.project_id == project_id).order_by(User.name)
            return list(await session.scalars(query))

    async def add_member(self, caller: Principal, project_id: str, user_id: str) -> None:
        """Add a member. Idempotent. Raises NotFoundError for unknown and disabled users alike."""
        try:
            async with self._database.transaction() as tx:
                project = await _load(tx.session, caller, project_id)
                require_owner(caller, project)
                user = await tx.session.get(User, user_id)
                if user is None or user.disabled_at is not None:
                    raise NotFoundError(f"There is no user {user_id[:60]}.")
                if user_id == project.owner_id:
                    raise InvalidInputError("The project's owner cannot be added as a member.")
                if await tx.session.get(ProjectMember, (project_id, user_id)) is None:
                    tx.add(ProjectMember(project_id=project_id, user_id=user_id, added_at=get_time(self._clock)))
                    tx.emit("project.member_added", owner_id=project.owner_id, project_id=project_id, userId=user_id)
        except IntegrityError:
            return  # a concurrent request added the same user

    async def remove_member(self, caller: Principal, project_id: str, user_id: str) -> None:
        """Remove a member. Members may remove themselves. Idempotent."""
        async with self._database.transaction() as tx:
            project = await _load(tx.session, caller, project_id)
            if user_id != caller.user_id:
                require_owner(caller, project)
            member = await tx.session.get(ProjectMember, (project_id, user_id))
            if member is not None:
                await tx.session.delete(member)
                tx.emit("project.member_removed", owner_id=project.owner_id, project_id=project_id, userId=user_id)


async def record_connection_error(database: Database, project_id: str, error: str | None) -> None:
    """Store why the project's repository could not be used, or None if it could. Idempotent."""
    async with database.transaction() as tx:
        project = await tx.session.get(Project, project_id, with_for_update={"key_share": True})
        error = None if error is None else make_storable(error)[:2000]
        if project is None or project.connection_error == error:
            return
        project.connection_error = error
        tx.emit("project.updated", owner_id=project.owner_id, project_id=project.id, name=project.name)


def is_visible_to(caller: Principal) -> ColumnElement[bool]:
    """Return the condition for projects this user may see."""
    if caller.is_admin:
        return true()
    shared = select(ProjectMember.project_id).where(ProjectMember.user_id == caller.user_id)
    return or_(Project.owner_id == caller.user_id, Project.id.in_(shared))


async def owner_has_access(database_session: AsyncSession, owned: Session | Sandbox | Attempt) -> bool:
    """Return whether the owner is enabled and may still use the project of their session, sandbox or attempt, if it has one."""
    lost = has_lost_access(literal(owned.owner_id), literal(owned.project_id, String()))
    return not await database_session.scalar(select(lost))


def has_lost_access(
    owner_id: SQLColumnExpression[str], project_id: SQLColumnExpression[str | None]
) -> ColumnElement[bool]:
    """Return the condition for things whose owner is disabled, or no longer belongs to the project they are in."""
    disabled = exists().where(User.id == owner_id, User.disabled_at.is_not(None))
    admin = exists().where(User.id == owner_id, User.role == "admin")
    owner = exists().where(Project.id == project_id, Project.owner_id == owner_id)
    member = exists().where(ProjectMember.project_id == project_id, ProjectMember.user_id == owner_id)
    return or_(disabled, and_(project_id.is_not(None), not_(or_(admin, owner, member))))


async def _load(session: AsyncSession, caller: Principal, project_id: str) -> Project:
    found = await session.scalar(select(Project).where(Project.id == project_id, is_visible_to(caller)))
    if found is None:
        raise NotFoundError(f"There is no project {project_id[:60]}.")
    return found


async def _check_patterns(settings: ProjectSettings) -> None:
    """Check the patterns. Raises InvalidPatternError. Must not run in a transaction, because it is slow."""
    if patterns := settings.patterns:
        await run_in_thread(check_patterns, patterns)


async def _has_credentials(session: AsyncSession, project_id: str) -> bool:
    """Return whether the project has credentials that are sent to servers."""
    sent = select(Credential.kind).where(Credential.project_id == project_id, Credential.kind != "webhook_secret")
    return await session.scalar(sent.limit(1)) is not None


def require_owner(caller: Principal, project: Project | DeletedProject) -> None:
    """Raise ForbiddenError if the caller may not change the project."""
    if not (caller.is_admin or project.owner_id == caller.user_id):
        raise ForbiddenError("Only the project's owner or an administrator may do this.")
