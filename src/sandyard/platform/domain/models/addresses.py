"""Where a provider may be: who may say so, and which server its key was given for.

Whoever names an address has the platform speak to it from where the platform is. An administrator may name any, as that of a model on
the same machine or network; the owner of a project only one on the public internet, over https.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import SplitResult, urlsplit

import httpx

from sandyard.kit import names
from sandyard.kit.destinations import is_public
from sandyard.kit.errors import ForbiddenError, InvalidInputError
from sandyard.kit.names import Address
from sandyard.platform.domain.users.model import Principal

LONGEST = 1000


async def clean(caller: Principal, base_url: str) -> str:
    """The address as it is stored. InvalidInputError; ForbiddenError for one that only an administrator may name."""
    parts = _parsed(base_url)
    stored = f"{parts.scheme}://{parts.netloc.lower()}{parts.path.rstrip('/')}"
    if caller.is_admin:
        return stored
    if parts.scheme != "https":
        raise ForbiddenError("Only an administrator may name an address that begins with http://. Use https://.")
    for address in await _addresses(parts.hostname or ""):
        if not is_public(address):
            raise ForbiddenError(
                "This address is in a private network, which only an administrator may let the platform speak to. Ask one to add this "
                "provider."
            )
    return stored


def server(base_url: str) -> str:
    """Scheme, host and port: all that a key is good for."""
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}".lower()


def is_local(base_url: str) -> bool:
    """On this machine: no proxy leads there."""
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _parsed(base_url: str) -> SplitResult:
    text = base_url.strip()
    if len(text) > LONGEST or not text.isascii() or any(letter <= " " or letter == "\x7f" for letter in text):
        raise InvalidInputError(
            f"The address of a provider has at most {LONGEST} characters, and no spaces or letters with accents."
        )
    try:
        httpx.URL(text)
        parts = urlsplit(text)
        port = parts.port
    except (ValueError, httpx.InvalidURL):
        raise InvalidInputError(
            "This is not the address of a provider: it looks like https://api.example.org"
        ) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or "\\" in text:
        raise InvalidInputError("This is not the address of a provider: it looks like https://api.example.org")
    if "@" in parts.netloc:
        raise InvalidInputError("Leave out what stands before the @ in the address, and give the key as the key.")
    if parts.query or parts.fragment:
        raise InvalidInputError("The address of a provider has no '?' and no '#' in it.")
    return parts


async def _addresses(host: str) -> list[Address]:
    try:
        return await names.look_up(host)
    except OSError:
        raise InvalidInputError(f"The host {host[:200]} of this address cannot be found.") from None
