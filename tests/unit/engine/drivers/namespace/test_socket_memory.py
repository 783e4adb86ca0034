"""What is read of the memory that sockets hold: from sock_diag's answers, and from this machine's own sockets."""

from __future__ import annotations

import os
import socket
import struct

import pytest

from sandyard.engine.drivers.namespace import kernel, socket_memory

ECHO = b"""\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
    1: 0100007F:0001 0100007F:0000 01 00000100:00034000 00:00000000 00000000     0        0 123 2 0000000000000000 0
"""


def answer(state: int, inode: int, **memory: int) -> bytes:
    names = ("received", "receive_limit", "sent", "send_limit", "reserved", "queued", "options", "backlog", "drops")
    info = struct.pack("=9I", *(memory.get(name, 0) for name in names))
    head = struct.pack("=BBBB48x5I", socket.AF_INET, state, 0, 0, 0, 0, 0, 1000, inode)
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


@pytest.mark.skipif(not kernel.is_root(), reason="entering a network namespace needs root")
def test_sockets_of_this_network_namespace_are_seen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        client.send(bytes(10_000))
        assert sum(socket_memory.held(os.getpid(), 0)) > 10_000, "it waits in a connection that nobody has accepted"
        assert socket_memory.count_sockets(os.getpid()) >= 2
