"""What is read of the memory that sockets hold: from sock_diag's answers, and from this machine's own sockets."""

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

from sandyard.engine.drivers.namespace import kernel, socket_memory
from sandyard.engine.drivers.namespace.net import links
from sandyard.engine.drivers.namespace.net.netlink import Netlink
from sandyard.engine.drivers.namespace.net.syscalls import new_network_namespace
from sandyard.engine.drivers.namespace.socket_memory import Tcp

ECHO = b"""\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
    1: 0100007F:0001 0100007F:0000 01 00000100:00034000 00:00000000 00000000     0        0 123 2 0000000000000000 0
"""


SOCKSTAT = """\
sockets: used 50
TCP: inuse 1 orphan 7 tw 2 alloc 9 mem 47
UDP: inuse 0 mem 156
"""


def answer(state: int, inode: int, timer: int = 0, **memory: int) -> bytes:
    names = ("received", "receive_limit", "sent", "send_limit", "reserved", "queued", "options", "backlog", "drops")
    info = struct.pack("=9I", *(memory.get(name, 0) for name in names))
    head = struct.pack("=BBBB48x5I", socket.AF_INET, state, timer, 0, 0, 0, 0, 1000, inode)
    return head + struct.pack("=HH", 4 + len(info), 7) + info


def test_what_a_socket_holds() -> None:
    memory = {"received": 1, "receive_limit": 5000, "sent": 20, "reserved": 300, "queued": 4000, "options": 50_000}
    established, listening, close_wait, last_ack = 1, 10, 8, 9
    udp, tcp = socket.IPPROTO_UDP, socket.IPPROTO_TCP
    assert socket_memory.socket_bytes(answer(7, 5, **memory), udp) == 50_321, "of a datagram that was begun"
    assert socket_memory.socket_bytes(answer(established, 5, **memory), tcp) == 54_301
    assert socket_memory.socket_bytes(answer(listening, 5), tcp) == 0
    for state in (established, close_wait):
        assert socket_memory.socket_bytes(answer(state, 0), tcp) == 4096, "nobody has accepted it"
    assert socket_memory.socket_bytes(answer(last_ack, 0), tcp) == 0, "it was accepted, and closed"
    assert socket_memory.socket_bytes(answer(established, 0)[:72], tcp) == 0, "a kernel that tells no more"


def test_what_echo_sockets_hold() -> None:
    assert list(socket_memory.echo_sockets(ECHO.splitlines())) == [0x34000 + 0x100]


def test_what_tcp_holds_on_the_machine(tmp_path: Path) -> None:
    (tmp_path / "sockstat").write_text(SOCKSTAT)
    assert socket_memory.read_tcp(tmp_path / "sockstat") == Tcp(7, 47 * resource.getpagesize())
    assert socket_memory.read_tcp().orphans >= 0
    assert socket_memory.most_orphans() > 0


def test_what_an_orphan_is() -> None:
    fin_wait_1, fin_wait_2, time_wait_timer = 4, 5, 3
    assert socket_memory.is_orphan(answer(fin_wait_1, 0))
    assert not socket_memory.is_orphan(answer(fin_wait_1, 5)), "it was shut down, and a program has it"
    assert not socket_memory.is_orphan(answer(fin_wait_2, 0, time_wait_timer))


def test_old_kernels_are_not_told_to_end_orphans() -> None:
    assert socket_memory.can_end_orphans("6.18.44-fc-v445")
    assert socket_memory.can_end_orphans("7.0")
    assert not socket_memory.can_end_orphans("6.8.0-31-generic")
    assert not socket_memory.can_end_orphans("unknown")


@pytest.mark.skipif(not kernel.is_root(), reason="entering a network namespace needs root")
def test_orphans_of_a_network_namespace_are_counted_and_ended() -> None:
    """Also one whose other side answers for as long as it likes."""

    def in_a_namespace() -> tuple[int, int, list[bytes]]:
        new_network_namespace()
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
                found = len(list(socket_memory.orphans(thread, 0)))
                many = list(socket_memory.orphans(thread, 1000))
                socket_memory.end_orphans(thread)
                return found, len(list(socket_memory.orphans(thread, 0))), many

    with ThreadPoolExecutor(1) as pool:  # a thread of its own, which is not used for anything else
        before, after, many = pool.submit(in_a_namespace).result()
    assert before == 1
    assert many == [], "there are no 1,000 sockets"
    assert after == (0 if socket_memory.can_end_orphans(os.uname().release) else 1)


@pytest.mark.skipif(not kernel.is_root(), reason="entering a network namespace needs root")
def test_sockets_of_this_network_namespace_are_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.send(bytes(10_000))
        assert sum(socket_memory.measure_sockets(os.getpid(), 0)) > 10_000, (
            "it waits in a connection that nobody has accepted"
        )
        assert socket_memory.count_sockets(os.getpid()) >= 2
