"""Determine a project's forge, and the API that may receive its token."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from sandyard.platform.db.models import Project
from sandyard.platform.domain.forge.errors import ForgeUnsupportedError
from sandyard.platform.domain.forge.model import ForgeKind
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.errors import RepositoryInvalidError
from sandyard.platform.domain.repositories.remote import Remote, parse_remote

GITHUB_API = "https://api.github.com"
_GITHUB_HOSTS = ("github.com", "www.github.com", "ssh.github.com")


def get_remote(project: Project) -> Remote:
    """Return the project's remote. Raises RepositoryInvalidError if it has none."""
    if not project.repository:
        raise RepositoryInvalidError("The project has no repository. Add one in its settings.")
    return parse_remote(project.repository)


def get_forge(project: Project) -> ForgeKind:
    """Return the forge from the settings. `auto` means GitHub if the repository is on github.com or has an apiUrl, otherwise plain."""
    settings = ProjectSettings.from_project(project).forge
    if settings.kind != "auto":
        return ForgeKind(settings.kind)
    remote = get_remote(project)
    if remote.kind == "local":
        return ForgeKind.PLAIN
    return ForgeKind.GITHUB if settings.api_url or _is_on_github(remote) else ForgeKind.PLAIN


def explain_missing_pull_requests(project: Project) -> str | None:
    """Return why the project's branches get no pull requests, and what to set; None if they do, or if none are expected."""
    if ProjectSettings.from_project(project).forge.kind != "auto":
        return None
    try:
        remote, kind = get_remote(project), get_forge(project)
    except RepositoryInvalidError:
        return None
    if remote.kind == "local" or kind is not ForgeKind.PLAIN:
        return None
    return (
        f"{remote.host} is not github.com, so branches are pushed without pull requests. If it is a GitHub Enterprise Server, "
        "set its API URL."
    )


def get_api_url(project: Project) -> str:
    """Return the API URL. A token is sent only to the repository's host, or to the one set by the project's owner.

    Raises ForgeUnsupportedError if neither is known.
    """
    remote, configured = get_remote(project), ProjectSettings.from_project(project).forge.api_url
    if configured:
        if not _is_safe_from_interception(configured):
            raise ForgeUnsupportedError(
                "The project's forge.apiUrl starts with http://, so the project's token could be intercepted. Use https://."
            )
        return configured
    if not _is_on_github(remote):
        raise ForgeUnsupportedError(
            f"The repository is on {remote.host or 'this machine'}, not on github.com, so the project's token is not sent "
            "there. If it is a GitHub Enterprise Server, set forge.apiUrl of the project (https://HOST/api/v3)."
        )
    return GITHUB_API


def get_slug(project: Project) -> str:
    """Return `owner/name`."""
    remote = get_remote(project)
    if remote.slug is None:
        raise ForgeUnsupportedError(
            "The repository's URL does not end in OWNER/NAME like those on GitHub. Correct it, or set forge.kind to plain."
        )
    return remote.slug


def _is_on_github(remote: Remote) -> bool:
    return remote.host is not None and remote.host.lower() in _GITHUB_HOSTS


def _is_safe_from_interception(url: str) -> bool:
    """Return whether the connection cannot be intercepted."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = host == "localhost"
    return loopback or parts.scheme == "https"
