"""Interfaces, addresses, routes and neighbours, in the kernel's own terms (rtnetlink).

Functions that return a `Message` send nothing: `Netlink.request` does.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from sandyard.engine.drivers.machine.net.netlink import (
    CREATE,
    EXCLUSIVE,
    REPLACE,
    Message,
    Netlink,
    pack_attribute,
    pack_nested,
    pack_text,
    pack_u32,
    parse_attributes,
)

_LINK = struct.Struct("=BxHiII")  # family, type, index, flags, change
_ADDRESS = struct.Struct("=BBBBi")  # family, prefix length, flags, scope, index
_ROUTE = struct.Struct("=BBBBBBBBI")  # family, dst len, src len, tos, table, protocol, scope, type, flags
_NEIGHBOUR = struct.Struct("=BxHiHBB")  # family, index, state, flags, type

_NEWLINK, _DELLINK, _GETLINK, _SETLINK = 16, 17, 18, 19
_NEWADDR, _DELADDR, _GETADDR = 20, 21, 22
_NEWROUTE, _DELROUTE, _GETROUTE = 24, 25, 26
_NEWNEIGH = 28

_IFLA_ADDRESS, _IFLA_IFNAME, _IFLA_MTU, _IFLA_TXQLEN, _IFLA_LINKINFO, _IFLA_NUM_TX_QUEUES = 1, 3, 4, 13, 18, 31
_IFLA_AF_SPEC, _IFLA_GROUP, _IFLA_NET_NS_FD, _IFLA_GSO_MAX_SEGS = 26, 27, 28, 40
_INET6_ADDR_GEN_MODE, _GENERATE_NONE = 8, 1
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL, _IFA_LABEL = 1, 2, 3
_RTA_DST, _RTA_OIF, _RTA_GATEWAY, _RTA_PRIORITY = 1, 4, 5, 6
_NDA_DST, _NDA_LLADDR = 1, 2
_UP = 1
_PERMANENT = 0x80
_TABLE_MAIN, _TABLE_LOCAL, _PROTOCOL_BOOT = 254, 255, 3
_SCOPE_UNIVERSE, _SCOPE_LINK, _SCOPE_HOST = 0, 253, 254
_UNICAST, _LOCAL, _BLACKHOLE = 1, 2, 6
_AF = socket.AF_INET

LOOPBACK = 1  # the index of `lo`, in every namespace


@dataclass(frozen=True, slots=True)
class Link:
    index: int
    name: str
    mtu: int


@dataclass(frozen=True, slots=True)
class Peer:
    """One end of a veth pair. `index` 0 lets the kernel choose; `namespace` is a descriptor, None for the current
    one."""

    name: str
    mac: bytes
    index: int = 0
    group: int = 0
    namespace: int | None = None


@dataclass(frozen=True, slots=True)
class Address:
    index: int  # of the interface
    address: IPv4Address
    network: IPv4Network  # the network it is connected to
    label: str


@dataclass(frozen=True, slots=True)
class Route:
    network: IPv4Network
    index: int  # the interface of the route, 0 if it has none
    blackhole: bool
    local: bool = False  # its addresses are the host's own
    priority: int = 0


def create_veth(here: Peer, there: Peer, mtu: int) -> Message:
    """Create a pair, both ends down."""
    peer = _pack_end(there, mtu)
    info = pack_nested(
        _IFLA_LINKINFO, pack_text(_INFO_KIND, "veth"), pack_nested(_INFO_DATA, pack_attribute(_VETH_PEER, peer))
    )
    return Message(_NEWLINK, _pack_end(here, mtu) + info, CREATE | EXCLUSIVE)


def _pack_end(peer: Peer, mtu: int) -> bytes:
    parts = [
        _LINK.pack(0, 0, peer.index, 0, 0),
        pack_text(_IFLA_IFNAME, peer.name),
        pack_attribute(_IFLA_ADDRESS, peer.mac),
        pack_u32(_IFLA_MTU, mtu),
        pack_u32(_IFLA_GROUP, peer.group),
    ]
    if peer.namespace is not None:
        parts.append(pack_u32(_IFLA_NET_NS_FD, peer.namespace))
    return b"".join(parts)


def bring_up(index: int) -> Message:
    return Message(_NEWLINK, _LINK.pack(0, 0, index, _UP, _UP))


def take_down(index: int) -> Message:
    return Message(_SETLINK, _LINK.pack(0, 0, index, 0, _UP))


def wait_until_ready(index: int) -> Message:
    """Wait until the interface can send. The kernel (6.8 or later) ensures that before it answers this; otherwise it
    happens shortly after both ends of a veth pair are up, and earlier packets are lost."""
    return Message(_GETLINK, _LINK.pack(0, 0, index, 0, 0))


def disable_ipv6(index: int) -> Message:
    """Prevent the interface, still down, from getting an IPv6 address. EAFNOSUPPORT on a kernel without IPv6."""
    mode = pack_attribute(_INET6_ADDR_GEN_MODE, bytes([_GENERATE_NONE]))
    return Message(
        _SETLINK, _LINK.pack(0, 0, index, 0, 0) + pack_nested(_IFLA_AF_SPEC, pack_nested(socket.AF_INET6, mode))
    )


def disable_segmentation_offload(index: int) -> Message:
    """Let the kernel split data into packets of the MTU before it sends them, for a receiver that forwards them."""
    return Message(_SETLINK, _LINK.pack(0, 0, index, 0, 0) + pack_u32(_IFLA_GSO_MAX_SEGS, 1))


def set_group(index: int, group: int) -> Message:
    return Message(_SETLINK, _LINK.pack(0, 0, index, 0, 0) + pack_u32(_IFLA_GROUP, group))


def delete_group(group: int) -> Message:
    """Delete every interface of the group at once: the kernel waits for its readers once, not for each. ENODEV if it is
    empty."""
    return Message(_DELLINK, _LINK.pack(0, 0, 0, 0, 0) + pack_u32(_IFLA_GROUP, group))


def add_address(index: int, address: IPv4Address, prefix: int = 32, label: str | None = None) -> Message:
    """Add an address. EEXIST if the interface already has it."""
    return Message(_NEWADDR, _pack_address(index, address, prefix, label), CREATE | EXCLUSIVE)


def delete_address(index: int, address: IPv4Address, prefix: int = 32) -> Message:
    return Message(_DELADDR, _pack_address(index, address, prefix, None))


def _pack_address(index: int, address: IPv4Address, prefix: int, label: str | None) -> bytes:
    scope = _SCOPE_HOST if index == LOOPBACK else _SCOPE_UNIVERSE
    parts = [
        _ADDRESS.pack(_AF, prefix, 0, scope, index),
        pack_attribute(_IFA_LOCAL, address.packed),
        pack_attribute(_IFA_ADDRESS, address.packed),
    ]
    if label:
        parts.append(pack_text(_IFA_LABEL, label))
    return b"".join(parts)


def add_route(address: IPv4Address, index: int) -> Message:
    """Route the address to that interface; replaces an older route."""
    header = _ROUTE.pack(_AF, 32, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, _SCOPE_LINK, _UNICAST, 0)
    return Message(
        _NEWROUTE, header + pack_attribute(_RTA_DST, address.packed) + pack_u32(_RTA_OIF, index), CREATE | REPLACE
    )


def add_default_route(gateway: IPv4Address, index: int) -> Message:
    header = _ROUTE.pack(_AF, 0, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, _SCOPE_UNIVERSE, _UNICAST, 0)
    return Message(
        _NEWROUTE, header + pack_attribute(_RTA_GATEWAY, gateway.packed) + pack_u32(_RTA_OIF, index), CREATE | EXCLUSIVE
    )


def add_blackhole(network: IPv4Network) -> Message:
    """Drop packets to the network unless there is a more specific route. EEXIST if it already exists."""
    return Message(_NEWROUTE, _pack_blackhole(network), CREATE | EXCLUSIVE)


def delete_blackhole(network: IPv4Network) -> Message:
    return Message(_DELROUTE, _pack_blackhole(network))


def _pack_blackhole(network: IPv4Network) -> bytes:
    header = _ROUTE.pack(_AF, network.prefixlen, 0, 0, _TABLE_MAIN, _PROTOCOL_BOOT, _SCOPE_UNIVERSE, _BLACKHOLE, 0)
    return header + pack_attribute(_RTA_DST, network.network_address.packed)


def add_local(address: IPv4Address, priority: int) -> Message:
    """Make the address local without adding it to an interface, so that programs that watch addresses do not notice
    (browsers drop their requests when one is added or removed). EEXIST if it already exists."""
    return Message(_NEWROUTE, _pack_local(address, priority), CREATE | EXCLUSIVE)


def delete_local(address: IPv4Address, priority: int) -> Message:
    return Message(_DELROUTE, _pack_local(address, priority))


def _pack_local(address: IPv4Address, priority: int) -> bytes:
    header = _ROUTE.pack(_AF, 32, 0, 0, _TABLE_LOCAL, _PROTOCOL_BOOT, _SCOPE_HOST, _LOCAL, 0)
    destination = pack_attribute(_RTA_DST, address.packed)
    return header + destination + pack_u32(_RTA_OIF, LOOPBACK) + pack_u32(_RTA_PRIORITY, priority)


def add_neighbour(address: IPv4Address, mac: bytes, index: int) -> Message:
    """Add a permanent entry: no ARP on the wire, and no use of the kernel's single table of about a thousand
    neighbours."""
    header = _NEIGHBOUR.pack(_AF, 0, index, _PERMANENT, 0, 0)
    return Message(
        _NEWNEIGH,
        header + pack_attribute(_NDA_DST, address.packed) + pack_attribute(_NDA_LLADDR, mac),
        CREATE | REPLACE,
    )


def list_links(netlink: Netlink) -> list[Link]:
    links = []
    for payload in netlink.dump(Message(_GETLINK, _LINK.pack(0, 0, 0, 0, 0))):
        found = parse_attributes(payload[_LINK.size :])
        name = found.get(_IFLA_IFNAME, b"").rstrip(b"\0").decode(errors="replace")
        mtu = struct.unpack("=I", found[_IFLA_MTU])[0] if _IFLA_MTU in found else 0
        links.append(Link(index=_LINK.unpack_from(payload)[2], name=name, mtu=mtu))
    return links


def list_queue_sizes(netlink: Netlink, kind: str) -> list[int]:
    """Return how many bytes the queues of each interface of this kind can hold."""
    sizes = []
    for payload in netlink.dump(Message(_GETLINK, _LINK.pack(0, 0, 0, 0, 0))):
        found = parse_attributes(payload[_LINK.size :])
        info = parse_attributes(found.get(_IFLA_LINKINFO, b""))
        if info.get(_INFO_KIND, b"").rstrip(b"\0") == kind.encode():
            length, mtu, queues = (
                struct.unpack("=I", found.get(name, bytes(4)))[0]
                for name in (_IFLA_TXQLEN, _IFLA_MTU, _IFLA_NUM_TX_QUEUES)
            )
            sizes.append(length * mtu * queues)
    return sizes


def list_addresses(netlink: Netlink) -> list[Address]:
    """Return every IPv4 address of this namespace."""
    result = []
    for payload in netlink.dump(Message(_GETADDR, _ADDRESS.pack(_AF, 0, 0, 0, 0))):
        family, prefix, _, _, index = _ADDRESS.unpack_from(payload)
        found = parse_attributes(payload[_ADDRESS.size :])
        if family != _AF or _IFA_ADDRESS not in found:
            continue
        network = IPv4Network((found[_IFA_ADDRESS], prefix), strict=False)
        address = IPv4Address(found.get(_IFA_LOCAL, found[_IFA_ADDRESS]))
        label = found.get(_IFA_LABEL, b"").rstrip(b"\0").decode(errors="replace")
        result.append(Address(index, address, network, label))
    return result


def list_routes(netlink: Netlink) -> list[Route]:
    """Return every IPv4 route of every table, including the kernel's own local ones."""
    routes = []
    for payload in netlink.dump(Message(_GETROUTE, _ROUTE.pack(_AF, 0, 0, 0, 0, 0, 0, 0, 0))):
        family, prefix, _, _, _, _, _, kind, _ = _ROUTE.unpack_from(payload)
        if family != _AF:
            continue
        found = parse_attributes(payload[_ROUTE.size :])
        index = struct.unpack("=i", found[_RTA_OIF])[0] if _RTA_OIF in found else 0
        network = IPv4Network((found.get(_RTA_DST, bytes(4)), prefix), strict=False)
        priority = struct.unpack("=I", found[_RTA_PRIORITY])[0] if _RTA_PRIORITY in found else 0
        routes.append(Route(network, index, kind == _BLACKHOLE, kind == _LOCAL, priority))
    return routes
