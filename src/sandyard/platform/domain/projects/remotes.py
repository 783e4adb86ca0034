"""A project's repository: who may set it, and which servers its credentials belong to."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import ConflictError, ForbiddenError
from sandyard.platform.db.models import DeletedProject, Project, User
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.error_translation import LOCAL_PATH_REFUSED
from sandyard.platform.domain.repositories.errors import RepositoryInvalidError
from sandyard.platform.domain.repositories.remote import Remote, parse_remote
from sandyard.platform.domain.users.model import Principal


def normalize_repository(caller: Principal, repository: str, *, trusted: bool = False) -> str:
    """Return the URL as it is stored. Raises RepositoryInvalidError.

    Raises ForbiddenError for a path on this machine, because every member could read it: only administrators or the platform itself
    (`trusted`) may set one.
    """
    remote = parse_remote(repository)
    if remote.kind == "local" and not (caller.is_admin or trusted):
        raise ForbiddenError(
            "Only an administrator may use a path on the platform's own machine. Use an https or ssh URL."
        )
    return remote.url


async def is_trusted(session: AsyncSession, project: Project | DeletedProject) -> bool:
    """Return whether the project's repository may be on this machine, and its repository and API in private networks.

    This is so while its owner is an administrator. Only the owner and administrators can change them.
    """
    owner = await session.get(User, project.owner_id)
    return owner is not None and owner.role == "admin"


def check_not_private(destinations: Destinations, repository: str | None, settings: ProjectSettings) -> None:
    """Raise PrivateAddressError for URLs that are private by their address alone. Names are resolved when they are used."""
    hosts = [urlsplit(settings.forge.api_url).hostname] if settings.forge.api_url else []
    if repository is not None:
        hosts.append(parse_remote(repository).host)
    for host in hosts:
        if host:
            destinations.check_name(host)
    for entry in settings.network.allow:
        destinations.check_entry(entry)


async def check_local_path(session: AsyncSession, project: Project) -> None:
    """Raise ForbiddenError if the repository is a path on this machine that the project could not use."""
    local = project.repository is not None and parse_remote(project.repository).kind == "local"
    if local and not await is_trusted(session, project):
        raise ForbiddenError(LOCAL_PATH_REFUSED)


async def get_remote(session: AsyncSession, project: Project) -> Remote:
    """Return the project's remote, for a connection. Raises RepositoryInvalidError if it has none."""
    if not project.repository:
        raise RepositoryInvalidError("The project has no repository. Add one in its settings.")
    return replace(parse_remote(project.repository), trusted=await is_trusted(session, project))


def list_servers(repository: str | None, settings: ProjectSettings) -> frozenset[str]:
    """Return the servers that the project's credentials are sent to, in addition to GitHub's API."""
    return frozenset(
        server
        for server in (_get_repository_server(repository), _get_server(settings.forge.api_url))
        if server is not None
    )


def check_server_change(before: frozenset[str], after: frozenset[str]) -> None:
    """Raise ConflictError if stored credentials could be sent to another server.

    Otherwise somebody could read them by pointing the project at their own server, directly or through an empty URL in between.
    """
    if before and not (after and after <= before):
        raise ConflictError(
            f"The project has credentials for {' and '.join(sorted(before))}. Remove them before changing the URL to another "
            f"server ({', '.join(sorted(after - before)) or 'or removing it'}); then add credentials for the new one."
        )


def _get_repository_server(repository: str | None) -> str | None:
    if repository is None:
        return None
    try:
        remote = parse_remote(repository)
    except RepositoryInvalidError:  # stored by a version without this check
        return None
    if remote.kind == "local":
        return None
    return _get_server(remote.url if "://" in remote.url else f"ssh://{remote.host}")


def _get_server(url: str | None) -> str | None:
    """Return scheme, host and port. Another port is another server, because anyone with access to the machine can listen there.

    Https and ssh on their default ports count as the same host; http never does, because it can be intercepted.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets without an address
        return url.lower()
    host = parts.netloc.rpartition("@")[2].lower()
    default_port = {"https": ":443", "ssh": ":22"}.get(parts.scheme.lower())
    if default_port is None:
        return f"{parts.scheme.lower()}://{host.removesuffix(':80')}"
    host = host.removesuffix(default_port)
    return f"{parts.scheme.lower()}://{host}" if re.search(r":\d*$", host) else host
