"""Accept redirected connections and determine their sandbox, their destination and how to handle them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
from collections import OrderedDict
from collections.abc import Coroutine
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Any

from sandyard.engine.certificates.server_certificates import IssuingLimit
from sandyard.engine.contract import HostRule, Outbound
from sandyard.engine.drivers.machine.net.policy import Egress
from sandyard.engine.drivers.machine.net.proxy import host_detection
from sandyard.engine.drivers.machine.net.proxy.dialler import Dialler
from sandyard.engine.drivers.machine.net.proxy.proxied_connection import ProxiedConnection, Streams
from sandyard.engine.drivers.machine.net.proxy.sockets import (
    enable_keepalive,
    get_original_destination,
    peek,
    reset_on_close,
    splice,
)
from sandyard.kit.errors import SandyardError
from sandyard.kit.pacing import count_turns_for

log = logging.getLogger(__name__)

HTTP, HTTPS = 80, 443
MAX_PER_SANDBOX, _MAX_TOTAL = 256, 4096  # concurrent connections
_SILENCE_TIMEOUT_S = 5.0  # how long to wait for a client's first bytes; its server may send first
_HANDSHAKE_TIMEOUT_S = 10.0
_BUFFER_BYTES = 64 << 10
_NAMES_PER_SECOND, _NAMES_AT_ONCE = 5, 100  # new host names of one sandbox for which certificates are issued


class NameLimit:
    """Limits the number of host names for which one sandbox gets certificates. Issuing one takes the engine milliseconds, and a
    rule for `*.example.com` allows any number of names."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, None] = OrderedDict()
        self._new = IssuingLimit(_NAMES_PER_SECOND, _NAMES_AT_ONCE)

    def take(self, host: str) -> bool:
        """Return whether the sandbox may have a certificate for this name now."""
        if host not in self._known and not self._new.take():
            return False
        self._known[host] = None
        self._known.move_to_end(host)
        if len(self._known) > _NAMES_AT_ONCE:
            self._known.popitem(last=False)
        return True


@dataclass(slots=True)
class _Client:
    """A sandbox. Its connections are tracked with their sockets, so that they can be closed when it ends."""

    index: int
    address: IPv4Address
    egress: Egress
    links: set[_Link] = field(default_factory=set)
    names: NameLimit = field(default_factory=NameLimit)

    def find_rule(self, host: str) -> HostRule | None:
        return self.egress.find_rule(host)


@dataclass(slots=True, eq=False)
class _Link:
    """A redirected connection, with the sockets of both sides."""

    sockets: list[socket.socket]
    task: asyncio.Task[None] | None = None
    transport: asyncio.WriteTransport | None = None  # the client's side, if its requests are rewritten

    def end(self) -> None:
        """Close immediately, without waiting for a peer that does not respond."""
        for connection in self.sockets:
            reset_on_close(connection)
        if self.transport is not None:
            self.transport.abort()
        if self.task is not None:
            self.task.cancel()


class Proxy:
    """Serves the redirected connections of sandboxes with rules, in one event loop."""

    def __init__(self, outbound: Outbound, dialler: Dialler) -> None:
        self._outbound = outbound
        self._dialler = dialler
        self._clients: dict[str, _Client] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._open_links = 0
        self.port = 0

    def open(self, address: IPv4Address) -> None:
        """Listen on a free port of the address; see `port`."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            listener.bind((str(address), 0))
            listener.listen(512)
        except OSError:
            listener.close()
            raise
        self._listener = listener
        self.port = listener.getsockname()[1]
        self._accepting = asyncio.get_running_loop().create_task(self._accept(listener))

    async def close(self) -> None:
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
        if self._listener is not None:
            self._listener.close()
        ending = [self.remove_client(client.address) for client in list(self._clients.values())]
        await asyncio.gather(*ending)

    def set_rules(self, index: int, address: IPv4Address, egress: Egress) -> None:
        """Apply these rules to a sandbox from its next request on, and accept its connections. If the rules have changed, existing
        connections whose requests are rewritten are closed."""
        client = self._clients.setdefault(str(address), _Client(index, address, egress))
        changed = client.egress.rules != egress.rules
        client.index, client.egress = index, egress
        if changed:
            for link in client.links:
                if link.transport is not None:
                    link.end()

    async def remove_client(self, address: IPv4Address) -> None:
        """Forget a sandbox that has ended and close its connections, so that none keeps its network namespace alive. Idempotent."""
        client = self._clients.pop(str(address), None)
        if client is None:
            return
        for link in client.links:
            link.end()
        await asyncio.gather(*(link.task for link in client.links if link.task is not None), return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, peer = await loop.sock_accept(listener)
            except OSError as error:  # no free descriptor
                log.warning("proxy_accept_failed error=%s", error)
                await asyncio.sleep(0.1)
                continue
            client = self._clients.get(peer[0])
            if client is None or len(client.links) >= MAX_PER_SANDBOX or self._open_links >= _MAX_TOTAL:
                reset_on_close(connection)
                connection.close()
                continue
            link = _Link([connection])
            client.links.add(link)
            self._open_links += 1
            link.task = loop.create_task(self._serve_connection(client, link, connection))
            link.task.add_done_callback(functools.partial(self._on_connection_end, client, link))

    def _on_connection_end(self, client: _Client, link: _Link, task: asyncio.Task[None]) -> None:
        client.links.discard(link)
        self._open_links -= 1
        for connection in link.sockets:
            connection.close()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("proxy_connection_failed address=%s", client.address, exc_info=error)

    async def _serve_connection(self, client: _Client, link: _Link, connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            enable_keepalive(connection)
            address, port = get_original_destination(connection)
            host = await self._detect_host(connection, port)
            rule = client.find_rule(host) if host is not None else None
            if host is None or rule is None:
                upstream = await self._dialler.connect_address(client.index, address, port)
                link.sockets.append(upstream)
                await splice(connection, upstream)
            else:
                await self._serve_rule_host(client, link, connection, host, secure=port == HTTPS)

    async def _detect_host(self, connection: socket.socket, port: int) -> str | None:
        """Return the host that the client's first bytes name. None if they name none, or do not arrive in time."""
        parse = {HTTPS: host_detection.parse_tls, HTTP: host_detection.parse_http}.get(port)
        if parse is None:
            return None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                detected = await peek(connection, parse, host_detection.MAX_BYTES)
                return detected.host if detected is not None else None
        return None

    async def _serve_rule_host(
        self, client: _Client, link: _Link, connection: socket.socket, host: str, *, secure: bool
    ) -> None:
        async def dial() -> Streams:
            upstream = await self._dialler.connect_host(client.index, client.address, host, HTTPS if secure else HTTP)
            link.sockets.append(upstream)
            if secure:
                return await self._dialler.start_tls(upstream, host)
            return await asyncio.open_connection(sock=upstream)

        if secure and not client.names.take(host):
            reset_on_close(connection)
            return
        try:
            context = await self._outbound.make_context(host) if secure else None
        except SandyardError as error:
            log.warning("proxy_certificate_missing host=%s reason=%s", host, error.message)
            reset_on_close(connection)
            return
        streams = await _open_streams(connection, context)
        link.transport = streams[1].transport
        proxied = ProxiedConnection(
            streams,
            host,
            secure=secure,
            get_rule=lambda: client.find_rule(host),
            outbound=self._outbound,
            dial=dial,
        )
        with count_turns_for(str(client.address)):
            await proxied.run()


async def _open_streams(connection: socket.socket, context: ssl.SSLContext | None) -> Streams:
    """Return streams for the server's end of the connection, with TLS if there is a context. Raises OSError."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    options: dict[str, Any] = {"ssl_handshake_timeout": _HANDSHAKE_TIMEOUT_S} if context is not None else {}
    accepting: Coroutine[Any, Any, Any] = loop.connect_accepted_socket(
        lambda: protocol, connection, ssl=context, **options
    )
    transport, _ = await accepting
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
