"""Network namespaces with a veth pair to the host, pinned in the file system so that they outlive the engine.

Each namespace has a number, its *index*: it names the pin, is part of the host's interface name, and is its position in
the subnet. Inside there are `lo` and `eth0` with one address and a default route; outside is an interface without an
address and a route to the inner one. Neither side uses ARP or IPv6 on the veth pair (`::1` works inside). The namespace
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

from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.names import Names
from sandyard.engine.drivers.machine.net.netlink import Netlink, NetlinkError
from sandyard.engine.drivers.machine.net.syscalls import (
    bind_mount,
    create_network_namespace,
    enter_network_namespace,
    mount_private_tmpfs,
    open_detached_proc,
    unmount_lazily,
)

log = logging.getLogger(__name__)

_ETH0_INDEX = 64  # any index that no tunnel device, which some kernels add to every namespace, can have
_MAX_ATTEMPTS = 8
_OUTSIDE_MAC = bytes.fromhex("025359000001")  # the same for every veth pair, because each has only two ends
_SYSCTLS = (
    ("ipv4/ping_group_range", b"0 2147483647"),  # ping without capabilities
    ("ipv4/ip_unprivileged_port_start", b"0"),  # a sandbox's root has no capability over its network either
)


@dataclass(frozen=True, slots=True)
class VethConfig:
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
        self._host_namespace = -1
        self._sysctl = _Sysctl()

    def open(self) -> None:
        """Prepare the folder of pins. Idempotent."""
        self.pins.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.pins.is_mount():
            # A private mount: a process that forks sandboxes can drop a thousand pins from its mount namespace by
            # detaching it, and pins created later never appear there. It does not survive a reboot.
            mount_private_tmpfs(self.pins)
        self._host_namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        self._netlink = Netlink()

    def close(self, remove: bool) -> None:
        """`remove` also removes the folder of pins, which must be empty by then."""
        if self._host_namespace < 0:
            return
        self._netlink.close()
        self._sysctl.close()
        os.close(self._host_namespace)
        self._host_namespace = -1
        if remove:
            with suppress(OSError):
                unmount_lazily(self.pins)
            self.pins.rmdir()

    def get_pin_path(self, index: int) -> Path:
        return self.pins / str(index)

    def create(self, index: int, veth: VethConfig | None) -> None:
        """Create a namespace under that index, which must be free. Leaves nothing on failure."""
        pin = self.get_pin_path(index)
        for attempt in range(_MAX_ATTEMPTS):
            generation = self._generation.get(index, -1) + 1
            self._generation[index] = generation
            pin.touch(mode=0o600)
            try:
                self._create(pin, self._names.make_interface_name(index, generation), veth)
            except BaseException as error:
                self._unpin(index)
                # EEXIST: the kernel is still removing an earlier namespace of this index.
                again = isinstance(error, NetlinkError) and error.errno == errno.EEXIST
                if not again or attempt + 1 == _MAX_ATTEMPTS:
                    raise
            else:
                return

    def _create(self, pin: Path, name: str, veth: VethConfig | None) -> None:
        create_network_namespace()
        try:
            bind_mount(Path("/proc/thread-self/ns/net"), pin)
            for path, value in _SYSCTLS:
                self._sysctl.write(path, value)
            inside = Netlink()
        finally:
            enter_network_namespace(self._host_namespace)
        with inside:
            if veth is None:
                inside.request(links.bring_up(links.LOOPBACK))
            else:
                self._connect(inside, name, veth)

    def _connect(self, inside: Netlink, name: str, veth: VethConfig) -> None:
        mac = b"\x02\x53" + veth.address.packed
        inside.request(
            links.bring_up(links.LOOPBACK),
            links.create_veth(
                links.Peer("eth0", mac, index=_ETH0_INDEX),
                links.Peer(name, _OUTSIDE_MAC, group=self._names.group, namespace=self._host_namespace),
                veth.mtu,
            ),
            links.disable_ipv6(_ETH0_INDEX),
            links.bring_up(_ETH0_INDEX),
            links.add_address(_ETH0_INDEX, veth.address),
            links.add_neighbour(veth.gateway, _OUTSIDE_MAC, _ETH0_INDEX),
            links.add_route(veth.gateway, _ETH0_INDEX),
            links.add_default_route(veth.gateway, _ETH0_INDEX),
        )
        outside = socket.if_nametoindex(name)
        self._netlink.request(
            links.disable_ipv6(outside),
            links.bring_up(outside),
            links.add_route(veth.address, outside),
            links.add_neighbour(veth.address, mac, outside),
        )
        inside.request(links.wait_until_ready(_ETH0_INDEX))

    def add_label(self, index: int, slot: int) -> None:
        """Record, next to the pins, that the namespace belongs to that slot. Fast, and usable from any thread."""
        label = self._get_label_path(slot)
        try:
            label.symlink_to(str(index))
        except FileExistsError:
            label.unlink()
            label.symlink_to(str(index))

    def remove_label(self, slot: int) -> None:
        self._get_label_path(slot).unlink(missing_ok=True)

    def list_labels(self) -> dict[int, int]:
        """Return the index of the namespace of each slot that has a label."""
        found = {}
        for path in self.pins.glob("slot-*"):
            with suppress(OSError, ValueError):
                found[int(path.name.removeprefix("slot-"))] = int(path.readlink().name)
        return found

    def _get_label_path(self, slot: int) -> Path:
        return self.pins / f"slot-{slot}"

    def release(self, index: int) -> None:
        """Release a namespace: it and its veth pair end with its last process."""
        self._unpin(index)

    def remove(self, indexes: Collection[int]) -> None:
        """Remove these namespaces from the host, veth pairs first: processes in them lose their network immediately."""
        removed = set(indexes)
        if not removed:
            return
        link_indexes = [link.index for index, link in self._list_veth_links() if index in removed]
        if link_indexes:
            self._delete_links(link_indexes)
        for index in removed:
            self._unpin(index)

    def list_existing(self) -> set[int]:
        """Return the indexes that have anything left on this host: a pin, or a veth pair."""
        pins = {int(path.name) for path in self.pins.iterdir() if path.name.isdigit()}
        return pins | self.list_connected()

    def list_connected(self) -> set[int]:
        """Return the indexes that have a veth pair."""
        return {index for index, _ in self._list_veth_links()}

    def is_alive(self, index: int) -> bool:
        """Return whether the pin holds a namespace, and is not just the plain file of one that was never finished."""
        with suppress(OSError):
            return self.get_pin_path(index).stat().st_dev != self.pins.stat().st_dev
        return False

    def _list_veth_links(self) -> list[tuple[int, links.Link]]:
        found = []
        for link in links.list_links(self._netlink):
            match = re.fullmatch(rf"{re.escape(self._names.prefix)}(\d+)[a-z]", link.name)
            if match:
                found.append((int(match[1]), link))
        return found

    def _delete_links(self, indexes: list[int]) -> None:
        """Delete these interfaces all at once, by moving them into a group of their own."""
        removal_group = self._names.group ^ 1
        for start in range(0, len(indexes), 256):
            with suppress(NetlinkError):  # some may have disappeared in the meantime
                self._netlink.request(
                    *(links.set_group(index, removal_group) for index in indexes[start : start + 256])
                )
        try:
            self._netlink.request(links.delete_group(removal_group))
        except NetlinkError as error:
            if error.errno != errno.ENODEV:
                raise

    def _unpin(self, index: int) -> None:
        pin = self.get_pin_path(index)
        with suppress(OSError):
            unmount_lazily(pin)
        pin.unlink(missing_ok=True)


class _Sysctl:
    """Writes `/proc/sys/net` of the namespace the calling thread is in.

    In one proc file system the directory `net/ipv4` of every namespace ever accessed is an entry of the same name, and
    a lookup walks them all: half a millisecond each with a thousand namespaces. So the file system is mounted again
    from time to time.
    """

    _USES_PER_MOUNT = 64

    def __init__(self) -> None:
        self._proc = -1
        self._uses = 0

    def write(self, path: str, value: bytes) -> None:
        file = os.open(f"sys/net/{path}", os.O_WRONLY | os.O_CLOEXEC, dir_fd=self._get_proc())
        try:
            os.write(file, value)
        finally:
            os.close(file)

    def close(self) -> None:
        if self._proc >= 0:
            os.close(self._proc)
            self._proc = -1

    def _get_proc(self) -> int:
        if self._proc < 0 or self._uses >= self._USES_PER_MOUNT:
            self.close()
            try:
                self._proc = open_detached_proc()
            except OSError:  # not allowed in some containers: slower, but equivalent
                self._proc = os.open("/proc", os.O_PATH | os.O_CLOEXEC)
            self._uses = 0
        self._uses += 1
        return self._proc
