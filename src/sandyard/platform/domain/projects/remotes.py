"""Where a project's repository is: who may say so, and which servers its credentials were given for."""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.kit.destinations import Destinations
from sandyard.kit.errors import ConflictError, ForbiddenError
from sandyard.platform.db.models import Project, User
from sandyard.platform.domain.git.errors import RepositoryInvalidError
from sandyard.platform.domain.git.remote import Remote, parse
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.users.model import Principal


def clean(caller: Principal, repository: str, *, vouched: bool = False) -> str:
    """The address as it is stored. RepositoryInvalidError; ForbiddenError for a path on this machine, which is everybody's who may
    read it: only administrators say so, or the platform itself (`vouched`)."""
    remote = parse(repository)
    if remote.kind == "local" and not (caller.is_admin or vouched):
        raise ForbiddenError(
            "A path on the platform's own machine may only be given by an administrator. Use an https or ssh address."
        )
    return remote.url


async def is_vouched(session: AsyncSession, project: Project) -> bool:
    """Whether an administrator answers for where the project's repository and its API are: its owner is one. Nobody but its owner and
    administrators can change them."""
    owner = await session.get(User, project.owner_id)
    return owner is not None and owner.role == "admin"


def check_private(destinations: Destinations, repository: str | None, settings: ProjectSettings) -> None:
    """PrivateAddressError for what can be seen to be private from its address alone. Names are looked up when they are used."""
    hosts = [urlsplit(url).hostname for url in (settings.forge.api_url,) if url]
    if repository is not None:
        hosts.append(parse(repository).host)
    for host in hosts:
        if host:
            destinations.check_name(host)
    for entry in settings.network.allow:
        destinations.check_entry(entry)


async def remote_of(session: AsyncSession, project: Project) -> Remote:
    """Its remote, for a connection. RepositoryInvalidError for a project without one."""
    if not project.repository:
        raise RepositoryInvalidError("The project has no repository. Give it the address of one.")
    return replace(parse(project.repository), vouched=await is_vouched(session, project))


def servers(repository: str | None, settings: ProjectSettings) -> frozenset[str]:
    """Who gets to see the project's credentials; GitHub's own API goes without saying."""
    return frozenset(
        server for server in (_of_repository(repository), _server(settings.forge.api_url)) if server is not None
    )


def check_move(before: frozenset[str], after: frozenset[str]) -> None:
    """ConflictError when credentials that were given for one server could be shown to another: nobody gets to read them by pointing
    the project at a server of their own, nor in two steps with nowhere in between."""
    if before and not (after and after <= before):
        raise ConflictError(
            f"The project has credentials that were given for {' and '.join(sorted(before))}. Remove them before it is moved to "
            f"another address ({', '.join(sorted(after - before)) or 'or to none'}); then give those for the new one."
        )


def _of_repository(repository: str | None) -> str | None:
    if repository is None:
        return None
    try:
        remote = parse(repository)
    except RepositoryInvalidError:  # stored by a version that did not look
        return None
    if remote.kind == "local":
        return None
    return _server(remote.url if "://" in remote.url else f"ssh://{remote.host}")


def _server(url: str | None) -> str | None:
    """Another port is another server: anybody who has a place on the machine can listen there. Https and ssh at their own ports are
    the host's, and are one; http is never, for anybody on the way can answer it."""
    if url is None:
        return None
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that hold no address
        return url.lower()
    host = parts.netloc.rpartition("@")[2].lower()
    usual = {"https": ":443", "ssh": ":22"}.get(parts.scheme.lower())
    if usual is None:
        return f"{parts.scheme.lower()}://{host.removesuffix(':80')}"
    host = host.removesuffix(usual)
    return f"{parts.scheme.lower()}://{host}" if re.search(r":\d*$", host) else host
