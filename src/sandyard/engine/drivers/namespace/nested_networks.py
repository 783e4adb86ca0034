"""Network namespaces that programs in a sandbox have created: find them, measure what they hold, stop their traffic.

A sandbox with containers may create them, and its root then has all rights over networks in them. What they hold is
mostly charged to no cgroup, and packets between their interfaces are forwarded by the machine, not by a process.

A namespace is found through a thread in it or a descriptor of it. One that is held only by a socket is not found.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine import kernel, processes
from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Message, Netlink

_GET_NEIGHBOUR = 30
_NEIGHBOUR_REQUEST = struct.Struct("=BxHiHBB")  # family, …, interface, state, flags, type
_AF_BRIDGE = 7
_NEIGHBOUR_BYTES = 512
_FORWARDING_ENTRY_BYTES = 128  # of a bridge or a tunnel
_CONNECTION_BYTES = 512
_NETLINK_SOCKET_BYTES = 2048  # without its buffer
_MAX_TABLE_BYTES = 16 << 20
_MAX_DESCRIPTORS = 20_000  # per sandbox
_OWN_NET = Path("/proc/thread-self/net")


@dataclass(frozen=True, slots=True)
class NestedNetworks:
    """The network namespaces of one sandbox besides its own: inode → path of a descriptor. `has_tunnel`: a process has
    a tunnel device open, whose queue may hold any amount of packets."""

    namespaces: Mapping[int, str]
    has_tunnel: bool = False

    @property
    def suspicion(self) -> tuple[bool, int]:
        """Sort key: how likely it is that the sandbox causes growth of kernel memory that nothing else explains."""
        return self.has_tunnel, len(self.namespaces)


def find_nested_networks(sandboxes: Mapping[str, int], timeout_s: float) -> dict[str, NestedNetworks]:
    """Return the nested networks of each sandbox (id → pid of its first process), as far as they are found in this
    processor time for each. Blocks."""
    children = _read_children()
    return {
        sandbox: _find_of_sandbox(pid, children, time.thread_time() + timeout_s) for sandbox, pid in sandboxes.items()
    }


def _read_children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (found := processes.read_stat(int(entry.name))) is not None:
            children.setdefault(found.parent, []).append(int(entry.name))
    return children


def _find_of_sandbox(root: int, children: Mapping[int, list[int]], deadline: float) -> NestedNetworks:
    namespaces: dict[int, str] = {}
    has_tunnel, budget = False, _MAX_DESCRIPTORS
    try:
        own = os.stat(f"/proc/{root}/ns/net").st_ino  # noqa: PTH116 - of a kernel file system, and often
    except OSError:
        return NestedNetworks({})
    queue, members = list(children.get(root, ())), []
    while queue:
        members.append(queue.pop())
        queue += children.get(members[-1], ())
    for pid in members:
        for path, inode in _list_thread_networks(pid):
            if inode != own:
                namespaces.setdefault(inode, path)
        if time.thread_time() > deadline:
            return NestedNetworks(namespaces, has_tunnel)
    for pid in members:
        for path, target in _list_descriptors(pid):
            budget -= 1
            linked = parse_network_link(target)
            if linked is not None and linked != own:
                namespaces.setdefault(linked, path)
            elif target.startswith("/") and not has_tunnel:
                has_tunnel = _is_tunnel(path)
            if budget < 0 or time.thread_time() > deadline:
                return NestedNetworks(namespaces, has_tunnel)
    return NestedNetworks(namespaces, has_tunnel)


def _list_thread_networks(pid: int) -> Iterator[tuple[str, int]]:
    with contextlib.suppress(OSError):  # it has just ended
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
            path = f"/proc/{pid}/task/{task}/ns/net"
            with contextlib.suppress(OSError):
                yield path, os.stat(path).st_ino  # noqa: PTH116


def _list_descriptors(pid: int) -> Iterator[tuple[str, str]]:
    """Yield the path of each descriptor and what it links to. No file is touched, because a file system of the sandbox
    might never answer."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                yield entry.path, os.readlink(entry.path)  # noqa: PTH115


def parse_network_link(target: str) -> int | None:
    """Return the inode of a link to a network namespace, None for any other."""
    if target.startswith("net:[") and target.endswith("]") and target[5:-1].isdigit():
        return int(target[5:-1])
    return None


def _is_tunnel(path: str) -> bool:
    with contextlib.suppress(OSError):
        return b"\niff:" in Path(path.replace("/fd/", "/fdinfo/")).read_bytes()
    return False


@contextlib.contextmanager
def _enter(path: str) -> Iterator[None]:
    """Move the calling thread to a network namespace, and back. Raises OSError if the path is no longer one."""
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        pinned = os.open(path, os.O_PATH | os.O_CLOEXEC)  # opening it fully could wait for a file system of the sandbox
        try:
            link = f"/proc/self/fd/{pinned}"
            if parse_network_link(os.readlink(link)) is None:  # noqa: PTH115
                raise OSError(f"{path} is not a network namespace")
            there = os.open(link, os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(pinned)
        try:
            kernel.setns(there, kernel.CLONE_NEWNET)
        finally:
            os.close(there)
        try:
            yield
        finally:
            kernel.setns(here, kernel.CLONE_NEWNET)
    finally:
        os.close(here)


def measure_tables(path: str, limit: int, timeout_s: float) -> int:
    """Return the bytes of the neighbours, forwarding entries, tracked connections and netlink sockets in a network
    namespace. The count stops at the limit or after this processor time. Blocks. Raises OSError."""
    deadline = time.thread_time() + timeout_s
    with _enter(path):
        total = _CONNECTION_BYTES * count_connections(_read_lines(_OWN_NET / "stat/nf_conntrack"))
        total += sum_netlink_bytes(_read_lines(_OWN_NET / "netlink"))
        for family, size in ((0, _NEIGHBOUR_BYTES), (_AF_BRIDGE, _FORWARDING_ENTRY_BYTES)):
            with Netlink() as netlink:
                for _ in netlink.stream(Message(_GET_NEIGHBOUR, _NEIGHBOUR_REQUEST.pack(family, 0, 0, 0, 0, 0))):
                    total += size
                    if total > limit or time.thread_time() > deadline:
                        return total
        return total


def measure_queues(path: str) -> int:
    """Return the bytes that the queues of the tunnel devices in a network namespace can hold. What they do hold is not
    reported, and charged to nobody. Raises OSError."""
    with _enter(path), Netlink() as netlink:
        return sum(links.list_queue_sizes(netlink, "tun"))


def count_connections(lines: list[bytes]) -> int:
    """Return the entries in a `/proc/net/stat/nf_conntrack`: the first column of any processor, in hexadecimal."""
    return int(lines[1].split()[0], 16) if len(lines) > 1 else 0


def sum_netlink_bytes(lines: Iterable[bytes]) -> int:
    """Return the bytes of the sockets in a `/proc/PID/net/netlink`, including their receive buffers."""
    table = iter(lines)
    column = next(table, b"Rmem").split().index(b"Rmem")
    return sum(int(line.split()[column]) + _NETLINK_SOCKET_BYTES for line in table if line)


def _read_lines(path: Path) -> list[bytes]:
    """Return the lines of a table, without those beyond the limit; none if the kernel does not have it."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        return file.readlines(_MAX_TABLE_BYTES)
    return []


def count_packets(path: str) -> int:
    """Return how many packets the interfaces of a network namespace have received. Raises OSError."""
    with _enter(path):
        return sum_packets(_read_lines(_OWN_NET / "dev"))


def sum_packets(lines: list[bytes]) -> int:
    """Return the received packets of all interfaces in a `/proc/net/dev`. Names have any bytes but blanks, slashes and colons."""
    rows = (line.rpartition(b":")[2].split() for line in lines[2:])
    return sum(int(row[1]) for row in rows)


def stop_traffic(path: str) -> None:
    """Take all interfaces of a network namespace down, except its loopback. Raises OSError."""
    with _enter(path), Netlink(socket.NETLINK_ROUTE) as netlink:
        for link in links.list_links(netlink):
            if link.index != links.LOOPBACK:
                with contextlib.suppress(OSError):  # it was removed in the meantime
                    netlink.request(links.take_down(link.index))
