"""Raw sockets of redirected connections: their original destination, their first bytes, and forwarding."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address
from typing import TypeVar

T = TypeVar("T")

_SO_ORIGINAL_DST = 80
_BUFFER_BYTES = 64 << 10
_KEEPALIVE_IDLE_S, _KEEPALIVE_PROBES, _KEEPALIVE_INTERVAL_S = 60, 6, 15  # after which a lost peer is detected


def get_original_destination(connection: socket.socket) -> tuple[IPv4Address, int]:
    """Return the client's destination before the firewall redirected it. Raises OSError for a connection that was not
    redirected."""
    port, address = struct.unpack_from("!2xH4s", connection.getsockopt(socket.SOL_IP, _SO_ORIGINAL_DST, 16))
    return IPv4Address(address), port


def enable_keepalive(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_IDLE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_PROBES)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_INTERVAL_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def reset_on_close(connection: socket.socket) -> None:
    """Make closing the socket a reset: a socket with unsent data would keep its network namespace alive."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def peek(connection: socket.socket, parse: Callable[[bytes], T | None], limit: int) -> T | None:
    """Inspect the first bytes without consuming them, until `parse` returns a result. None if the peer ends, or has
    sent `limit` bytes, before that."""
    seen = 0
    try:
        while True:
            await _wait_until_readable(connection)
            data = connection.recv(limit, socket.MSG_PEEK)
            found = parse(data) if data else None
            if found is not None:
                return found
            if len(data) <= seen or len(data) >= limit:
                return None
            seen = len(data)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, seen + 1)  # not readable until there is more
    finally:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


async def splice(one: socket.socket, other: socket.socket) -> None:
    """Forward bytes in both directions until both sides have ended, or one failed. The caller closes them."""
    tasks = [asyncio.ensure_future(_forward(*pair)) for pair in ((one, other), (other, one))]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    while count := await loop.sock_recv_into(source, buffer):
        await loop.sock_sendall(target, buffer[:count])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


async def _wait_until_readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(connection.fileno(), ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(connection.fileno())
