"""Network namespaces for processes under test, each connected with this machine by a cable that can be cut."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.syscalls import create_network_namespace, enter_network_namespace

_NETWORK = IPv4Address("198.19.0.0")  # reserved for tests of network devices
_FIRST_GROUP = 0x53590000


class Cable:
    """A namespace at the other end of a veth pair, which disappears with its last process after `close`. `near` is the
    address of this machine's end, `far` that in the namespace."""

    def __init__(self, number: int) -> None:
        """`number`: different for the cables of one process."""
        first = _NETWORK + 4 * ((os.getpid() * 8 + number) % 0x3FFF)
        self.near, self.far = first + 1, first + 2
        self._group = _FIRST_GROUP + os.getpid() * 8 + number
        name = f"syt{os.getpid()}-{number}"[-15:]
        home = _open_current_namespace()
        try:
            create_network_namespace()
            self._namespace = _open_current_namespace()
        finally:
            enter_network_namespace(home)
            os.close(home)
        with Netlink() as netlink:
            near = links.Peer(name, _make_mac(number, 1), group=self._group)
            far = links.Peer("eth0", _make_mac(number, 2), namespace=self._namespace)
            netlink.request(links.create_veth(near, far, 1500))
            near_index = socket.if_nametoindex(name)
            netlink.request(links.bring_up(near_index), links.add_address(near_index, self.near, 30))
        with self._inside() as netlink:
            self._far_index = socket.if_nametoindex("eth0")
            netlink.request(links.bring_up(links.LOOPBACK), links.add_address(self._far_index, self.far, 30))
            self._connect(netlink)

    @property
    def namespace(self) -> Path:
        """The path by which other processes find the namespace."""
        return Path(f"/proc/{os.getpid()}/fd/{self._namespace}")

    @contextlib.contextmanager
    def cut(self) -> Iterator[None]:
        """Let no packet through while the block runs. The near end stays up: packets would take another way otherwise."""
        with self._inside() as netlink:
            netlink.request(links.take_down(self._far_index))
        yield
        with self._inside() as netlink:
            self._connect(netlink)

    @contextlib.contextmanager
    def _inside(self) -> Iterator[Netlink]:
        """Provide a connection to the kernel for the namespace at the far end."""
        home = _open_current_namespace()
        enter_network_namespace(self._namespace)
        try:
            with Netlink() as netlink:
                yield netlink
        finally:
            enter_network_namespace(home)
            os.close(home)

    def _connect(self, netlink: Netlink) -> None:
        netlink.request(links.bring_up(self._far_index), links.add_default_route(self.near, self._far_index))

    def close(self) -> None:
        with Netlink() as netlink:
            netlink.request(links.delete_group(self._group))
        os.close(self._namespace)


def _open_current_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _make_mac(number: int, end: int) -> bytes:
    return bytes((2, 0, *os.getpid().to_bytes(3, "big")[-2:], number, end))
