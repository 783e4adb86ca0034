"""Preview addresses: `{port}-{id}.{domain}`, a separate origin for each port of each sandbox, none of them the
platform's own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from sandyard.kit.errors import InvalidInputError, UnsupportedError
from sandyard.kit.listen import is_loopback
from sandyard.platform.domain.sandboxes.e2b import AGENT_PORT
from sandyard.platform.settings import PlatformSettings

LOCAL_DOMAIN = "localhost"
"""Browsers resolve every name below it to their own machine, without DNS."""
_ID_PREFIX = "sbx_"
_LABEL = re.compile(r"([1-9][0-9]{0,4})-([0-9a-z]{1,56})")  # host names must not contain underscores
_ORIGIN = re.compile(r"(https?)://([0-9a-z.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PreviewPort:
    """One port of one sandbox."""

    sandbox_id: str
    port: int

    @property
    def label(self) -> str:
        return f"{self.port}-{self.sandbox_id.removeprefix(_ID_PREFIX)}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of previews.

    `port` None: the scheme's default. `platform_host`: the platform's own host name, which may be a subdomain of the domain.
    `platform_origins`: the origins of the platform's pages; empty if a policy cannot contain them.
    """

    scheme: str
    domain: str
    port: int | None
    platform_host: str | None = None
    platform_origins: tuple[str, ...] = ()

    @classmethod
    def from_settings(cls, settings: PlatformSettings) -> Addresses | None:
        """Return the addresses. None if the platform has a public host name but no preview domain is set."""
        public = urlsplit(settings.public_url) if settings.public_url else None
        name = (public.hostname or "").lower() if public else None
        scheme, port = (public.scheme, public.port) if public else ("http", settings.port)
        origins = _list_platform_origins(settings)
        if settings.preview_domain is not None:
            domain, _, given = settings.preview_domain.partition(":")
            return cls(scheme, domain, int(given) if given else port, name, origins)
        if name is None or is_loopback(name):
            return cls(scheme, LOCAL_DOMAIN, port, name, origins)
        return None

    @property
    def is_secure(self) -> bool:
        """Whether browsers trust the origin as secure, so that secure cookies work."""
        return self.scheme == "https" or self.domain == LOCAL_DOMAIN

    def make_host(self, preview: PreviewPort) -> str:
        return f"{preview.label}.{self.domain}" + (f":{self.port}" if self.port else "")

    def make_url(self, preview: PreviewPort, path: str = "/") -> str:
        return f"{self.scheme}://{self.make_host(preview)}{path}"

    def is_preview_host(self, host: str) -> bool:
        """Return whether a host name (without a port) belongs to previews."""
        host = host.removesuffix(".")
        return host.endswith(f".{self.domain}") and host != self.platform_host

    def parse_host(self, host: str) -> PreviewPort | None:
        """Parse the host name of a preview. None if it is invalid."""
        match = _LABEL.fullmatch(host.removesuffix(".").removesuffix(f".{self.domain}"))
        if match is None or not is_port(int(match.group(1))):
            return None
        return PreviewPort(_ID_PREFIX + match.group(2), int(match.group(1)))

    def is_same_sandbox(self, origin: str, preview: PreviewPort) -> bool:
        """Return whether a page of this origin belongs to the same sandbox, on any port."""
        match = _ORIGIN.fullmatch(origin)
        if match is None or match.group(1).lower() != self.scheme or not self.is_preview_host(match.group(2).lower()):
            return False
        other = self.parse_host(match.group(2).lower())
        return other is not None and other.sandbox_id == preview.sandbox_id


def _list_platform_origins(settings: PlatformSettings) -> tuple[str, ...]:
    """Return the origins of the platform's pages. Empty if the address is an IPv6 address, which a Content-Security-Policy cannot
    contain."""
    own = urlsplit(settings.url)
    hosts = () if settings.public_url and not is_loopback(settings.host) else ("localhost", "127.0.0.1")
    if "[" in own.netloc and settings.host != "::":
        return ()
    origins = [] if "[" in own.netloc else [f"{own.scheme}://{own.netloc.rpartition('@')[2]}".lower()]
    return tuple(dict.fromkeys([*origins, *(f"http://{host}:{settings.port}" for host in hosts)]))


def list_frame_sources(settings: PlatformSettings) -> str:
    """Return the sources of a Content-Security-Policy's `frame-src` for pages that show previews in frames."""
    addresses = Addresses.from_settings(settings)
    if addresses is None:
        return "'none'"
    return f"{addresses.scheme}://*.{addresses.domain}" + (f":{addresses.port}" if addresses.port else "")


def require_addresses(addresses: Addresses | None) -> Addresses:
    if addresses is None:
        raise UnsupportedError(
            "Previews are not available: the operator must set SANDYARD_PREVIEW_DOMAIN to a domain whose subdomains all point "
            "to the platform."
        )
    return addresses


def is_port(port: int) -> bool:
    """Return whether the port may be previewed."""
    return 0 < port < 65536 and port != AGENT_PORT


def check_port(port: int) -> None:
    """Raise InvalidInputError if the port cannot be previewed."""
    if not is_port(port):
        raise InvalidInputError(
            f"port: {port} cannot be previewed. Use a port from 1 to 65535 that a server listens on."
        )


def check_path(path: str) -> str:
    """Return the path to open. Raises InvalidInputError if it is not valid."""
    if not path.startswith("/") or not path.isascii() or not path.isprintable() or re.search(r"[\\\s#]", path):
        raise InvalidInputError(
            "path: must start with '/' and must not contain spaces, backslashes, '#' or characters that need encoding."
        )
    return path
