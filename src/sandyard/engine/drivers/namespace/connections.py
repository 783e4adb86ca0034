"""Connections into a sandbox: to its agent, and to TCP ports on its loopback interface."""

from __future__ import annotations

import array
import asyncio
import errno
import os
import socket
from pathlib import Path

from sandyard.engine.drivers.machine.inside_sockets import open_socket_inside
from sandyard.kit.errors import UnreachableError

_TIMEOUT_S = 5.0
_MAX_HEAD_BYTES = 8192
_MAX_FDS = 4  # one is expected
_LOOPBACKS = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


async def connect_agent(path: str, sandbox: str) -> socket.socket:
    """Return a connection to the agent. The kernel queues it, so success does not mean that the agent is responsive."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    deadline = asyncio.get_running_loop().time() + _TIMEOUT_S
    try:
        while True:
            try:
                sock.connect(path)
            except BlockingIOError:  # its queue is full
                if asyncio.get_running_loop().time() > deadline:
                    raise UnreachableError(f"The sandbox {sandbox} does not accept connections.") from None
                await asyncio.sleep(0.005)
            else:
                return sock
    except OSError as error:
        sock.close()
        raise UnreachableError(f"Could not reach the agent of the sandbox {sandbox}: {error.strerror}.") from error
    except BaseException:
        sock.close()
        raise


async def connect_port_from_outside(pid: int, port: int) -> socket.socket:
    """Connect to a port on the loopback interface of that process's network namespace. Needs root. No process in the
    sandbox is involved: the socket cannot be forged, and a busy agent does not slow it down."""
    loop = asyncio.get_running_loop()
    refused: OSError | None = None
    for family, address in _LOOPBACKS:
        try:
            sock = open_socket_inside(Path(f"/proc/{pid}/ns/net"), family)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:
                continue
            raise UnreachableError("The sandbox has ended.") from error
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.sock_connect(sock, (address, port))
        except (OSError, TimeoutError) as error:
            sock.close()
            refused = OSError(str(error))
        except BaseException:
            sock.close()
            raise
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
    raise UnreachableError(f"Port {port} is not open in the sandbox.") from refused


async def connect_port_through_agent(path: str, sandbox: str, port: int) -> socket.socket:
    """Let the agent connect and pass the descriptor, for an engine that may not enter namespaces. The descriptor is
    verified before use."""
    loop = asyncio.get_running_loop()
    sock = await connect_agent(path, sandbox)
    request = f"GET /_sandyard/dial?port={port} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n"
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            await loop.sock_sendall(sock, request.encode())
            head, fds = await _receive_reply(loop, sock)
    except TimeoutError:
        raise UnreachableError(f"The sandbox {sandbox} does not respond.") from None
    except OSError as error:
        raise UnreachableError(f"The sandbox {sandbox} closed the connection.") from error
    finally:
        sock.close()
    sockets = [_wrap_tcp_socket(fd) for fd in fds]
    valid = [candidate for candidate in sockets if candidate is not None]
    if head.startswith(b"HTTP/1.1 200") and len(valid) == len(fds) == 1:
        return valid[0]
    for candidate in valid:
        candidate.close()
    raise UnreachableError(f"Port {port} is not open in the sandbox.")


async def _receive_reply(loop: asyncio.AbstractEventLoop, sock: socket.socket) -> tuple[bytes, list[int]]:
    """Return the head of the agent's response and the descriptors that came with it, which the caller must close."""
    head, fds = b"", array.array("i")
    size = fds.itemsize
    try:
        while b"\r\n\r\n" not in head and len(head) < _MAX_HEAD_BYTES and len(fds) <= _MAX_FDS:
            readable = loop.create_future()
            loop.add_reader(sock, lambda future=readable: future.done() or future.set_result(None))  # type: ignore[misc]
            try:
                await readable
            finally:
                loop.remove_reader(sock)
            data, ancillary, _, _ = sock.recvmsg(
                _MAX_HEAD_BYTES, socket.CMSG_SPACE(_MAX_FDS * size), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds.frombytes(raw[: len(raw) - len(raw) % size])
            if not data:
                break
            head += data
    except BaseException:  # such as a timeout: the agent may send descriptors and then nothing more
        for fd in fds:
            os.close(fd)
        raise
    return head, list(fds)


def _wrap_tcp_socket(fd: int) -> socket.socket | None:
    """Return the descriptor as a socket if it is a connected TCP socket; otherwise close it and return None."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        os.close(fd)
        return None
    try:
        if sock.family in {socket.AF_INET, socket.AF_INET6} and sock.type == socket.SOCK_STREAM:
            sock.getpeername()
            sock.setblocking(False)
            return sock
    except OSError:
        pass
    sock.close()
    return None
