"""Measuring the memory that sockets hold: from recorded sock_diag replies and from real sockets of this machine."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.net import links
from sandyard.engine.drivers.machine.net.netlink import Netlink
from sandyard.engine.drivers.machine.net.syscalls import create_network_namespace
from sandyard.engine.drivers.namespace import socket_memory
from sandyard.engine.drivers.namespace.socket_memory import TcpUsage

ECHO = b"""\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
    1: 0100007F:0001 0100007F:0000 01 00000100:00034000 00:00000000 00000000     0        0 123 2 0000000000000000 0
"""


SOCKSTAT = """\
sockets: used 50
TCP: inuse 1 orphan 7 tw 2 alloc 9 mem 47
UDP: inuse 0 mem 156
"""


def sock_diag_reply(state: int, inode: int, timer: int = 0, **memory: int) -> bytes:
    names = ("received", "receive_limit", "sent", "send_limit", "reserved", "queued", "options", "backlog", "drops")
    info = struct.pack("=9I", *(memory.get(name, 0) for name in names))
    head = struct.pack("=BBBB48x5I", socket.AF_INET, state, timer, 0, 0, 0, 0, 1000, inode)
    return head + struct.pack("=HH", 4 + len(info), 7) + info


def test_the_memory_of_a_socket_is_computed_from_its_reply() -> None:
    memory = {"received": 1, "receive_limit": 5000, "sent": 20, "reserved": 300, "queued": 4000, "options": 50_000}
    established, listening, close_wait, last_ack = 1, 10, 8, 9
    udp, tcp = socket.IPPROTO_UDP, socket.IPPROTO_TCP
    assert socket_memory.sum_socket_bytes(sock_diag_reply(7, 5, **memory), udp) == 50_321, (
        "a datagram that is being assembled counts"
    )
    assert socket_memory.sum_socket_bytes(sock_diag_reply(established, 5, **memory), tcp) == 54_301
    assert socket_memory.sum_socket_bytes(sock_diag_reply(listening, 5), tcp) == 0
    for state in (established, close_wait):
        assert socket_memory.sum_socket_bytes(sock_diag_reply(state, 0), tcp) == 4096, (
            "a connection that is not accepted yet counts as one page"
        )
    assert socket_memory.sum_socket_bytes(sock_diag_reply(last_ack, 0), tcp) == 0, (
        "a connection that was accepted and closed counts as nothing"
    )
    assert socket_memory.sum_socket_bytes(sock_diag_reply(established, 0)[:72], tcp) == 0, (
        "an older kernel sends no memory information"
    )


def test_the_memory_of_echo_sockets_is_read() -> None:
    assert list(socket_memory.list_echo_socket_bytes(ECHO.splitlines())) == [0x34000 + 0x100]


def test_tcp_memory_and_orphans_of_the_machine_are_read(tmp_path: Path) -> None:
    (tmp_path / "sockstat").write_text(SOCKSTAT)
    assert socket_memory.read_tcp(tmp_path / "sockstat") == TcpUsage(7, 47 * resource.getpagesize())
    assert socket_memory.read_tcp().orphans >= 0
    assert socket_memory.read_max_orphans() > 0


def test_a_closed_socket_without_an_owner_is_an_orphan() -> None:
    fin_wait_1, fin_wait_2, time_wait_timer = 4, 5, 3
    assert socket_memory.is_orphan(sock_diag_reply(fin_wait_1, 0))
    assert not socket_memory.is_orphan(sock_diag_reply(fin_wait_1, 5)), (
        "a program still holds this socket after shutdown"
    )
    assert not socket_memory.is_orphan(sock_diag_reply(fin_wait_2, 0, time_wait_timer))


def test_orphans_are_ended_only_on_kernels_that_support_it() -> None:
    assert socket_memory.can_end_orphans("6.18.44-fc-v445")
    assert socket_memory.can_end_orphans("7.0")
    assert not socket_memory.can_end_orphans("6.8.0-31-generic")
    assert not socket_memory.can_end_orphans("unknown")


@pytest.mark.skipif(not kernel.is_root(), reason="entering a network namespace needs root")
def test_orphans_of_a_network_namespace_are_counted_and_ended() -> None:
    """Covers an orphan whose peer stays connected for an unlimited time."""

    def count_and_end_orphans() -> tuple[int, int, list[bytes]]:
        create_network_namespace()
        with Netlink() as netlink:
            netlink.request(links.bring_up(links.LOOPBACK))
        thread = threading.get_native_id()
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            with server.accept()[0]:
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        client.send(bytes(1 << 16))
                client.close()
                orphans_before = len(list(socket_memory.list_orphans(thread, 0)))
                many = list(socket_memory.list_orphans(thread, 1000))
                socket_memory.end_orphans(thread)
                return orphans_before, len(list(socket_memory.list_orphans(thread, 0))), many

    with ThreadPoolExecutor(1) as pool:  # a dedicated thread: it stays in the new network namespace
        before, after, many = pool.submit(count_and_end_orphans).result()
    assert before == 1
    assert many == [], "below the threshold of 1,000 sockets nothing is listed"
    assert after == (0 if socket_memory.can_end_orphans(os.uname().release) else 1)


@pytest.mark.skipif(not kernel.is_root(), reason="entering a network namespace needs root")
def test_sockets_of_the_current_network_namespace_are_measured() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.send(bytes(10_000))
        assert sum(socket_memory.measure_sockets(os.getpid(), 0)) > 10_000, (
            "data waiting in a connection that is not accepted yet must be counted"
        )
        assert socket_memory.count_sockets(os.getpid()) >= 2
