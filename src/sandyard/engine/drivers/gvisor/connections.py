"""Connections into a gVisor sandbox, from its regular network namespace (see `link`)."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

from sandyard.engine.contract import AGENT_PORT
from sandyard.engine.drivers.gvisor.link import INNER
from sandyard.engine.drivers.machine.inside_sockets import open_socket_inside
from sandyard.kit.errors import UnreachableError

_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 4096


async def connect_port(regular: Path, port: int) -> socket.socket:
    """Return a connection to a TCP port on the loopback interface of the sandbox behind this namespace, relayed by its
    agent. Raises UnreachableError."""
    loop, sock = asyncio.get_running_loop(), await connect_agent(regular)
    head = b""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await loop.sock_sendall(sock, f"GET /_sandyard/relay?port={port} HTTP/1.1\r\nHost: agent\r\n\r\n".encode())
            while not head.endswith(b"\r\n\r\n") and len(head) < _MAX_HEAD_BYTES:
                data = await loop.sock_recv(sock, 1)  # the bytes after the head belong to the port
                if not data:
                    break
                head += data
    except (OSError, TimeoutError):
        head = b""
    except BaseException:
        sock.close()
        raise
    if not head.startswith(b"HTTP/1.1 101 "):
        sock.close()
        raise UnreachableError(f"Port {port} is not open in the sandbox.")
    return sock


async def connect_agent(regular: Path) -> socket.socket:
    """Return a connection to the agent of the sandbox behind this namespace. Raises UnreachableError."""
    try:
        sock = open_socket_inside(regular, socket.AF_INET)
    except OSError as error:
        raise UnreachableError("The sandbox has ended.") from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(sock, (str(INNER), AGENT_PORT))
    except (OSError, TimeoutError) as error:
        sock.close()
        raise UnreachableError("The agent of the sandbox does not respond.") from error
    except BaseException:
        sock.close()
        raise
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
