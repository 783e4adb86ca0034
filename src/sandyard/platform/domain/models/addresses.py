"""Provider addresses: who may set them, and which server a key belongs to.

The platform connects to a provider from its own network. An administrator may set any address, such as a model on the same machine or
network; a project's owner only one on the public internet, over https.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

import httpx

from sandyard.kit import dns_lookup
from sandyard.kit.destinations import is_public
from sandyard.kit.dns_lookup import Address
from sandyard.kit.errors import ForbiddenError, InvalidInputError
from sandyard.platform.domain.users.model import Principal

MAX_LENGTH = 1000


async def normalize(caller: Principal, base_url: str) -> str:
    """Return the address in the form that is stored. Raises InvalidInputError, and ForbiddenError if only an administrator may set it."""
    parts = _parse_url(base_url)
    normalized = f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
    if caller.is_admin:
        return normalized
    if parts.scheme != "https":
        raise ForbiddenError("Only an administrator may use an http:// URL. Use https://.")
    for address in await _resolve(parts.hostname or ""):
        if not is_public(address):
            raise ForbiddenError(
                "This URL is in a private network, which only an administrator may use. Ask an administrator to add this provider."
            )
    return normalized


def get_server(base_url: str) -> str:
    """Return scheme, host and port. A key is only sent to the server it was entered for."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_local(base_url: str) -> bool:
    """Return whether the address is on this machine, so that no proxy is used."""
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _parse_url(base_url: str) -> SplitResult:
    text = base_url.strip()
    if len(text) > MAX_LENGTH or not text.isascii() or any(letter <= " " or letter == "\x7f" for letter in text):
        raise InvalidInputError(
            f"The URL of a provider must have at most {MAX_LENGTH} ASCII characters without spaces."
        )
    try:
        httpx.URL(text)
        parts = urlsplit(text)
        port = parts.port
    except (ValueError, httpx.InvalidURL):
        raise InvalidInputError("This is not a valid provider URL. Example: https://api.example.org") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "\\" in text:
        raise InvalidInputError("This is not a valid provider URL. Example: https://api.example.org")
    if "@" in parts.netloc:
        raise InvalidInputError("Remove the part before the @ from the URL, and enter the key separately.")
    if parts.query or parts.fragment:
        raise InvalidInputError("The URL of a provider must not contain '?' or '#'.")
    return parts


async def _resolve(host: str) -> list[Address]:
    try:
        return await dns_lookup.look_up(host)
    except OSError:
        raise InvalidInputError(f"The host {host[:200]} of this URL was not found.") from None
