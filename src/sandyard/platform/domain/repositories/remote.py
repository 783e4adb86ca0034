"""Repository URLs, and what they say about the location of a repository."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from sandyard.platform.domain.repositories.errors import RepositoryInvalidError

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SCP = re.compile(r"(?:(?P<user>[^@:/]+)@)?(?P<host>[^@:/\[\]]+|\[[^\]]+\]):(?P<path>(?!//|:).+)")
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_MAX_LENGTH = 2000


@dataclass(frozen=True, slots=True)
class Remote:
    """Location of a repository.

    `url` is passed to git and never holds a credential. `key` is the same for all spellings of the same repository, so
    that one lock guards it. `slug` is "owner/name" if the path has that form.
    """

    kind: Literal["http", "ssh", "local"]
    url: str
    host: str | None
    path: str
    slug: str | None
    name: str
    key: str
    web_url: str | None
    trusted: bool = False
    """Whether an administrator is responsible for it, which allows addresses in private networks."""

    @property
    def port(self) -> int:
        """The port of an HTTP or SSH remote."""
        default_port = {"http": 80, "https": 443}.get(self.scheme, 22)
        return (urlsplit(self.url).port or default_port) if "://" in self.url else default_port

    @property
    def scheme(self) -> str:
        """Git's name of the protocol."""
        if self.kind == "http":
            return self.url.partition(":")[0]
        return "file" if self.kind == "local" else "ssh"

    @property
    def origin(self) -> str:
        """The scheme, host and port that a credential is limited to."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"

    @property
    def is_safe_from_interception(self) -> bool:
        """Whether the connection to this remote is encrypted or local."""
        return self.scheme != "http" or (self.host is not None and _is_loopback(self.host))


def parse_remote(repository: str) -> Remote:
    """Parse an http(s)://, ssh://, git@host:path or file:// URL or an absolute path. Examines only the text.

    Raises RepositoryInvalidError, whose message never repeats a password from the URL.
    """
    address = repository.strip()
    if not address:
        raise RepositoryInvalidError("The repository URL is empty.")
    if len(address) > _MAX_LENGTH:
        raise RepositoryInvalidError(f"The repository URL is longer than {_MAX_LENGTH} characters.")
    if address.startswith("/"):
        return _parse_local(address)
    if _FORBIDDEN.search(address):
        raise RepositoryInvalidError("The repository URL contains spaces, backslashes or control characters.")
    scheme, separator, rest = address.partition("://")
    if not separator:
        return _parse_scp_like(address)
    match scheme.lower():
        case "http" | "https":
            return _parse_http(address)
        case "ssh" | "git+ssh" | "ssh+git":
            return _parse_ssh(f"ssh://{rest}")
        case "file":
            if not rest.startswith("/"):
                raise RepositoryInvalidError("A file:// URL needs an absolute path: file:///path/to/repository.")
            return _parse_local(rest)
        case _:
            raise RepositoryInvalidError(
                f"Use an https://, ssh:// (or git@host:path) or file:// URL, not {scheme[:20]}://."
            )


def _parse_http(address: str) -> Remote:
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise RepositoryInvalidError(
            "Remove the part before the @ from the URL: it must not contain a username, password or token. Add the token as a "
            "credential instead."
        )
    if parts.query or parts.fragment:
        raise RepositoryInvalidError("The repository URL must not contain '?' or '#'.")
    host, port = _parse_host_and_port(parts.netloc, {"http": 80, "https": 443}[parts.scheme.lower()])
    path = _normalize_path(parts.path)
    scheme, location = parts.scheme.lower(), host + (f":{port}" if port else "")
    return Remote(
        kind="http",
        url=f"{scheme}://{location}/{path}",
        host=host.strip("[]"),
        path=path,
        slug=_get_slug(path),
        name=_get_repository_name(path),
        key=f"{location}/{_strip_git_suffix(path).lower()}",
        web_url=f"{scheme}://{location}/{_strip_git_suffix(path)}",
    )


def _parse_ssh(address: str) -> Remote:
    parts = urlsplit(address)
    user, at, netloc = parts.netloc.rpartition("@")
    if at and ":" in user:
        raise RepositoryInvalidError("Remove the password from the URL. Add an SSH key instead.")
    if parts.query or parts.fragment:
        raise RepositoryInvalidError("The repository URL must not contain '?' or '#'.")
    host, port = _parse_host_and_port(netloc, 22)
    path = _normalize_path(parts.path)
    user_prefix = _format_user(user) if at else ""
    return _make_ssh_remote(f"ssh://{user_prefix}{host}{f':{port}' if port else ''}/{path}", host, path, port)


def _parse_scp_like(address: str) -> Remote:
    match = _SCP.fullmatch(address)
    if match is None:
        raise RepositoryInvalidError(
            "This is not a valid repository URL. Examples: https://host/owner/name.git, git@host:owner/name.git or /absolute/path."
        )
    host, _ = _parse_host_and_port(match["host"], 22)
    absolute = "/" if match["path"].startswith("/") else ""
    path = _normalize_path(match["path"])
    user_prefix = _format_user(match["user"]) if match["user"] else ""
    return _make_ssh_remote(f"{user_prefix}{host}:{absolute}{path}", host, path)


def _make_ssh_remote(url: str, host: str, path: str, port: int | None = None) -> Remote:
    """Build an SSH remote. `port` is None for the default. Another port is a different server, unrelated to the default and the web one."""
    location = f"ssh:{host}:{port}" if port else host
    return Remote(
        kind="ssh",
        url=url,
        host=host.strip("[]"),
        path=path,
        slug=_get_slug(path),
        name=_get_repository_name(path),
        key=f"{location}/{_strip_git_suffix(path).lower()}",
        web_url=f"https://{host}/{_strip_git_suffix(path)}",
    )


def _parse_local(path: str) -> Remote:
    if "\x00" in path or "\n" in path:
        raise RepositoryInvalidError("The repository path contains control characters.")
    clean = "/" + posixpath.normpath(path).lstrip("/")
    if clean == "/":
        raise RepositoryInvalidError("The repository path is the root directory.")
    return Remote(
        kind="local",
        url=clean,
        host=None,
        path=clean,
        slug=None,
        name=_get_repository_name(clean),
        key=f"local:{_strip_git_suffix(clean)}",
        web_url=None,
    )


def _parse_host_and_port(netloc: str, default_port: int) -> tuple[str, int | None]:
    """Return the host in lower case, and its port unless it is the default."""
    host, port = netloc, None
    match = re.fullmatch(r"(.*):(\d*)", netloc)
    if match and not netloc.endswith("]"):
        host, port = match[1], int(match[2] or default_port)
        if not 0 < port < 65536:
            raise RepositoryInvalidError(f"{port} is not a valid port.")
    if not _HOST.fullmatch(host) or ".." in host:
        raise RepositoryInvalidError("The URL has no host, or an invalid host name.")
    return host.lower(), None if port == default_port else port


def _format_user(name: str) -> str:
    if not _USER.fullmatch(name):
        raise RepositoryInvalidError("The part before the @ in the URL is not a valid username.")
    return f"{name}@"


def _normalize_path(path: str) -> str:
    """Remove leading, trailing and repeated slashes."""
    parts = [part for part in path.split("/") if part]
    if not parts or any(part in (".", "..") for part in parts) or parts[0].startswith("-") or parts[-1] == ".git":
        raise RepositoryInvalidError("The URL names a host, but no repository on it.")
    return "/".join(parts)


def _strip_git_suffix(path: str) -> str:
    return path.removesuffix(".git")


def _get_repository_name(path: str) -> str:
    """Return the last part, or the part before it if the path is a work tree's `.git`."""
    return _strip_git_suffix(path).rstrip("/").rpartition("/")[2] or "repository"


def _get_slug(path: str) -> str | None:
    bare = _strip_git_suffix(path)
    return bare if re.fullmatch(r"[^/~]+/[^/]+", bare) else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
