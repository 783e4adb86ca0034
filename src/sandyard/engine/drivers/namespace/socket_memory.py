"""The memory held by the internet sockets of a network namespace, as the kernel reports it for each socket (sock_diag),
and its orphans.

A cgroup is charged for the buffers of TCP, and for what UDP has received. It is not charged for datagrams that a
program has begun and not sent (MSG_MORE), error queues (errors, timestamps), echo sockets, connections that are not
accepted yet, or multicast groups.

Orphans are TCP connections that a program has closed and whose data the other side has not received yet. The machine
has one limit for all of them: when it is reached, the kernel resets connections instead.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.net.netlink import Message, Netlink, NetlinkError, parse_attributes

_SOCK_DIAG, _BY_FAMILY, _DESTROY = 4, 20, 21
_MEMORY_INFO = 7
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, any address
_REQUEST_ONE = struct.Struct("=BB6x48s")  # family, protocol, …, which socket
_SOCKET_ID = slice(4, 52)  # which socket, of an answer
_BATCH_SIZE = 64  # answers to more of them may not fit into a socket's buffer
_ANSWER = struct.Struct("=BBB65xI")  # family, state, timer, …, inode
_MEMORY = struct.Struct("=8I")  # received, its limit, sent, its limit, reserved, queued to send, options, backlog
_STATES_WITHOUT_BUFFERS = 1 << 3 | 1 << 6 | 1 << 12  # SYN_RECV, TIME_WAIT, NEW_SYN_RECV
_STATES_WITH_BUFFERS = 0xFFFF_FFFF & ~_STATES_WITHOUT_BUFFERS
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_CLOSED_STATES = 1 << 4 | 1 << 5 | 1 << 9 | 1 << 11  # FIN_WAIT1, FIN_WAIT2, LAST_ACK, CLOSING
_TIME_WAIT_TIMER = 3  # the rest of a connection in FIN_WAIT2, which is not an orphan
_NOT_ACCEPTED_BYTES = 4096  # bytes of a connection that waits for accept()
_MULTICAST_GROUP_BYTES = 256  # bytes of a multicast group
_PROTOCOLS = (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_BUFFER_LIMIT_FILES = (Path("/proc/sys/net/core/rmem_max"), Path("/proc/sys/net/core/wmem_max"))
_MAX_ORPHANS_FILE = Path("/proc/sys/net/ipv4/tcp_max_orphans")


@dataclass(frozen=True, slots=True)
class TcpUsage:
    """Figures of the whole machine. `memory` is in bytes."""

    orphans: int
    memory: int


def read_tcp(sockstat: Path = Path("/proc/net/sockstat")) -> TcpUsage:
    """Return the figures. Raises OSError or LookupError if the kernel does not report them."""
    line = next((line for line in sockstat.read_text().splitlines() if line.startswith("TCP:")), "")
    words = line.split()
    table = dict(zip(words[1::2], map(int, words[2::2]), strict=True))
    return TcpUsage(table["orphan"], table["mem"] * os.sysconf("SC_PAGE_SIZE"))


def read_max_orphans() -> int:
    """Return the machine's limit of orphans."""
    try:
        return int(_MAX_ORPHANS_FILE.read_text())
    except FileNotFoundError:  # in a separate network namespace of the engine; use the kernel's approximate default
        return os.sysconf("SC_PHYS_PAGES") // 64


def list_orphans(pid: int, share: int) -> Iterator[bytes]:
    """Yield sock_diag's description of each orphan in that process's network namespace; nothing if there are too few
    sockets to exceed `share`. Blocks. Raises OSError, also if this kernel has no sock_diag."""
    if count_sockets(pid) <= share:
        return  # a query walks the tables of the whole machine
    with _open_diag(pid) as netlink:
        for family in _FAMILIES:
            request = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, _CLOSED_STATES)
            for payload in netlink.stream(Message(_BY_FAMILY, request)):
                if is_orphan(payload):
                    yield payload


def is_orphan(payload: bytes) -> bool:
    """Return whether sock_diag's description is that of a closed socket. One that was only shut down still has an
    inode."""
    timer: int
    inode: int
    _, _, timer, inode = _ANSWER.unpack_from(payload)
    return inode == 0 and timer != _TIME_WAIT_TIMER


def can_end_orphans(release: str) -> bool:
    """Return whether the kernel of this release can end orphans; older ones then keep them forever."""
    found = re.match(r"(\d+)\.(\d+)", release)
    return found is not None and (int(found[1]), int(found[2])) >= (6, 11)


def end_orphans(pid: int) -> None:
    """Reset the orphans in that process's network namespace if the kernel can: otherwise they live for minutes, as long
    as the other side responds. Blocks. Raises OSError."""
    if not can_end_orphans(os.uname().release):
        return
    found = [_REQUEST_ONE.pack(payload[0], socket.IPPROTO_TCP, payload[_SOCKET_ID]) for payload in list_orphans(pid, 0)]
    with _open_diag(pid) as netlink:
        for start in range(0, len(found), _BATCH_SIZE):
            try:
                netlink.request(*(Message(_DESTROY, request) for request in found[start : start + _BATCH_SIZE]))
            except NetlinkError as error:
                if error.errno != errno.ENOENT:  # some have ended by themselves in the meantime
                    raise


def measure_sockets(pid: int, share: int) -> Iterator[int]:
    """Yield the bytes of each socket in that process's network namespace; if they are too few to exceed `share`
    together, only some. Blocks. Raises OSError, also if this kernel has no sock_diag."""
    for name, list_bytes in (
        ("icmp", list_echo_socket_bytes),
        ("icmp6", list_echo_socket_bytes),
        ("igmp", list_multicast_bytes),
    ):
        with contextlib.suppress(FileNotFoundError), Path(f"/proc/{pid}/net/{name}").open("rb") as lines:
            yield from list_bytes(lines)
    largest = sum(2 * int(limit.read_text()) for limit in _BUFFER_LIMIT_FILES)  # the kernel doubles the requested size
    if count_sockets(pid) * largest <= share:
        return  # a query walks the tables of the whole machine
    with _open_diag(pid) as netlink:
        for family in _FAMILIES:
            for protocol in _PROTOCOLS:
                request = _REQUEST.pack(family, protocol, 1 << _MEMORY_INFO - 1, _STATES_WITH_BUFFERS)
                for payload in netlink.stream(Message(_BY_FAMILY, request)):
                    yield sum_socket_bytes(payload, protocol)


def sum_socket_bytes(payload: bytes, protocol: int) -> int:
    """Return the bytes of one socket from sock_diag's description."""
    _, state, _, inode = _ANSWER.unpack_from(payload)
    memory = parse_attributes(payload[_ANSWER.size :]).get(_MEMORY_INFO, b"")
    if len(memory) < _MEMORY.size:
        return 0
    received, _, sent, _, reserved, queued, options, backlog = _MEMORY.unpack_from(memory)
    not_accepted = protocol == socket.IPPROTO_TCP and inode == 0 and state in {_ESTABLISHED, _CLOSE_WAIT}
    sending = queued if protocol == socket.IPPROTO_TCP else sent
    total: int = received + sending + reserved + options + backlog + (_NOT_ACCEPTED_BYTES if not_accepted else 0)
    return total


def list_echo_socket_bytes(lines: Iterable[bytes]) -> Iterator[int]:
    """Yield the bytes of each socket in a `/proc/PID/net/icmp`, which sock_diag does not report."""
    for line in lines:
        words = line.split()
        if len(words) > 4 and words[4].count(b":") == 1 and words[0].endswith(b":"):
            yield sum(int(part, 16) for part in words[4].split(b":"))


def list_multicast_bytes(lines: Iterable[bytes]) -> Iterator[int]:
    """Yield the bytes of each group in a `/proc/PID/net/igmp`."""
    for _ in lines:
        yield _MULTICAST_GROUP_BYTES


def count_sockets(pid: int) -> int:
    """Return the number of TCP and UDP sockets of a network namespace."""
    count = 0
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines():
                words = line.split()
                if words[0] in {"TCP:", "UDP:", "TCP6:", "UDP6:"}:
                    count += int(words[2])
    return count


def _open_diag(pid: int) -> Netlink:
    """Return a netlink socket in that process's network namespace."""
    with _enter_network_namespace(pid):
        return Netlink(_SOCK_DIAG)


@contextlib.contextmanager
def _enter_network_namespace(pid: int) -> Iterator[None]:
    """Move the calling thread to that process's network namespace, and back."""
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(there, kernel.CLONE_NEWNET)
        try:
            yield
        finally:
            kernel.setns(here, kernel.CLONE_NEWNET)
    finally:
        os.close(there)
        os.close(here)
