"""Sandbox operations for users and agents. Every method takes the caller and treats what the caller may not see as
nonexistent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlalchemy import ColumnElement, func, not_, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from sandyard.kit.errors import InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import AgentSnapshot, Preparation, Project, Sandbox, Session, Task
from sandyard.platform.db.models.sandboxes import UsageSample
from sandyard.platform.domain.paging import Listing, PageRequest
from sandyard.platform.domain.projects import service as projects
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.sandboxes.e2b import (
    DeniedConnection,
    EngineError,
    EngineInvalidError,
    FileEntry,
    SandboxEngine,
    SandboxNotFoundError,
    SandboxNotRunningError,
)
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import (
    NewSandbox,
    Status,
    check_usable,
    get_sandbox_event_fields,
    make_usage_sample,
)
from sandyard.platform.domain.sandboxes.repository import is_session_visible_to
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

T = TypeVar("T")
FIRST_FILES = PageRequest(limit=1000)
_TEMPLATE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/:@+-]*")


_TEMPLATE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]*")
_E2B_TEMPLATE_ID = re.compile(r"[a-z0-9]{20}")
log = get_logger(__name__)


class SandboxSettingsError(InvalidInputError):
    """The engine cannot create sandboxes with these settings of a project."""

    def __init__(self, message: str, *fields: str) -> None:
        super().__init__(message)
        self._fields = fields

    @property
    def extra(self) -> Mapping[str, object]:
        return {"errors": [{"field": f"settings.{field}", "message": self.message} for field in self._fields]}


class TooLargeError(SandyardError):
    """The file is too large."""

    code, status = "too_large", 413


@dataclass(frozen=True, slots=True)
class SandboxNames:
    """Names that people know a sandbox by."""

    title: str | None = None
    project_name: str | None = None


class Sandboxes:
    def __init__(
        self, database: Database, lifecycle: Lifecycle, projects: Projects, settings: PlatformSettings
    ) -> None:
        self._database = database
        self._lifecycle = lifecycle
        self._projects = projects
        self.settings = settings

    async def create_sandbox(
        self,
        principal: Principal,
        *,
        project_id: str | None = None,
        agent_id: str | None = None,
        task_id: str | None = None,
        template: str | None = None,
        envs: Mapping[str, str] | None = None,
        idle_seconds: int | None = None,
    ) -> Sandbox:
        """Create a sandbox of the caller's own and return it when it is running.

        A sandbox of a project uses the project's template unless one is given. If provisioning fails, raises the error,
        which is also stored in the row.
        """
        project = await self._get_project(principal, project_id, task_id)
        if project is not None:
            project_id, template = project.id, template or project.template
        if template is not None:
            await check_template(self._database, principal, template, project_id)
        wanted = NewSandbox(
            template=template or self.settings.default_template,
            idle_seconds=idle_seconds or self.settings.idle_seconds,
            envs=check_envs(envs or {}),
            agent_id=agent_id,
            task_id=task_id,
            project_id=project_id,
        )
        row = await self._lifecycle.create(principal.user_id, wanted)
        row = await self._lifecycle.wait_until_provisioned(row.id)
        check_usable(row)
        return row

    async def _get_project(self, principal: Principal, project_id: str | None, task_id: str | None) -> Project | None:
        if task_id is None:
            return await self._projects.get(principal, project_id) if project_id is not None else None
        async with self._database.reading() as session:
            task = await session.get(Task, task_id)
        if task is not None and project_id in (None, task.project_id):
            with contextlib.suppress(NotFoundError):  # a task of a project that the caller may not see does not exist
                return await self._projects.get(principal, task.project_id)
        raise InvalidInputError(f"taskId: there is no task {task_id[:60]!r}.")

    async def get_status(self, principal: Principal, sandbox_id: str) -> Sandbox:
        """Return the sandbox from the database. Never resumes it."""
        return await self._lifecycle.repository.get_for(principal, sandbox_id)

    async def list_sandboxes(
        self, principal: Principal, page: PageRequest, *, everybody: bool, status: Status | None, session_id: str | None
    ) -> Listing[Sandbox]:
        return await self._lifecycle.repository.page(
            principal, page, everybody=everybody, status=status, session_id=session_id
        )

    async def get_names(self, rows: Sequence[Sandbox]) -> dict[str, SandboxNames]:
        """Return the titles of the sandboxes' sessions and the names of their projects, by sandbox id."""
        query = (
            select(Sandbox.id, Session.title, Project.name)
            .outerjoin(Session, Session.id == Sandbox.session_id)
            .outerjoin(Project, Project.id == Sandbox.project_id)
            .where(Sandbox.id.in_([row.id for row in rows]))
        )
        async with self._database.reading() as session:
            return {row[0]: SandboxNames(row[1], row[2]) for row in (await session.execute(query)).all()}

    async def pause(self, principal: Principal, sandbox_id: str) -> Sandbox:
        return await self._lifecycle.pause(await self._lifecycle.repository.get_for(principal, sandbox_id))

    async def resume(self, principal: Principal, sandbox_id: str) -> Sandbox:
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        await self._lifecycle.ensure_running(row)
        self._lifecycle.activity.touch(row.id)
        return await self._lifecycle.repository.get(row.id)

    async def destroy_sandbox(self, principal: Principal, sandbox_id: str) -> None:
        """Delete the sandbox. Idempotent. One of a session or task is deleted by those who may delete its session."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        if row.session_id is not None or row.task_id is not None:
            await self._projects.require_may_delete(principal, row, "sandbox")
        await self._lifecycle.destroy(row)

    async def fork(self, principal: Principal, sandbox_id: str) -> Sandbox:
        """Copy the sandbox's files to a new sandbox of the caller's own."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        wanted = NewSandbox(
            template=row.template,
            idle_seconds=row.idle_seconds,
            agent_id=row.agent_id,
            task_id=row.task_id,
            project_id=row.project_id,
            deleted_project_id=row.deleted_project_id,
        )
        return await self._lifecycle.fork(principal.user_id, row, wanted)

    async def usage(self, principal: Principal, sandbox_id: str) -> UsageSample | None:
        """Return the current usage of a running sandbox, or the last sample of any other. Never resumes it."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        if row.status != Status.RUNNING or row.engine_id is None:
            return row.usage
        try:
            usage = await self._lifecycle.engine.get_usage(row.engine_id)
        except SandyardError:
            return row.usage
        return row.usage if usage is None else make_usage_sample(usage)

    async def list_denied_connections(self, principal: Principal, sandbox_id: str) -> Sequence[DeniedConnection] | None:
        """Return connections that the network settings have denied. None if the engine does not report them. Never
        resumes it."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        if row.engine_id is None:
            return []
        try:
            return await self._lifecycle.engine.list_denied_connections(row.engine_id)
        except SandboxNotFoundError:  # it has ended, and its log is gone
            return []

    # files ------------------------------------------------------------------------------------------------------------

    async def _call(self, principal: Principal, row: Sandbox, action: Callable[[str], Awaitable[T]]) -> T:
        """Call into the sandbox like `Lifecycle.call`. Raises TooManyOperationsError if the caller has too much in progress."""
        with self._lifecycle.connections.hold(principal.user_id):
            return await self._lifecycle.call(row, action)

    async def upload_file(
        self, principal: Principal, sandbox_id: str, path: str, chunks: AsyncIterator[bytes], announced: int | None
    ) -> int:
        """Upload a file and return its size. Keeps nothing of a file that is too large or incomplete.

        The engine keeps an existing file until the upload is complete.
        """
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        limit = self.settings.upload_limit
        if announced is not None and announced > limit:
            raise _make_too_large_error(limit)
        body = _UploadBody(chunks, limit)

        async def write(engine_id: str) -> int:
            if body.begun:
                raise SandboxNotRunningError("The sandbox was paused and has been resumed. Send the file again.")
            return await self._lifecycle.engine.files.write(engine_id, path, body.read_limited())

        size = await self._call(principal, row, write)
        async with self._database.transaction() as tx:
            tx.emit("file.uploaded", **get_sandbox_event_fields(row), path=path[:1000], size=size, by=principal.name)
        return size

    async def download_file(
        self, principal: Principal, sandbox_id: str, path: str
    ) -> tuple[int | None, AsyncIterator[bytes]]:
        """Return the file's size, if known, and its bytes."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._lifecycle.connections.hold(principal.user_id))
            size, chunks = await self._lifecycle.call(
                row, lambda engine_id: self._lifecycle.engine.files.read(engine_id, path)
            )
            content = self._stream_in_use(row, chunks, stack.pop_all())
        await anext(content)  # a generator that has not begun would not be closed when it is dropped
        return size, content

    async def _stream_in_use(
        self, row: Sandbox, chunks: AsyncGenerator[bytes, None], held: contextlib.ExitStack
    ) -> AsyncIterator[bytes]:
        """Yield nothing (b"") when the first chunk has arrived, then all chunks. Closes `held` at the end."""
        with held, self._lifecycle.activity.using(row.id):
            async with contextlib.aclosing(chunks):
                first = await anext(chunks, b"")
                yield b""
                yield first
                async for chunk in chunks:
                    yield chunk

    async def list_files(
        self, principal: Principal, sandbox_id: str, path: str, depth: int, page: PageRequest = FIRST_FILES
    ) -> Listing[FileEntry]:
        """List entries ordered by path. The cursor is the number of entries before the page."""
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        first = int(page.cursor or 0)
        found = await self._call(
            principal,
            row,
            lambda engine_id: self._lifecycle.engine.files.list(engine_id, path, depth, first=first, limit=page.limit),
        )
        return Listing(found.entries, None if found.next is None else str(found.next))

    async def get_file_info(self, principal: Principal, sandbox_id: str, path: str) -> FileEntry:
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        return await self._call(principal, row, lambda engine_id: self._lifecycle.engine.files.stat(engine_id, path))

    async def remove_file(self, principal: Principal, sandbox_id: str, path: str) -> None:
        row = await self._lifecycle.repository.get_for(principal, sandbox_id)
        await self._call(principal, row, lambda engine_id: self._lifecycle.engine.files.remove(engine_id, path))
        async with self._database.transaction() as tx:
            tx.emit("file.removed", **get_sandbox_event_fields(row), path=path[:1000], by=principal.name)


async def check_template(
    database: Database, principal: Principal, template: str, project_id: str | None = None
) -> None:
    """Check that the caller may use the template in this project.

    Snapshots are templates too, and contain someone's files. Raises InvalidInputError for checkpoints of sessions and
    preparations of projects that the caller may not see, and for the platform's snapshots of agents. Snapshots of a
    project may be used only in its own sandboxes, where its settings apply, and those of a deleted project whose settings
    still apply only by its sessions. `project_id` is the project of the new sandbox.
    """
    if not _TEMPLATE.fullmatch(template):  # an engine may resolve a name to another one that only looks different
        raise InvalidInputError(f"template: there is no template {template!r}.")
    seen = select(Project.id).where(projects.is_visible_to(principal))
    checkpoint, preparation = _is_named(Session.checkpoint, template), _is_named(Preparation.snapshot, template)
    foreign = (
        select(Session.id).where(checkpoint, not_(is_session_visible_to(principal))),
        select(Preparation.id).where(preparation, Preparation.project_id.not_in(seen)),
        select(AgentSnapshot.id).where(_is_named(AgentSnapshot.snapshot, template)),  # they belong to the platform
    )
    of_projects = (
        select(Session.project_id).where(checkpoint, Session.project_id.is_not(None)),
        select(Preparation.project_id).where(preparation),
    )
    of_deleted = select(Session.id).where(checkpoint, Session.deleted_project_id.is_not(None))
    async with database.reading() as session:
        for query in foreign:
            if (await session.execute(query.limit(1))).first() is not None:
                raise InvalidInputError(f"template: there is no template {template!r}.")
        for of_project in of_projects:
            if any(found != project_id for found in await session.scalars(of_project)):
                raise InvalidInputError(
                    f"template: {template!r} contains files of a project. Use it in a session or sandbox of that project "
                    "(projectId), where its settings apply."
                )
        if (await session.execute(of_deleted.limit(1))).first() is not None:
            raise InvalidInputError(
                f"template: {template!r} contains files of a project that was deleted, but whose settings still apply. Use it in its "
                "session: fork the session, or create a new sandbox for it."
            )


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """The settings of a project that its engine must support. None: what the engine or the template chooses."""

    template: str | None
    isolation: str | None
    containers: bool | None


async def check_sandbox_settings(engine: SandboxEngine, settings: SandboxSettings, default_template: str) -> None:
    """Raise SandboxSettingsError if the engine says that it cannot create sandboxes with these settings.

    Names with a tag and ids of E2B Cloud are not checked, because it can't be asked about those of other users. Nothing is checked while
    the engine does not respond.
    """
    template = settings.template
    if template is not None and (not _TEMPLATE_NAME.fullmatch(template) or _E2B_TEMPLATE_ID.fullmatch(template)):
        return
    try:
        if template is not None and not await engine.has_template(template):
            raise SandboxSettingsError(
                f"The engine has no template {template!r}. Check the name, or create the template first.", "template"
            )
        await _check_isolation(engine, settings, template or default_template)
    except EngineError as error:
        log.info("sandbox_settings_not_checked", template=template, reason=error.message)


async def _check_isolation(engine: SandboxEngine, settings: SandboxSettings, template: str) -> None:
    asked = {"isolation": settings.isolation, "containers": settings.containers or None}
    fields = [name for name, value in asked.items() if value is not None]
    if not fields:
        return
    try:
        await engine.check_isolation(template, settings.isolation, settings.containers)
    except EngineInvalidError as error:
        raise SandboxSettingsError(error.message, *fields) from error


async def is_work_snapshot(database: Database, template: str) -> bool:
    """Return whether a template is a session's checkpoint or a project's preparation, which contain someone's files."""
    queries = (
        select(Session.id).where(_is_named(Session.checkpoint, template)),
        select(Preparation.id).where(_is_named(Preparation.snapshot, template)),
    )
    async with database.reading() as session:
        return any([(await session.execute(query.limit(1))).first() is not None for query in queries])


def _is_named(column: InstrumentedAttribute[str | None], template: str) -> ColumnElement[bool]:
    """Match a snapshot that an engine might resolve this name to: with or without a tag, and with or without an owner."""
    base, known = template.partition(":")[0].lower(), func.lower(column)
    names = {base, base.rpartition("/")[2]}
    return or_(*(or_(known == name, known.startswith(f"{name}:", autoescape=True)) for name in names))


def check_envs(envs: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in envs.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise InvalidInputError(
                f"envs: {name[:100]!r} is invalid: a name must not contain '=', and names and values must not contain NUL."
            )
    return envs


class _UploadBody:
    """An uploaded file, which can be read once."""

    def __init__(self, chunks: AsyncIterator[bytes], limit: int) -> None:
        self._chunks = chunks
        self._limit = limit
        self.begun = False

    async def read_limited(self) -> AsyncIterator[bytes]:
        self.begun = True
        seen = 0
        async for chunk in self._chunks:
            seen += len(chunk)
            if seen > self._limit:
                raise _make_too_large_error(self._limit)
            yield chunk


def _make_too_large_error(limit: int) -> TooLargeError:
    return TooLargeError(f"The file is larger than the limit of {limit:,} bytes (SANDYARD_UPLOAD_LIMIT).")
