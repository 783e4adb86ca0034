"""Restrict connections to user-supplied addresses: only the public internet and hosts that an administrator has listed are allowed.

Without this check, a user could make this process connect to services behind its firewall. A name is resolved once, all its addresses are
checked, and the connection is made to one of the checked addresses, so changing the DNS record afterwards (DNS rebinding) has no effect.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import getproxies_environment, proxy_bypass

from sandyard.kit import dns_lookup
from sandyard.kit.dns_lookup import Address
from sandyard.kit.errors import ForbiddenError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_NEVER_PUBLIC = tuple(map(ipaddress.ip_network, ("192.0.0.0/24", "fec0::/10", "::/96", "::ffff:0:0:0/96")))
"""Networks that `is_global` of some Python versions considers public: protocol assignments, former site-local and IPv4-compatible
addresses."""
ROUTES_FILE, IPV6_ADDRESSES_FILE = Path("/proc/net/fib_trie"), Path("/proc/net/if_inet6")
_REREAD_SECONDS = 5.0
_ROUTE = re.compile(r"\|-- (?P<address>[0-9.]+)\n(?P<kinds>(?:\s+/\d+ .*\n)+)")
_ATTACHED = re.compile(r"/(\d+) (link UNICAST|host LOCAL)")


class PrivateAddressError(ForbiddenError):
    """This address is in a private network."""

    code = "private_address"


class Destinations:
    """The addresses that may be connected to. `private` lists names (`git.corp.example`, `*.corp.example`), addresses and networks
    (`10.1.0.0/16`) that are allowed although they are not public. Raises ValueError for any other entry."""

    def __init__(self, private: Sequence[str] = ()) -> None:
        self._networks: list[Network] = []
        self._names: set[str] = set()
        for entry in private:
            try:
                self._networks.append(ipaddress.ip_network(entry.strip("[]"), strict=False))
            except ValueError:
                if not entry or "/" in entry or ":" in entry or "*" in entry.removeprefix("*."):
                    raise ValueError(f"{entry!r} is not a host name, address or network") from None
                self._names.add(entry.lower())

    def check_name(self, host: str) -> None:
        """Raise PrivateAddressError if `host` is private. Only checks what is known without DNS: addresses and the name localhost."""
        if self._is_listed(host):
            return
        try:
            addresses = [ipaddress.ip_address(host.strip("[]"))]
        except ValueError:
            if host.lower() == "localhost" or host.lower().endswith(".localhost"):
                raise _make_error(host) from None
            return
        self._check_addresses(host, addresses)

    def check_entry(self, entry: str) -> None:
        """Raise PrivateAddressError if a name, an address or a network is private."""
        try:
            network = ipaddress.ip_network(entry.strip("[]"), strict=False)
        except ValueError:
            self.check_name(entry)
            return
        listed = any(network[0] in known and network[-1] in known for known in self._networks)
        attached = any(network.version == own.version and network.overlaps(own) for own in list_attached_networks())
        if not listed and (attached or not (is_public(network[0]) and is_public(network[-1]))):
            raise _make_error(entry)

    async def resolve(self, host: str) -> list[str]:
        """Return the addresses of `host` that may be connected to. Raises PrivateAddressError if one is private and OSError if there are
        none."""
        addresses = await dns_lookup.look_up(host.strip("[]"))
        if not self._is_listed(host):
            self._check_addresses(host, addresses)
        return [str(address) for address in dict.fromkeys(addresses)]

    def _is_listed(self, host: str) -> bool:
        name = host.lower().rstrip(".")
        return name in self._names or any(
            f"*{name[at:]}" in self._names for at, character in enumerate(name) if character == "."
        )

    def _check_addresses(self, host: str, addresses: Sequence[Address]) -> None:
        for address in addresses:
            listed = any(address in network for network in self._networks)
            if not listed and not is_public(address):
                raise _make_error(host)


def is_public(address: Address) -> bool:
    """Return whether an address is on the public internet, together with every IPv4 address that a gateway would translate it to.
    Addresses of this machine and its directly attached networks are not public: connections from here bypass the firewall in front of
    them."""
    private = [*_NEVER_PUBLIC, *list_attached_networks()]
    return all(
        equivalent.is_global and not equivalent.is_multicast and not any(equivalent in network for network in private)
        for equivalent in list_equivalent_addresses(address)
    )


def is_own(address: Address) -> bool:
    """Return whether an address, or an IPv4 address that a gateway would translate it to, is one of this machine."""
    own = _read_attached(ROUTES_FILE, IPV6_ADDRESSES_FILE, time.monotonic() // _REREAD_SECONDS).own
    return any(
        equivalent.is_loopback or equivalent.is_unspecified or any(equivalent in network for network in own)
        for equivalent in list_equivalent_addresses(address)
    )


def list_attached_networks() -> Sequence[Network]:
    """Return the public addresses of this machine and the public networks it reaches without a router. Cached for a few seconds."""
    return _read_attached(ROUTES_FILE, IPV6_ADDRESSES_FILE, time.monotonic() // _REREAD_SECONDS).public


@dataclass(frozen=True, slots=True)
class _Attached:
    """`own`: this machine's addresses. `public`: those of them, and of the networks it reaches without a router, that look public."""

    own: Sequence[Network]
    public: Sequence[Network]


@functools.lru_cache(maxsize=1)
def _read_attached(routes: Path, ipv6_addresses: Path, _cache_key: float) -> _Attached:
    own, attached = list[Network](), list[Network]()
    for network, is_local in _parse_attached(routes, ipv6_addresses):
        (own if is_local else attached).append(network)
    return _Attached(own, [network for network in (*own, *attached) if network.is_global])


def _parse_attached(routes: Path, ipv6_addresses: Path) -> Iterator[tuple[Network, bool]]:
    """Yield networks, and whether all of their addresses are this machine's own."""
    for route in _ROUTE.finditer(_read(routes)):
        for length, kind in _ATTACHED.findall(route["kinds"]):
            yield ipaddress.IPv4Network((route["address"], int(length)), strict=False), kind == "host LOCAL"
    for line in _read(ipv6_addresses).splitlines():
        address, _, length = line.split()[:3]
        packed = bytes.fromhex(address)
        yield ipaddress.IPv6Network((packed, 128)), True
        yield ipaddress.IPv6Network((packed, int(length, 16)), strict=False), False


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # a kernel without IPv6, or a system without /proc
        return ""


def is_proxied(scheme: str, host: str) -> bool:
    """Return whether connections to this host go through a proxy from the environment. The proxy then resolves the name, so it cannot be
    checked here."""
    proxies = getproxies_environment()
    return bool(proxies.get(scheme) or proxies.get("all")) and not proxy_bypass(host)


def list_equivalent_addresses(address: Address) -> list[Address]:
    """Return the address and the IPv4 addresses that are embedded in it."""
    if isinstance(address, ipaddress.IPv4Address):
        return [address]
    within = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _NAT64):
        within.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [address, *(network for network in within if network is not None)]


def _make_error(host: str) -> PrivateAddressError:
    return PrivateAddressError(
        f"{host[:200]} is in a private network or a network of this machine. Only administrators may use it, unless the host is listed in "
        "SANDYARD_PRIVATE_HOSTS."
    )
