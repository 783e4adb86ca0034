"""The sandboxes' name server: one socket for all of them, on the gateway's address.

It identifies clients by their source address, which the firewall guarantees. It answers
- a sandbox with open egress: all answers of the host's name servers;
- one whose policy allows names: only those, and the addresses are opened in the firewall before the response is sent;
- one without egress, or only to addresses: always REFUSED, because queries can carry data out like connections do;
- for the engine's own public names, if the policy allows them: the gateway (see `hairpin`);
- unknown clients: no answer.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from sandyard.engine.drivers.machine.net.dns_wire import (
    NOTIMP,
    REFUSED,
    SERVFAIL,
    Question,
    parse_addresses,
    parse_question,
)
from sandyard.engine.drivers.machine.net.hairpin import TTL, GatewayNames
from sandyard.engine.drivers.machine.net.policy import Domains, Egress
from sandyard.engine.drivers.machine.net.upstream import Upstream

log = logging.getLogger(__name__)

_MAX_QUERIES = 64  # concurrent queries of one sandbox; more are dropped, because UDP clients retry
_QUERIES_PER_S, _BURST = 50, 400  # queries of one sandbox whose answers open addresses; more are delayed
_MAX_STREAMS = 8  # TCP connections of one sandbox
_STREAM_IDLE_S = 10.0
_MAX_STREAM_QUERIES = 100
_MAX_REFUSED = 256  # refused names of one sandbox that are kept until they are read

Admit = Callable[[IPv4Address, str, Mapping[IPv4Address, int]], Awaitable[None]]


@dataclass(slots=True)
class _Client:
    address: IPv4Address
    resolves_names: bool
    domains: Domains
    open_queries: int = 0
    open_streams: int = 0
    next_query_at: float = 0.0
    refused: dict[str, None] = field(default_factory=dict)  # names, in order

    def may_ask(self, name: str) -> bool:
        """Return whether the policy allows this name, in lower case without the final dot."""
        return self.resolves_names and (not self.domains or self.domains.match(name))


class Forwarder(asyncio.DatagramProtocol):
    """Answers the DNS queries of sandboxes in one event loop. `admit` is awaited with the sandbox's address, a name that
    its policy lists, and the addresses of the name with their TTLs."""

    def __init__(self, upstream: Upstream, admit: Admit, gateway_names: GatewayNames | None = None) -> None:
        self._upstream = upstream
        self._admit = admit
        self._gateway_names = gateway_names
        self._clients: dict[str, _Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self, address: IPv4Address) -> None:
        """Listen on port 53 of the address, or on another port if the host's own server uses it; see `port`."""
        datagrams, streams = _bind_sockets(str(address))
        self.port = datagrams.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(lambda: self, sock=datagrams)
        self._server = await asyncio.start_server(self._serve_stream, sock=streams, limit=1 << 17)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def set_policy(self, address: IPv4Address, egress: Egress) -> None:
        """Answer the queries of a sandbox according to this policy from the next one on."""
        client = self._clients.setdefault(str(address), _Client(address, False, Domains()))
        client.resolves_names, client.domains = egress.resolves_names, egress.domains

    def remove_client(self, address: IPv4Address) -> None:
        self._clients.pop(str(address), None)

    def is_allowed(self, address: str, name: str) -> bool:
        """Return whether the policy of the sandbox with this address allows the name, which is in lower case, without
        the final dot."""
        client = self._clients.get(address)
        return client is not None and client.may_ask(name)

    def take_refused(self, address: IPv4Address) -> list[str]:
        """Return the names that were refused to this sandbox since the last call."""
        client = self._clients.get(str(address))
        if client is None:
            return []
        names, client.refused = list(client.refused), {}
        return names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of DatagramProtocol; `open` stores the transport."""

    def datagram_received(self, data: bytes, addr: tuple[str | Any, int]) -> None:
        client = self._clients.get(addr[0])
        if client is None or client.open_queries >= _MAX_QUERIES:
            return
        self._start_task(self._answer_datagram(client, data, addr))

    def error_received(self, exc: Exception) -> None:
        """Ignore the error: a sandbox closed its port before the response arrived."""

    def _start_task(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer_datagram(self, client: _Client, message: bytes, sender: tuple[str | Any, int]) -> None:
        answer = await self._answer(client, message, stream=False)
        if answer is not None and self._transport is not None and not self._transport.is_closing():
            self._transport.sendto(answer, sender)

    async def _serve_stream(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = self._clients.get(writer.get_extra_info("peername")[0])
        task = asyncio.current_task()
        if client is None or client.open_streams >= _MAX_STREAMS or task is None:
            writer.transport.abort()
            return
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        client.open_streams += 1
        try:
            with suppress(OSError, asyncio.IncompleteReadError):
                for _ in range(_MAX_STREAM_QUERIES):
                    async with asyncio.timeout(_STREAM_IDLE_S):
                        length = int.from_bytes(await reader.readexactly(2), "big")
                        message = await reader.readexactly(length)
                    answer = await self._answer(client, message, stream=True)
                    if answer is None:
                        break
                    writer.write(len(answer).to_bytes(2, "big") + answer)
                    async with asyncio.timeout(_STREAM_IDLE_S):
                        await writer.drain()
        finally:
            client.open_streams -= 1
            writer.close()

    async def _answer(self, client: _Client, message: bytes, stream: bool) -> bytes | None:
        question = parse_question(message)
        if question is None:
            return _make_not_implemented_reply(message)
        if not client.may_ask(question.name):
            if len(client.refused) < _MAX_REFUSED:
                client.refused[question.name] = None
            return question.make_empty_reply(REFUSED)
        if client.open_queries >= _MAX_QUERIES:
            return question.make_empty_reply(SERVFAIL)
        client.open_queries += 1
        try:
            if client.domains:
                await _delay(client)
            if self._gateway_names is not None and self._gateway_names.names.include(question.name):
                answer: bytes | None = question.make_answer(self._gateway_names.address, TTL)
            else:
                answer = await self._upstream.query(message, question, stream)
            if answer is not None and client.domains:
                await self._open_addresses(client, question, answer)
        except Exception:
            log.exception("dns_answer_failed address=%s", client.address)
            answer = None
        finally:
            client.open_queries -= 1
        if not client.may_ask(question.name):  # the policy changed while the query was in progress
            return question.make_empty_reply(REFUSED)
        return answer or question.make_empty_reply(SERVFAIL)

    async def _open_addresses(self, client: _Client, question: Question, answer: bytes) -> None:
        found = parse_addresses(answer)
        if found:
            await self._admit(client.address, question.name, found)


async def _delay(client: _Client) -> None:
    """Wait until the sandbox may send another query. At most _MAX_QUERIES wait."""
    now = time.monotonic()
    due = max(client.next_query_at, now - _BURST / _QUERIES_PER_S)
    client.next_query_at = due + 1 / _QUERIES_PER_S
    if due > now:
        await asyncio.sleep(due - now)


def _make_not_implemented_reply(message: bytes) -> bytes | None:
    if len(message) < 12 or message[2] & 0x80:
        return None
    return message[:2] + bytes([0x80 | (message[2] & 0x79), NOTIMP]) + bytes(8)


def _bind_sockets(address: str) -> tuple[socket.socket, socket.socket]:
    """Return a UDP socket and a listening TCP socket on the same port."""
    for attempt in range(20):
        port = 53 if attempt == 0 else 0
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            streams.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            datagrams.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
            datagrams.bind((address, port))
            streams.bind((address, datagrams.getsockname()[1]))
            streams.listen(128)
        except OSError as error:
            datagrams.close()
            streams.close()
            if error.errno != errno.EADDRINUSE:
                raise
            continue
        return datagrams, streams
    raise OSError(errno.EADDRINUSE, f"no free port for the sandboxes' name server on {address}")
