"""The subnet of one instance: chosen from free ones, reserved in the kernel, remembered on disk.

A reservation consists of a blackhole route for the whole subnet, so that others see from the routes that it is taken
and packets to addresses without a sandbox are dropped, and a local route for its first address, whose priority is the
instance's number. That address is the gateway and name server of all its sandboxes. The kernel's state takes precedence
over the file, which is for reboots. Earlier versions had the address on `lo`, with a label: `reserve` replaces it.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.links import LOOPBACK, Link, Route
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.netlink import Netlink, NetlinkError

log = logging.getLogger(__name__)

_PREFIX = 20  # 4,093 sandboxes
_SHARED_SPACE = IPv4Network("100.64.0.0/10")  # reserved for carriers, so rarely used by companies or homes
_POOLS = (_SHARED_SPACE, IPv4Network("172.16.0.0/12"), IPv4Network("10.0.0.0/8"))
_LOCK_ADDRESS = "\0sandyard.network.subnet"
_LOCK_TIMEOUT_S = 10.0


class NoSubnetError(Exception):
    """No subnet is available; the message contains the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Subnet:
    network: IPv4Network

    @property
    def gateway(self) -> IPv4Address:
        return self.network[1]

    @property
    def capacity(self) -> int:
        """How many sandboxes fit. Their indexes are below this number."""
        return self.network.num_addresses - 3

    def get_address(self, index: int) -> IPv4Address:
        return self.network[2 + index]


def reserve(netlink: Netlink, names: Names, file: Path, wanted: str | None, in_use: bool) -> Subnet:
    """Return the instance's subnet: its current one, otherwise the remembered one, otherwise a free one. Idempotent.
    Blocks.

    A new `wanted` subnet takes effect only if no sandbox uses the old one (`in_use`).
    """
    with _lock_namespace():
        reserved = find_reserved(netlink, names)
        choice = _parse_subnet(wanted) if wanted else None
        if reserved and (in_use or choice is None or choice == reserved):
            subnet = reserved
        else:
            release(netlink, names)
            subnet = _claim(netlink, names, _list_candidates(choice, file, names))
        release(netlink, names, keep=subnet)
        _add_gateway(netlink, names, subnet)
    file.parent.mkdir(parents=True, exist_ok=True)
    text = f"{subnet.network}\n"
    if not file.exists() or file.read_text() != text:  # avoids a write, which could fail on a full disk
        file.write_text(text)
    return subnet


def find_reserved(netlink: Netlink, names: Names) -> Subnet | None:
    """Return the subnet this instance holds in the kernel, if both parts of the reservation exist."""
    routes = links.list_routes(netlink)
    gateways = _find_gateways(netlink, names, routes)
    for route in routes:
        if route.blackhole and route.network.num_addresses > 3 and route.network[1] in gateways:
            return Subnet(route.network)
    return None


def _find_gateways(netlink: Netlink, names: Names, routes: list[Route]) -> set[IPv4Address]:
    """Return the gateways that this instance has reserved, in the current way or that of earlier versions."""
    labelled = {item.address for item in links.list_addresses(netlink) if item.label == names.label}
    return labelled | {route.network[0] for route in routes if route.local and route.priority == names.group}


def _add_gateway(netlink: Netlink, names: Names, subnet: Subnet) -> None:
    """Make the gateway local with a route, also if an earlier version has it on `lo`. Idempotent."""
    with suppress(NetlinkError):
        netlink.request(links.delete_address(LOOPBACK, subnet.gateway))
    try:
        netlink.request(links.add_local(subnet.gateway, names.group))
    except NetlinkError as error:
        if error.errno != errno.EEXIST:
            raise


def release(netlink: Netlink, names: Names, keep: Subnet | None = None) -> None:
    """Release every reservation of this instance, except one. Idempotent."""
    routes = links.list_routes(netlink)
    for gateway in _find_gateways(netlink, names, routes):
        if keep and gateway == keep.gateway:
            continue
        for route in routes:
            if route.blackhole and route.network.num_addresses > 3 and route.network[1] == gateway:
                with suppress(NetlinkError):
                    netlink.request(links.delete_blackhole(route.network))
        for message in (links.delete_local(gateway, names.group), links.delete_address(LOOPBACK, gateway)):
            with suppress(NetlinkError):
                netlink.request(message)


def _parse_subnet(text: str) -> Subnet:
    try:
        subnet = Subnet(IPv4Network(text.strip()))
    except ValueError as error:
        raise NoSubnetError(f"the setting for the sandboxes' subnet is not an IPv4 network: {error}") from error
    if not 16 <= subnet.network.prefixlen <= 28:
        raise NoSubnetError(f"the sandboxes' subnet {text} must be between a /16 and a /28")
    return subnet


def _list_candidates(choice: Subnet | None, file: Path, names: Names) -> Iterator[Subnet]:
    """Yield only the operator's choice if there is one, otherwise the remembered subnet and then all others."""
    if choice:
        yield choice
        return
    with suppress(OSError, NoSubnetError):
        yield _parse_subnet(file.read_text())
    for pool in _POOLS:
        count = 1 << (_PREFIX - pool.prefixlen)
        # Each instance starts at a different position, so that after a reboot a new one rarely takes what an old one
        # remembers.
        start = names.group // 2 % count
        for number in range(count):
            base = int(pool.network_address) + (((start + number) % count) << (32 - _PREFIX))
            yield Subnet(IPv4Network((base, _PREFIX)))


def _claim(netlink: Netlink, names: Names, candidates: Iterator[Subnet]) -> Subnet:
    """Reserve the first free candidate and return it. Raises NoSubnetError."""
    all_links = links.list_links(netlink)
    routes = links.list_routes(netlink)
    own_links = {link.index for link in all_links if link.name.startswith(names.prefix)}
    reason = "every candidate overlaps with a route of this host"
    for subnet in candidates:
        if _is_taken(subnet.network, routes, own_links, all_links):
            continue
        try:
            netlink.request(links.add_blackhole(subnet.network))
            netlink.request(links.add_local(subnet.gateway, names.group))
        except NetlinkError as error:
            with suppress(NetlinkError):
                netlink.request(links.delete_blackhole(subnet.network))
            if error.errno != errno.EEXIST:
                raise
            reason = f"{subnet.network} was taken at the same moment"
            continue
        return subnet
    raise NoSubnetError(f"no free subnet for the sandboxes: {reason}. Set one in the setting `subnet`")


def _is_taken(network: IPv4Network, routes: list[Route], own_links: Collection[int], all_links: list[Link]) -> bool:
    # Tailscale's firewall rules drop everything from this space that is not its own.
    if network.overlaps(_SHARED_SPACE) and any(link.name.startswith("tailscale") for link in all_links):
        return True
    # A default route, even if split in halves by a VPN, covers everything and is ignored.
    return any(
        route.network.prefixlen > 1 and route.index not in own_links and route.network.overlaps(network)
        for route in routes
    )


@contextmanager
def _lock_namespace() -> Iterator[None]:
    """Let one engine of this network namespace run at a time: an abstract socket is visible in all of it and nowhere
    else."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as lock:
        deadline = time.monotonic() + _LOCK_TIMEOUT_S
        while True:
            try:
                lock.bind(_LOCK_ADDRESS)
                break
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if time.monotonic() > deadline:
                # Anybody can hold this name. Continue: two engines that pick the same subnet still exclude each other,
                # because the kernel adds a route only once.
                log.warning("network_subnet_lock_held")
                break
            time.sleep(0.005)
        yield
