"""Network namespaces with a cable (veth pair) to the host, pinned in the file system so that they outlive the engine.

Each namespace has a number, its *index*: it names the pin, is part of the host's interface name, and is its position in
the subnet. Inside there are `lo` and `eth0` with one address and a default route; outside is an interface without an
address and a route to the inner one. Neither side uses ARP or IPv6 on the cable (`::1` works inside). The namespace
belongs to the initial user namespace, so that nobody in a sandbox, not even its root, can change it.

All functions block, and all must be called from one dedicated thread: creating a namespace means being in it for a
moment.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from sandyard.engine.drivers.namespace.net import links
from sandyard.engine.drivers.namespace.net.names import Names
from sandyard.engine.drivers.namespace.net.netlink import Netlink, NetlinkError
from sandyard.engine.drivers.namespace.net.syscalls import (
    bind_mount,
    detach,
    detached_proc,
    enter_network_namespace,
    new_network_namespace,
    private_tmpfs,
)

log = logging.getLogger(__name__)

_ETH0 = 64  # any index that no tunnel device, which some kernels add to every namespace, can have
_GENERATIONS = 8
_OUTSIDE_MAC = bytes.fromhex("025359000001")  # the same on every cable, because each has only two ends
_INSIDE = (
    ("ipv4/ping_group_range", b"0 2147483647"),  # ping without capabilities
    ("ipv4/ip_unprivileged_port_start", b"0"),  # a sandbox's root has no capability over its network either
)


@dataclass(frozen=True, slots=True)
class Cable:
    """The connection of a namespace; without one it has only its loopback."""

    address: IPv4Address
    gateway: IPv4Address
    mtu: int


class Namespaces:
    """The pinned namespaces of one instance. Call `open` first, in the thread that makes all other calls."""

    def __init__(self, pins: Path, names: Names) -> None:
        self.pins = pins
        self._names = names
        self._generation: dict[int, int] = {}
        self._home = -1
        self._sysctl = _Sysctl()

    def open(self) -> None:
        """Prepare the folder of pins. Idempotent."""
        self.pins.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.pins.is_mount():
            # A private mount: a process that forks sandboxes can drop a thousand pins from its mount namespace by
            # detaching it, and pins created later never appear there. It does not survive a reboot.
            private_tmpfs(self.pins)
        self._home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._netlink = Netlink()

    def close(self, remove: bool) -> None:
        """`remove` also removes the folder of pins, which must be empty by then."""
        if self._home < 0:
            return
        self._netlink.close()
        self._sysctl.close()
        os.close(self._home)
        self._home = -1
        if remove:
            with suppress(OSError):
                detach(self.pins)
            self.pins.rmdir()

    def pin(self, index: int) -> Path:
        return self.pins / str(index)

    def make(self, index: int, cable: Cable | None) -> None:
        """Create a namespace under that index, which must be free. Leaves nothing on failure."""
        pin = self.pin(index)
        for attempt in range(_GENERATIONS):
            generation = self._generation.get(index, -1) + 1
            self._generation[index] = generation
            pin.touch(mode=0o600)
            try:
                self._make(pin, self._names.interface(index, generation), cable)
            except BaseException as error:
                self._unpin(index)
                # EEXIST: the kernel is still removing an earlier namespace of this index.
                again = isinstance(error, NetlinkError) and error.errno == errno.EEXIST
                if not again or attempt + 1 == _GENERATIONS:
                    raise
            else:
                return

    def _make(self, pin: Path, name: str, cable: Cable | None) -> None:
        new_network_namespace()
        try:
            bind_mount(Path("/proc/thread-self/ns/net"), pin)
            for path, value in _INSIDE:
                self._sysctl.write(path, value)
            inside = Netlink()
        finally:
            enter_network_namespace(self._home)
        with inside:
            if cable is None:
                inside.request(links.bring_up(links.LOOPBACK))
            else:
                self._connect(inside, name, cable)

    def _connect(self, inside: Netlink, name: str, cable: Cable) -> None:
        mac = b"\x02\x53" + cable.address.packed
        inside.request(
            links.bring_up(links.LOOPBACK),
            links.veth(
                links.Peer("eth0", mac, index=_ETH0),
                links.Peer(name, _OUTSIDE_MAC, group=self._names.group, namespace=self._home),
                cable.mtu,
            ),
            links.no_ipv6(_ETH0),
            links.bring_up(_ETH0),
            links.add_address(_ETH0, cable.address),
            links.neighbour(cable.gateway, _OUTSIDE_MAC, _ETH0),
            links.route_to(cable.gateway, _ETH0),
            links.default_route(cable.gateway, _ETH0),
        )
        outside = socket.if_nametoindex(name)
        self._netlink.request(
            links.no_ipv6(outside),
            links.bring_up(outside),
            links.route_to(cable.address, outside),
            links.neighbour(cable.address, mac, outside),
        )
        inside.request(links.wait_until_ready(_ETH0))

    def label(self, index: int, slot: int) -> None:
        """Record, next to the pins, that the namespace belongs to that slot. Fast, and usable from any thread."""
        label = self._label(slot)
        try:
            label.symlink_to(str(index))
        except FileExistsError:
            label.unlink()
            label.symlink_to(str(index))

    def unlabel(self, slot: int) -> None:
        self._label(slot).unlink(missing_ok=True)

    def labels(self) -> dict[int, int]:
        """Return the index of every slot that was ever labelled."""
        found = {}
        for path in self.pins.glob("slot-*"):
            with suppress(OSError, ValueError):
                found[int(path.name.removeprefix("slot-"))] = int(path.readlink().name)
        return found

    def _label(self, slot: int) -> Path:
        return self.pins / f"slot-{slot}"

    def release(self, index: int) -> None:
        """Release a namespace: it and its cable end with its last process."""
        self._unpin(index)

    def remove(self, indexes: Collection[int]) -> None:
        """Remove these namespaces from the host, cables first: processes in them lose their network immediately."""
        doomed = set(indexes)
        if not doomed:
            return
        cables = [link.index for index, link in self._cables() if index in doomed]
        if cables:
            self._delete_links(cables)
        for index in doomed:
            self._unpin(index)

    def list_existing(self) -> set[int]:
        """Return the indexes that have anything left on this host: a pin, or a cable."""
        pins = {int(path.name) for path in self.pins.iterdir() if path.name.isdigit()}
        return pins | self.list_connected()

    def list_connected(self) -> set[int]:
        """Return the indexes that have a cable."""
        return {index for index, _ in self._cables()}

    def is_alive(self, index: int) -> bool:
        """Return whether the pin holds a namespace, and is not just the plain file of one that was never finished."""
        with suppress(OSError):
            return self.pin(index).stat().st_dev != self.pins.stat().st_dev
        return False

    def _cables(self) -> list[tuple[int, links.Link]]:
        found = []
        for link in links.list_links(self._netlink):
            match = re.fullmatch(rf"{re.escape(self._names.prefix)}(\d+)[a-z]", link.name)
            if match:
                found.append((int(match[1]), link))
        return found

    def _delete_links(self, indexes: list[int]) -> None:
        doomed = self._names.group ^ 1
        for start in range(0, len(indexes), 256):
            with suppress(NetlinkError):  # some may have disappeared in the meantime
                self._netlink.request(*(links.regroup(index, doomed) for index in indexes[start : start + 256]))
        try:
            self._netlink.request(links.delete_group(doomed))
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise

    def _unpin(self, index: int) -> None:
        pin = self.pin(index)
        with suppress(OSError):
            detach(pin)
        pin.unlink(missing_ok=True)


class _Sysctl:
    """Writes `/proc/sys/net` of the namespace the calling thread is in.

    In one proc file system the directory `net/ipv4` of every namespace ever accessed is an entry of the same name, and
    a lookup walks them all: half a millisecond each with a thousand namespaces. So the file system is mounted again
    from time to time.
    """

    _RENEW = 64

    def __init__(self) -> None:
        self._proc = -1
        self._uses = 0

    def write(self, path: str, value: bytes) -> None:
        file = os.open(f"sys/net/{path}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._root())
        try:
            os.write(file, value)
        finally:
            os.close(file)

    def close(self) -> None:
        if self._proc >= 0:
            os.close(self._proc)
            self._proc = -1

    def _root(self) -> int:
        if self._proc < 0 or self._uses >= self._RENEW:
            self.close()
            try:
                self._proc = detached_proc()
            except OSError:  # not allowed in some containers: slower, but equivalent
                self._proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
            self._uses = 0
        self._uses += 1
        return self._proc
