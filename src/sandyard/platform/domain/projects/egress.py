"""Network access of sandboxes: the settings of a project or the operator, as a list of names and addresses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args
from urllib.parse import urlsplit

from sandyard.kit.destinations import Destinations, PrivateAddressError
from sandyard.platform.db.models import DeletedProject, Project
from sandyard.platform.domain.projects import remotes
from sandyard.platform.domain.projects.model import NetworkSettings, Preset, ProjectSettings

Allowed = list[str] | None
"""Names, addresses and CIDR ranges. None means everything."""
PRESETS: dict[Preset, tuple[str, ...]] = {
    "forge": (),  # depends on the project
    "debian": (
        "deb.debian.org",
        "security.debian.org",
        "archive.ubuntu.com",
        "security.ubuntu.com",
        "ports.ubuntu.com",
    ),
    "pypi": ("pypi.org", "files.pythonhosted.org"),
    "npm": ("registry.npmjs.org", "registry.yarnpkg.com", "nodejs.org"),
    "crates": ("crates.io", "index.crates.io", "static.crates.io", "static.rust-lang.org"),
    "go": ("proxy.golang.org", "sum.golang.org", "go.dev", "dl.google.com"),
    "maven": ("repo.maven.apache.org", "repo1.maven.org", "plugins.gradle.org", "services.gradle.org"),
    "rubygems": ("rubygems.org", "index.rubygems.org"),
}
GITHUB_HOSTS = ("github.com", "api.github.com", "codeload.github.com", "*.githubusercontent.com")


def get_allowed(
    project: Project | DeletedProject, default: Allowed, destinations: Destinations | None = None
) -> Allowed:
    """Return the egress policy of the project's sandboxes; `default` if the project does not set it.

    With `destinations`, entries in private networks are left out, because the owner may no longer be an administrator.
    """
    settings = ProjectSettings.from_project(project)
    if settings.network.mode is None:
        return default
    allowed = _list_allowed(settings.network, remotes.list_servers(project.repository, settings))
    if allowed is None or destinations is None:
        return allowed
    return [entry for entry in allowed if _is_reachable(destinations, entry)]


def _is_reachable(destinations: Destinations, entry: str) -> bool:
    try:
        destinations.check_entry(entry)
    except PrivateAddressError:
        return False
    return True


def parse_operator_default(mode: str, entries: Iterable[str]) -> Allowed:
    """Return the default from SANDYARD_NETWORK and SANDYARD_NETWORK_ALLOW, whose entries are presets and hosts. Raises ValueError."""
    names = [entry.strip() for entry in entries if entry.strip()]
    presets = [name for name in names if name in get_args(Preset)]
    hosts = [name for name in names if name not in presets]
    return _list_allowed(NetworkSettings.model_validate({"mode": mode, "presets": presets, "allow": hosts}), ())


def _list_allowed(settings: NetworkSettings, servers: Iterable[str]) -> Allowed:
    if settings.mode == "all":
        return None
    if settings.mode == "none":
        return []
    hosts = dict.fromkeys(host for preset in settings.presets for host in PRESETS[preset])
    if "forge" in settings.presets:
        hosts |= dict.fromkeys(host for server in sorted(servers) for host in _list_forge_hosts(server))
    return list(hosts | dict.fromkeys(settings.allow))


def _list_forge_hosts(server: str) -> tuple[str, ...]:
    host = urlsplit(server if "://" in server else f"ssh://{server}").hostname or ""
    if host in GITHUB_HOSTS:
        return GITHUB_HOSTS
    return (host,) if host else ()
