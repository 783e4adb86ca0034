"""Resolve untrusted host names.

The event loop resolves names in a small thread pool that the whole process shares. A name whose server never answers blocks a thread for
half a minute, so a handful of them would stop all lookups. Here the name servers are queried directly, without threads.
"""

from __future__ import annotations

import ipaddress
import socket
from pathlib import Path

import dns.asyncresolver
import dns.exception

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
LOOKUP_SECONDS = 10.0
HOSTS_FILE = Path("/etc/hosts")
_LOOPBACK: tuple[Address, ...] = (ipaddress.IPv4Address("127.0.0.1"), ipaddress.IPv6Address("::1"))


async def look_up(host: str) -> list[Address]:
    """Return the addresses of a host, IPv4 first. Raises OSError if it has none or no name server answers within LOOKUP_SECONDS.

    Uses /etc/hosts and the name servers of /etc/resolv.conf, but no other sources that the system may be configured with.
    """
    host = host.rstrip(".")
    return _parse_address(host) or _look_up_local(host) or await query_name_servers(host)


def _parse_address(host: str) -> list[Address]:
    """Return the address if `host` is one, also in legacy notation (127.1, 2130706433)."""
    try:
        return [ipaddress.ip_address(host.partition("%")[0])]
    except ValueError:
        pass
    try:
        return [ipaddress.IPv4Address(socket.inet_aton(host))]
    except (OSError, UnicodeError):
        return []


def _look_up_local(host: str) -> list[Address]:
    name = host.lower()
    if name == "localhost" or name.endswith(".localhost"):
        return list(_LOOPBACK)
    try:
        lines = HOSTS_FILE.read_text(errors="replace").splitlines()
    except OSError:
        return []
    entries = (line.partition("#")[0].lower().split() for line in lines)
    return [found for words in entries if name in words[1:] for found in _parse_address(words[0])]


async def query_name_servers(host: str) -> list[Address]:
    try:
        resolver = dns.asyncresolver.Resolver()
        resolver.use_search_by_default = True
        answers = await resolver.resolve_name(host, lifetime=LOOKUP_SECONDS)
        found = [ipaddress.ip_address(address) for address in answers.addresses()]
    except (dns.exception.DNSException, UnicodeError, ValueError) as error:
        raise OSError(f"{host[:200]!r} could not be resolved: {type(error).__name__}") from None
    return sorted(found, key=lambda address: address.version)
