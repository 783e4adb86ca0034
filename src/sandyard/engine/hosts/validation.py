"""Validate the names and addresses of hosts, which administrators and hosts send."""

from __future__ import annotations

import ipaddress
import re

from sandyard.kit.errors import InvalidInputError

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?")


def validate_name(name: str) -> str:
    """Return the name of a host. Raises InvalidInputError."""
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"{name[:70]!r} is not a valid name for a host: use up to 63 letters, digits, '.', '_' and '-'."
        )
    return name


def validate_address(address: str) -> str:
    """Return an IP address or a host name without a port. Raises InvalidInputError."""
    plain = address.removeprefix("[").removesuffix("]")
    try:
        parsed = ipaddress.ip_address(plain)
    except ValueError:
        if not _HOST_NAME.fullmatch(plain) or plain.rpartition(".")[2].isdigit():
            raise InvalidInputError(f"{address[:70]!r} is not an IP address or a host name.") from None
        return plain
    if parsed.is_unspecified or parsed.is_multicast:
        raise InvalidInputError(f"{address} is not the address of a single machine.")
    return str(parsed)


def validate_port(port: int) -> int:
    """Return a port. Raises InvalidInputError."""
    if not 0 < port < 65536:
        raise InvalidInputError("The port of a host must be from 1 to 65535.")
    return port
