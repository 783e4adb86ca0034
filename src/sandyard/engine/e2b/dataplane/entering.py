"""Turn a connected socket into a sandbox into a connection: plain, or TLS if the sandbox's owner said that the server
there uses it (`network.httpsPorts`)."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar

from sandyard.engine.e2b.dataplane.reply import BadReplyError, BrokenUpstreamError
from sandyard.engine.e2b.dataplane.secured import TlsLayer

P = TypeVar("P", bound=asyncio.Protocol)
HANDSHAKE_SECONDS = 10.0


async def open_connection(make: Callable[[], P], sock: socket.socket, secure: str | None) -> P:
    """Take over the socket. `secure` is the server name for a TLS handshake, or None for a plain connection. The
    certificate is not verified, because the connection leads to that sandbox in any case. On failure the socket is
    closed and BrokenUpstreamError is raised, or BadReplyError if the server does not use TLS."""
    loop = asyncio.get_running_loop()
    connect: Any = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
    protocol = make()
    layer = protocol if secure is None else TlsLayer(protocol, _CONTEXT, secure)
    try:
        await connect(lambda: layer, sock=sock)
    except OSError as error:
        sock.close()
        raise BrokenUpstreamError(str(error)) from error
    if isinstance(layer, TlsLayer):
        await _handshake(layer)
    return protocol


async def _handshake(layer: TlsLayer) -> None:
    try:
        async with asyncio.timeout(HANDSHAKE_SECONDS):
            await layer.ready
    except (ssl.SSLError, ConnectionError, TimeoutError) as error:
        layer.abort()
        raise BadReplyError(
            "The server on this port does not use TLS, although the port is listed in network.httpsPorts."
        ) from error
    except BaseException:
        layer.abort()
        raise


def _make_unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


_CONTEXT = _make_unverified_context()
