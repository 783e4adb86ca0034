"""Which forge a project's repository is on, and which API may be told the project's token."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.errors import ForgeUnsupportedError
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.git import remote as remotes
from sandyard.platform.domain.git.errors import RepositoryInvalidError
from sandyard.platform.domain.git.remote import Remote
from sandyard.platform.domain.projects.model import ProjectSettings

GITHUB_API = "https://api.github.com"
_GITHUB = ("github.com", "www.github.com", "ssh.github.com")


def remote_of(project: Project) -> Remote:
    """RepositoryInvalidError for a project without one."""
    if not project.repository:
        raise RepositoryInvalidError("The project has no repository. Give it the address of one.")
    return remotes.parse(project.repository)


def forge_of(project: Project) -> ForgeKind:
    """As its settings say; `auto` is GitHub for what is on github.com, or has an apiUrl, and plain for all else."""
    settings = ProjectSettings.of(project).forge
    if settings.kind != "auto":
        return ForgeKind(settings.kind)
    remote = remote_of(project)
    if remote.kind == "local":
        return ForgeKind.PLAIN
    return ForgeKind.GITHUB if settings.api_url or _on_github(remote) else ForgeKind.PLAIN


def explain_missing_pull_requests(project: Project) -> str | None:
    """Why branches of this project get no pull requests, and what to set; None if they do, or if nobody would expect them."""
    if ProjectSettings.of(project).forge.kind != "auto":
        return None
    try:
        remote, kind = remote_of(project), forge_of(project)
    except RepositoryInvalidError:
        return None
    if remote.kind == "local" or kind is not ForgeKind.PLAIN:
        return None
    return (
        f"{remote.host} is not github.com: branches are pushed there without pull requests. If it is a GitHub Enterprise "
        "Server, set its API address."
    )


def api_of(project: Project) -> str:
    """The address of the API. A token is told only to the host its repository is on, or to the one the project's owner has named:
    ForgeUnsupportedError where neither is known."""
    remote, given = remote_of(project), ProjectSettings.of(project).forge.api_url
    if given:
        if not _private(given):
            raise ForgeUnsupportedError(
                "The project's forge.apiUrl begins with http://, where anyone on the way can read the project's token. Use https://."
            )
        return given
    if not _on_github(remote):
        raise ForgeUnsupportedError(
            f"The repository is on {remote.host or 'this machine'}, and not on github.com: the project's token is not sent there. If "
            "that is a GitHub Enterprise Server, set forge.apiUrl of the project (https://HOST/api/v3)."
        )
    return GITHUB_API


def slug_of(project: Project) -> str:
    """`owner/name`."""
    remote = remote_of(project)
    if remote.slug is None:
        raise ForgeUnsupportedError(
            "The repository's address does not end in OWNER/NAME, as those of GitHub do. Correct it, or set forge.kind to plain."
        )
    return remote.slug


def _on_github(remote: Remote) -> bool:
    return remote.host is not None and remote.host.lower() in _GITHUB


def _private(url: str) -> bool:
    """Whether nobody on the way can read what is said."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return loopback or parts.scheme == "https"
