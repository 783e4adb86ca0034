"""Shared context of git operations: rows, mirror, access to the remote, and git in the sandbox."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from sqlalchemy import select

from sandyard.kit.errors import ConflictError, NotFoundError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Checkout, Project, Sandbox
from sandyard.platform.domain.git.checkout.program_runner import ProgramRunner
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.errors import NoCheckoutError
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER
from sandyard.platform.domain.projects.model import IdentitySettings, ProjectSettings
from sandyard.platform.domain.projects.remotes import get_remote
from sandyard.platform.domain.projects.service import record_connection_error
from sandyard.platform.domain.repositories.errors import (
    RemoteMissingError,
    RemoteRefusedError,
    RemoteUnreachableError,
)
from sandyard.platform.domain.repositories.mirror import Mirror, Mirrors
from sandyard.platform.domain.repositories.model import Credential, Identity, Progress
from sandyard.platform.domain.repositories.remote import Remote
from sandyard.platform.domain.sandboxes.e2b import SandboxNotFoundError, SandboxNotRunningError
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.settings import PlatformSettings

DEFAULT_IDENTITY = Identity("Sandyard", "sandyard@localhost")
CredentialSource = Callable[[Project], Awaitable[Credential | None]]
"""Returns the credential of a project's remote when it is needed; it may have to be created first."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A project's repository with everything needed to access its remote."""

    remote: Remote
    mirror: Mirror
    credential: Credential | None

    @property
    def public_url(self) -> str:
        return get_public_url(self.remote)


@dataclass(frozen=True, slots=True)
class GitContext:
    """Dependencies of all git operations: rows, mirrors, credentials, and git in sandboxes."""

    database: Database
    lifecycle: Lifecycle
    mirrors: Mirrors
    credential_source: CredentialSource
    settings: PlatformSettings
    _refresh_started_at: dict[str, float] = field(default_factory=dict)

    async def get_project(self, project_id: str | None) -> Project:
        async with self.database.reading() as session:
            row = await session.get(Project, project_id) if project_id is not None else None
        if row is None:
            raise NotFoundError("The project of this checkout no longer exists.")
        return row

    async def get_repository(self, project: Project) -> Repository:
        """Return the project's repository. Raises ConflictError if it has none."""
        if project.repository is None:
            raise ConflictError(f"Project {project.name!r} has no repository. Add one in the project's settings.")
        credential = await self.credential_source(project)
        async with self.database.reading() as session:
            remote = await get_remote(session, project)
        return Repository(remote, self.mirrors.get(project.id), credential)

    async def refresh(self, project: Project, repository: Repository, progress: Progress, *, since: float) -> None:
        """Update the mirror, unless a refresh that started after `since` (time.monotonic) has completed."""
        if self._refresh_started_at.get(project.id, 0.0) > since:
            return
        started = time.monotonic()
        async with self.record_connection(project):
            await repository.mirror.refresh(repository.remote, repository.credential, progress)
        self._refresh_started_at[project.id] = started

    @contextlib.asynccontextmanager
    async def record_connection(self, project: Project) -> AsyncIterator[None]:
        """Wrap access to the remote: marks the project if the remote cannot be used, and clears the mark if it can."""
        try:
            yield
        except (RemoteRefusedError, RemoteMissingError, RemoteUnreachableError) as error:
            await record_connection_error(self.database, project.id, error.message)
            raise
        if project.connection_error is not None:
            await record_connection_error(self.database, project.id, None)

    async def get_checkout(self, sandbox_id: str) -> Checkout:
        async with self.database.reading() as session:
            row = await session.get(Checkout, sandbox_id)
        if row is None:
            raise NoCheckoutError
        return row

    async def get_checkout_with_project(self, sandbox_id: str) -> tuple[Checkout, Project]:
        async with self.database.reading() as session:
            query = select(Checkout, Project).join(Project, Project.id == Checkout.project_id)
            found = (await session.execute(query.where(Checkout.sandbox_id == sandbox_id))).first()
        if found is None:
            raise NoCheckoutError
        return found[0], found[1]

    def create_git(self, engine_id: str, folder: str = CHECKOUT_FOLDER) -> SandboxGit:
        """Return the git of a running sandbox."""
        runner = ProgramRunner(self.lifecycle.engine, engine_id, folder)
        return SandboxGit(runner, limit=self.settings.git_transfer_limit)

    @contextlib.contextmanager
    def create_transfer_file(self) -> Iterator[Path]:
        """Yield a path for a file in transfer, which is deleted at the end."""
        with tempfile.TemporaryDirectory(prefix="transfer-", dir=self.settings.git_dir) as folder:
            yield Path(folder) / "bundle"

    def delete_transfer_files(self) -> None:
        """Delete transfer files that a crash left behind. Blocks briefly; call only while no transfer is in progress."""
        for folder in self.settings.git_dir.glob("transfer-*"):
            shutil.rmtree(folder, ignore_errors=True)

    @contextlib.asynccontextmanager
    async def open_git(self, sandbox: Sandbox, folder: str = CHECKOUT_FOLDER) -> AsyncIterator[SandboxGit]:
        """Yield the git of a sandbox, which is resumed if necessary."""
        async with self.lifecycle.using(sandbox) as engine_id:
            try:
                yield self.create_git(engine_id, folder)
            except SandboxNotRunningError:
                await self.lifecycle.record_pause(sandbox.id)
                raise
            except SandboxNotFoundError:
                await self.lifecycle.mark_lost(sandbox.id)
                raise


def get_public_url(remote: Remote) -> str:
    """Return the remote's URL as a sandbox may see it."""
    return f"sandyard://{remote.name}" if remote.kind == "local" else remote.url


def make_compare_url(settings: PlatformSettings, project_id: str, base: str, head: str) -> str:
    """Return the platform's URL for comparing two branches."""
    return f"{settings.url}/api/v1/projects/{project_id}/compare?{urlencode({'base': base, 'head': head})}"


def get_author(project: Project) -> Identity:
    return _to_identity(ProjectSettings.from_project(project).git.author) or DEFAULT_IDENTITY


def get_committer(project: Project) -> Identity:
    return _to_identity(ProjectSettings.from_project(project).git.committer) or get_author(project)


def get_co_authors(project: Project, agent: str | None) -> tuple[Identity, ...]:
    """Return the configured co-author, else the sandbox's agent, if there is one."""
    configured = _to_identity(ProjectSettings.from_project(project).git.co_author)
    if configured is not None:
        return (configured,)
    return (Identity(agent, f"{_make_local_part(agent)}@sandyard.localhost"),) if agent else ()


def _to_identity(settings: IdentitySettings | None) -> Identity | None:
    return None if settings is None else Identity(settings.name, settings.email)


def _make_local_part(agent: str) -> str:
    return (
        "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in agent.lower()).strip("-")
        or "agent"
    )
