"""Run the agent's code before its first request, in the process that agents are forked from.

CPython specialises the code it runs and fills caches on first use. By doing this once before the fork, a new agent's
first command runs code that is already specialised, and writes to fewer pages that it shares with others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine

from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.wire.connection import Connection, PeerGoneError

_TIMEOUT = 5.0
_START = b'{"process":{"cmd":"/bin/sh","args":["-c","echo warm-up"],"envs":{"A":"b"},"cwd":"/"},"stdin":false}'
_STAT = b'{"path":"/"}'


ServeConnection = Callable[[Connection], Coroutine[None, None, None]]


class WarmupReaper:
    """Replaces the reaper: waits for the processes of the warm-up, and for no other child of this process."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def expect(self, pid: int, on_exit: Callable[[int], None]) -> None:
        def poll() -> None:
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # this process ignores SIGCHLD, so the kernel has discarded the status
                done, status = pid, 0
            if done:
                on_exit(status)
            else:
                self._loop.call_later(0.001, poll)

        self._loop.call_soon(poll)


async def warm_up(loop: Loop, serve_connection: ServeConnection, rounds: int) -> None:
    """Send requests to the agent in this process; `serve_connection` serves a connection. Failures are harmless."""
    server, client = socket.socketpair()
    serving = loop.create_task(serve_connection(Connection(loop, server)))
    conn = Connection(loop, client)
    stat = b"POST /filesystem.Filesystem/Stat HTTP/1.1\r\nContent-Type: application/json\r\n"
    start = b"POST /process.Process/Start HTTP/1.1\r\nContent-Type: application/connect+json\r\n"
    with contextlib.suppress(PeerGoneError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT):
            for _ in range(rounds):
                await _send_request(conn, b"GET /health HTTP/1.1\r\n", b"")
                await _send_request(conn, stat, _STAT)
                await _send_request(conn, start, struct.pack(">BI", 0, len(_START)) + _START, mark=b"0\r\n\r\n")
    conn.close()
    await serving


async def _send_request(conn: Connection, head: bytes, body: bytes, mark: bytes = b"\r\n\r\n") -> None:
    await conn.send(b"%bHost: warm-up\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
    await conn.take_until(mark, 64 << 10, _TIMEOUT)
    conn.take(conn.buffered)
