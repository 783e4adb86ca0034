"""A dry run in the process that agents are forked from.

CPython rewrites the code it runs as it learns what it deals with, and fills caches on first use. Done once here,
before the fork, a new agent's first command is answered by code that has settled, and writes to fewer pages it shares
with the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Callable, Coroutine

from sandyard.engine.guest.loop import Loop
from sandyard.engine.guest.wire.connection import Connection

_ROUNDS = 12
_PATIENCE = 5.0
_START = b'{"process":{"cmd":"/bin/sh","args":["-c","echo rehearsal"],"envs":{"A":"b"},"cwd":"/"},"stdin":false}'
_STAT = b'{"path":"/"}'


class OwnChildren:
    """In the reaper's place: waits for the processes of the rehearsal, and for no other child of this process."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def expect(self, pid: int, on_exit: Callable[[int], None]) -> None:
        def look() -> None:
            try:
                done, status = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:  # whoever set this process up has its children waited for by the kernel
                done, status = pid, 0
            if done:
                on_exit(status)
            else:
                self._loop.call_later(0.001, look)

        self._loop.call_soon(look)


def rehearse(loop: Loop, converse: Callable[[Connection], Coroutine[None, None, None]]) -> None:
    """Send requests to an agent in this very process; `converse` serves a connection. What fails is no harm."""
    server, client = socket.socketpair()

    async def play() -> None:
        serving = loop.create_task(converse(Connection(loop, server)))
        conn = Connection(loop, client)
        try:
            for _ in range(_ROUNDS):
                await _ask(conn, b"GET /health HTTP/1.1\r\n", b"")
                await _ask(
                    conn, b"POST /filesystem.Filesystem/Stat HTTP/1.1\r\nContent-Type: application/json\r\n", _STAT
                )
                start = b"POST /process.Process/Start HTTP/1.1\r\nContent-Type: application/connect+json\r\n"
                await _ask(conn, start, struct.pack(">BI", 0, len(_START)) + _START, mark=b"0\r\n\r\n")
        finally:
            conn.close()
            await serving

    async def within_reason() -> None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_PATIENCE):
                await play()

    loop.run(within_reason())


async def _ask(conn: Connection, head: bytes, body: bytes, mark: bytes = b"\r\n\r\n") -> None:
    await conn.send(b"%bHost: rehearsal\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body))
    await conn.take_until(mark, 64 << 10, _PATIENCE)
    conn.take(conn.buffered)
