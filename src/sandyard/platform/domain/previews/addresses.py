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

LOCAL = "localhost"
"""Browsers resolve every name below it to their own machine, without DNS."""
_PREFIX = "sbx_"
_LABEL = re.compile(r"([1-9][0-9]{0,4})-([0-9a-z]{1,56})")  # host names must not contain underscores
_ORIGIN = re.compile(r"(https?)://([0-9a-z.-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Place:
    """One port of one sandbox."""

    sandbox_id: str
    port: int

    @property
    def label(self) -> str:
        return f"{self.port}-{self.sandbox_id.removeprefix(_PREFIX)}"


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where previews are served. `port` None: the scheme's default. `own`: the platform's host name, which may be below
    the domain."""

    scheme: str
    domain: str
    port: int | None
    own: str | None = None

    @classmethod
    def of(cls, settings: PlatformSettings) -> Addresses | None:
        """Return the addresses. None if the platform has a public host name but no preview domain is set."""
        public = urlsplit(settings.public_url) if settings.public_url else None
        name = (public.hostname or "").lower() if public else None
        scheme, port = (public.scheme, public.port) if public else ("http", settings.port)
        if settings.preview_domain is not None:
            domain, _, given = settings.preview_domain.partition(":")
            return cls(scheme, domain, int(given) if given else port, name)
        if name is None or is_loopback(name):
            return cls(scheme, LOCAL, port, name)
        return None

    @property
    def trusted(self) -> bool:
        """Whether browsers trust the origin as secure, so that secure cookies work."""
        return self.scheme == "https" or self.domain == LOCAL

    def host(self, place: Place) -> str:
        return f"{place.label}.{self.domain}" + (f":{self.port}" if self.port else "")

    def url(self, place: Place, path: str = "/") -> str:
        return f"{self.scheme}://{self.host(place)}{path}"

    def below(self, host: str) -> bool:
        """Return whether a host name (without a port) belongs to previews."""
        host = host.removesuffix(".")
        return host.endswith(f".{self.domain}") and host != self.own

    def place(self, host: str) -> Place | None:
        """Parse a host name below the domain."""
        match = _LABEL.fullmatch(host.removesuffix(".").removesuffix(f".{self.domain}"))
        if match is None or not is_port(int(match.group(1))):
            return None
        return Place(_PREFIX + match.group(2), int(match.group(1)))

    def of_same_sandbox(self, origin: str, place: Place) -> bool:
        """Return whether a page of this origin came from the same sandbox, on any port."""
        match = _ORIGIN.fullmatch(origin)
        if match is None or match.group(1).lower() != self.scheme or not self.below(match.group(2).lower()):
            return False
        other = self.place(match.group(2).lower())
        return other is not None and other.sandbox_id == place.sandbox_id


def list_frame_sources(settings: PlatformSettings) -> str:
    """Return the sources of a Content-Security-Policy's `frame-src` for pages that show previews in frames."""
    addresses = Addresses.of(settings)
    if addresses is None:
        return "'none'"
    return f"{addresses.scheme}://*.{addresses.domain}" + (f":{addresses.port}" if addresses.port else "")


def required(addresses: Addresses | None) -> Addresses:
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
