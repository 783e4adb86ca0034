"""Connections into a gVisor sandbox, from its regular network namespace (see `link`).

`folder` is the sandbox's directory in run/. It contains a link to that namespace, and the secret by which the agent
recognizes the engine. A sandbox that was started by an earlier version has no secret, and its agent expects none.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

from sandyard.engine.contract import AGENT_PORT
from sandyard.engine.drivers.gvisor.link import INNER
from sandyard.engine.drivers.machine.inside_sockets import open_socket_inside
from sandyard.engine.guest.engine_proof import make_proof
from sandyard.kit.errors import UnreachableError

NETNS_LINK = "regular-netns"
_SECRET = "agent-secret"  # noqa: S105 - the name of a file
_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 4096


def read_secret(folder: Path) -> bytes | None:
    """Return the secret in the directory of a sandbox or a checkpoint."""
    try:
        return (folder / _SECRET).read_bytes()
    except FileNotFoundError:
        return None


def write_secret(folder: Path, secret: bytes | None) -> None:
    """Write or remove the secret, durably, and readable only by root."""
    path = folder / _SECRET
    path.unlink(missing_ok=True)
    if secret is not None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(descriptor)


async def connect_port(folder: Path, port: int) -> socket.socket:
    """Connect to a TCP port on the loopback interface of the sandbox, through its agent. Raises UnreachableError."""
    loop, sock = asyncio.get_running_loop(), await connect_agent(folder)
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


async def connect_agent(folder: Path) -> socket.socket:
    """Connect to the agent of the sandbox. Raises UnreachableError."""
    loop = asyncio.get_running_loop()
    try:
        secret = read_secret(folder)
        sock = open_socket_inside(folder / NETNS_LINK, socket.AF_INET)
    except OSError as error:
        raise UnreachableError("The sandbox has ended.") from error
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await loop.sock_connect(sock, (str(INNER), AGENT_PORT))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if secret is not None:
                await loop.sock_sendall(sock, make_proof(secret, sock.getsockname()[1]))
    except (OSError, TimeoutError) as error:
        sock.close()
        raise UnreachableError("The agent of the sandbox does not respond.") from error
    except BaseException:
        sock.close()
        raise
    return sock


async def is_agent_responding(folder: Path) -> bool:
    """Return whether the agent answers a request. A connection alone does not show this: it also succeeds while the
    sandbox is paused."""
    loop = asyncio.get_running_loop()
    try:
        with await connect_agent(folder) as sock:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.sock_sendall(sock, b"GET /health HTTP/1.1\r\nHost: agent\r\n\r\n")
                return bool(await loop.sock_recv(sock, 1))
    except (UnreachableError, OSError, TimeoutError):
        return False
