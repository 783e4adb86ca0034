"""The memory that the internet sockets of a network namespace hold, as the kernel tells it for each socket (sock_diag).

A cgroup is charged for the buffers of TCP, and for what UDP has received. It is charged neither for datagrams that a program has begun and
not sent (MSG_MORE), nor for error queues (errors, timestamps), nor for echo sockets, nor for connections that nobody has accepted yet,
nor for multicast groups.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from sandyard.engine.drivers.namespace import kernel
from sandyard.engine.drivers.namespace.net.netlink import Message, Netlink, attributes

_SOCK_DIAG, _BY_FAMILY = 4, 20
_MEMORY_INFO = 7
_REQUEST = struct.Struct("=BBBxI48x")  # family, protocol, extensions, states, any address
_ANSWER = struct.Struct("=BB66xI")  # family, state, …, inode
_MEMORY = struct.Struct("=8I")  # received, its limit, sent, its limit, reserved, queued to send, options, backlog
_WHOLE_SOCKETS = 0xFFFF_FFFF & ~(
    1 << 3 | 1 << 6 | 1 << 12
)  # not SYN_RECV, TIME_WAIT, NEW_SYN_RECV: these have no buffers
_ESTABLISHED, _CLOSE_WAIT = 1, 8
_NOT_ACCEPTED = 4096  # bytes of a connection's own that wait with it for accept()
_GROUP = 256  # bytes of a multicast group
_PROTOCOLS = (socket.IPPROTO_UDP, socket.IPPROTO_TCP)
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_LIMITS = (Path("/proc/sys/net/core/rmem_max"), Path("/proc/sys/net/core/wmem_max"))


def held(pid: int, share: int) -> Iterator[int]:
    """The bytes of one socket after the other in the network namespace of that process; where they are too few to hold more than `share`
    together, only some. Blocks. Raises OSError, also where this kernel has no sock_diag."""
    for name, bytes_of in (("icmp", echo_sockets), ("icmp6", echo_sockets), ("igmp", multicast_groups)):
        with contextlib.suppress(FileNotFoundError), Path(f"/proc/{pid}/net/{name}").open("rb") as lines:
            yield from bytes_of(lines)
    largest = sum(2 * int(limit.read_text()) for limit in _LIMITS)  # the kernel doubles what a program asks for
    if count_sockets(pid) * largest <= share:
        return  # a look goes through the tables of the whole machine
    with _enter(pid) as netlink:
        for family in _FAMILIES:
            for protocol in _PROTOCOLS:
                request = _REQUEST.pack(family, protocol, 1 << _MEMORY_INFO - 1, _WHOLE_SOCKETS)
                for payload in netlink.stream(Message(_BY_FAMILY, request)):
                    yield socket_bytes(payload, protocol)


def socket_bytes(payload: bytes, protocol: int) -> int:
    """Of one socket, from what sock_diag says about it."""
    _, state, inode = _ANSWER.unpack_from(payload)
    memory = attributes(payload[_ANSWER.size :]).get(_MEMORY_INFO, b"")
    if len(memory) < _MEMORY.size:
        return 0
    received, _, sent, _, reserved, queued, options, backlog = _MEMORY.unpack_from(memory)
    not_accepted = protocol == socket.IPPROTO_TCP and inode == 0 and state in {_ESTABLISHED, _CLOSE_WAIT}
    sending = queued if protocol == socket.IPPROTO_TCP else sent
    total: int = received + sending + reserved + options + backlog + (_NOT_ACCEPTED if not_accepted else 0)
    return total


def echo_sockets(lines: Iterable[bytes]) -> Iterator[int]:
    """Of each in a `/proc/PID/net/icmp`, which sock_diag does not know."""
    for line in lines:
        words = line.split()
        if len(words) > 4 and words[4].count(b":") == 1 and words[0].endswith(b":"):
            yield sum(int(part, 16) for part in words[4].split(b":"))


def multicast_groups(lines: Iterable[bytes]) -> Iterator[int]:
    """Of each in a `/proc/PID/net/igmp`."""
    for _ in lines:
        yield _GROUP


def count_sockets(pid: int) -> int:
    """TCP and UDP sockets of a network namespace."""
    count = 0
    for name in ("sockstat", "sockstat6"):
        with contextlib.suppress(FileNotFoundError):
            for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines():
                words = line.split()
                if words[0] in {"TCP:", "UDP:", "TCP6:", "UDP6:"}:
                    count += int(words[2])
    return count


def _enter(pid: int) -> Netlink:
    """A netlink socket in the network namespace of that process. The calling thread goes there and back."""
    there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    here = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        kernel.setns(there, kernel.CLONE_NEWNET)
        try:
            return Netlink(_SOCK_DIAG)
        finally:
            kernel.setns(here, kernel.CLONE_NEWNET)
    finally:
        os.close(there)
        os.close(here)
