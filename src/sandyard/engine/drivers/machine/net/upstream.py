"""The host's name servers, queried from the host's side, so that `127.0.0.53` means the same as there."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from pathlib import Path
from typing import Any

from sandyard.engine.drivers.machine.net.dns_wire import Question, is_answer_to, replace_id

_TIMEOUT_S = 2.0  # for one server
_ROUNDS = 2
_REREAD_INTERVAL_S = 1.0

_Server = tuple[socket.AddressFamily, tuple[Any, ...]]


class Upstream:
    """Queries the servers in a resolv.conf, which is read again when it changes."""

    def __init__(self, resolv_conf: Path) -> None:
        self._path = resolv_conf
        self._servers: list[_Server] = []
        self._version: tuple[int, int] | None = None
        self._checked_at = float("-inf")

    async def query(self, message: bytes, question: Question, stream: bool) -> bytes | None:
        """Return the first valid response, with the id of the query, or None if no server answered in time. `stream`:
        over TCP."""
        for _ in range(_ROUNDS):
            for family, address in self.list_servers():
                number = int.from_bytes(os.urandom(2), "big")
                request = replace_id(message, number)
                try:
                    async with asyncio.timeout(_TIMEOUT_S):
                        query_server = _query_over_tcp if stream else _query_over_udp
                        answer = await query_server(family, address, request, number, question)
                except (OSError, asyncio.IncompleteReadError):  # TimeoutError is an OSError
                    continue
                return replace_id(answer, question.id)
        return None

    def list_servers(self) -> list[_Server]:
        """Return the servers; this machine itself if the file lists none."""
        now = time.monotonic()
        if now - self._checked_at >= _REREAD_INTERVAL_S:
            self._checked_at = now
            try:
                status = self._path.stat()
                version = (status.st_mtime_ns, status.st_ino)
                if version != self._version:
                    self._servers = _parse_servers(self._path.read_text(errors="replace"))
                    self._version = version
            except OSError:
                self._servers, self._version = _parse_servers(""), None
        return self._servers


def _parse_servers(content: str) -> list[_Server]:
    servers: list[_Server] = []
    for line in content.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] == "nameserver":
            try:
                found = socket.getaddrinfo(words[1], 53, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
            except OSError:
                continue
            servers.append((found[0][0], found[0][4]))
    return servers or [(socket.AF_INET, ("127.0.0.1", 53))]  # the meaning of an empty file according to resolv.conf(5)


async def _query_over_udp(
    family: socket.AddressFamily, address: tuple[Any, ...], message: bytes, number: int, question: Question
) -> bytes:
    """Query from a different port each time, which together with the id is hard to guess."""
    loop = asyncio.get_running_loop()
    with socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC) as client:
        client.connect(address)
        await loop.sock_sendall(client, message)
        while True:
            answer = await loop.sock_recv(client, 65535)
            if is_answer_to(answer, number, question):
                return answer


async def _query_over_tcp(
    family: socket.AddressFamily, address: tuple[Any, ...], message: bytes, number: int, question: Question
) -> bytes:
    reader, writer = await asyncio.open_connection(address[0], address[1], family=family)
    try:
        writer.write(len(message).to_bytes(2, "big") + message)
        length = int.from_bytes(await reader.readexactly(2), "big")
        answer = await reader.readexactly(length)
    finally:
        writer.close()
    if not is_answer_to(answer, number, question):
        raise ConnectionError("the server answered another question")
    return answer
