"""Connections that the proxy opens: always from inside the sandbox's own network namespace, so that the firewall checks
them like those of the sandbox."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from ipaddress import IPv4Address
from pathlib import Path

import dns.exception
import dns.flags
import dns.message

from sandyard.engine.drivers.machine.net.dns_wire import parse_addresses, parse_question
from sandyard.engine.drivers.machine.net.proxy.sockets import enable_keepalive
from sandyard.engine.drivers.machine.net.upstream import Upstream

MARK = 0x2B
"""The DSCP value by which the firewall recognises our packets and does not redirect them again. It is cleared before
the packets leave, and a sandbox that sets it gains nothing."""

_MAX_ADDRESSES = 4  # addresses tried for one name
_CONNECT_TIMEOUT_S, _HANDSHAKE_TIMEOUT_S = 8.0, 10.0


class RefusedError(Exception):
    """The request is not forwarded; the client gets this message with that status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


OpenSocket = Callable[[int], Awaitable[socket.socket]]
"""Returns a new TCP socket in the namespace with this index."""
Admit = Callable[[IPv4Address, str, Mapping[IPv4Address, int]], Awaitable[None]]


class Dialler:
    """Opens connections for sandboxes. `admit` opens the addresses that a name resolved to for the sandbox with that
    address, if its policy allows the name."""

    def __init__(self, open_socket: OpenSocket, upstream: Upstream, admit: Admit, ca_file: Path | None) -> None:
        """Blocks briefly. `ca_file` contains authorities that are trusted in addition to the machine's."""
        self._open_socket = open_socket
        self._upstream = upstream
        self._admit = admit
        self._tls = ssl.create_default_context()
        if ca_file is not None:
            self._tls.load_verify_locations(cafile=ca_file)
        self._tls.minimum_version = ssl.TLSVersion.TLSv1_2
        self._tls.set_alpn_protocols(["http/1.1"])

    async def connect_address(self, index: int, address: IPv4Address, port: int) -> socket.socket:
        """Connect to an address. Raises OSError."""
        connection = await self._open_socket(index)
        try:
            connection.setsockopt(socket.SOL_IP, socket.IP_TOS, MARK << 2)
            enable_keepalive(connection)
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().sock_connect(connection, (str(address), port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def connect_host(self, index: int, sandbox: IPv4Address, host: str, port: int) -> socket.socket:
        """Connect to a host by name. Raises RefusedError."""
        found = await self._resolve(host)
        if not found:
            raise RefusedError(502, f"The name {host} could not be resolved. Check its spelling.")
        await self._admit(sandbox, host, found)
        reason = ""
        for address in list(found)[:_MAX_ADDRESSES]:
            try:
                return await self.connect_address(index, address, port)
            except OSError as error:
                reason = error.strerror or "no answer in time"
        raise RefusedError(
            502,
            f"{host} cannot be reached from this sandbox: {reason}. Check whether its network policy allows the host.",
        )

    async def start_tls(
        self, connection: socket.socket, host: str
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start TLS with this host on a connection, which the streams take over. Raises RefusedError."""
        try:
            return await asyncio.open_connection(
                sock=connection, ssl=self._tls, server_hostname=host, ssl_handshake_timeout=_HANDSHAKE_TIMEOUT_S
            )
        except ssl.SSLCertVerificationError as error:
            connection.close()
            raise RefusedError(502, f"The certificate of {host} is not valid: {error.verify_message}.") from error
        except OSError as error:  # includes ssl.SSLError and TimeoutError
            connection.close()
            raise RefusedError(502, f"The TLS connection to {host} failed: {error}.") from error

    async def _resolve(self, host: str) -> dict[IPv4Address, int]:
        try:
            wire = dns.message.make_query(host, "A").to_wire()
        except dns.exception.DNSException:
            return {}
        question = parse_question(wire)
        if question is None:
            return {}
        answer = await self._upstream.query(wire, question, stream=False)
        if answer is not None and int.from_bytes(answer[2:4], "big") & dns.flags.TC:
            answer = await self._upstream.query(wire, question, stream=True)
        return parse_addresses(answer) if answer is not None else {}
