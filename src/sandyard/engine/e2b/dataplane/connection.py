"""Connections into a sandbox: plain, or TLS if the sandbox's owner said that the server there uses it
(`network.httpsPorts`).

TLS is a layer between a connection and the protocol that uses it. The layers of asyncio and uvloop discard data that
was received while reading was paused, once the other side has closed: a server that responds and closes would lose the
end of its response if the client reads slowly. This one delivers every byte, at the reader's pace.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sandyard.engine.e2b.dataplane.reply import BadReplyError, BrokenUpstreamError

P = TypeVar("P", bound=asyncio.Protocol)
HANDSHAKE_SECONDS = 10.0
READ_BYTES = 64 * 1024


class TlsLayer(asyncio.Protocol, asyncio.Transport):
    """The protocol of the connection below, and the transport of `inner`, which is connected once `ready` is done.
    `ready` fails with ssl.SSLError, or with ConnectionError if the other side closes the connection."""

    def __init__(self, inner: asyncio.Protocol, context: ssl.SSLContext, name: str) -> None:
        super().__init__()
        self.inner = inner
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=name)
        self._below: asyncio.Transport | None = None
        self._connected = self._paused = self._ended = False

    # the protocol below

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._below = cast(asyncio.Transport, transport)
        self._continue_handshake()

    def data_received(self, data: bytes) -> None:
        self._incoming.write(data)
        if not self._connected:
            self._continue_handshake()
        self._deliver()

    def eof_received(self) -> None:
        """Close completely: connections are never left half open."""

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(ConnectionResetError("The server in the sandbox closed the connection."))
        self._end(exc)

    def pause_writing(self) -> None:
        if self._connected:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        if self._connected:
            self.inner.resume_writing()

    # the transport of `inner`

    def write(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view and not self._ended:
            try:
                view = view[self._tls.write(view) :]
            except ssl.SSLError:
                self.abort()
                return
        self._flush()

    def pause_reading(self) -> None:
        self._paused = True
        if self._below is not None and not self._below.is_closing() and self._below.is_reading():
            self._below.pause_reading()

    def resume_reading(self) -> None:
        self._paused = False
        self._deliver()
        if (
            not self._paused
            and self._below is not None
            and not self._below.is_closing()
            and not self._below.is_reading()
        ):
            self._below.resume_reading()

    def is_reading(self) -> bool:
        return not self._paused

    def is_closing(self) -> bool:
        return self._ended or self._below is None or self._below.is_closing()

    def close(self) -> None:
        if self._below is not None and not self._below.is_closing():
            if self._connected:
                # the closing message has been sent, or can no longer be sent
                with contextlib.suppress(ssl.SSLError, ValueError):
                    self._tls.unwrap()
                self._flush()
            self._below.close()

    def abort(self) -> None:
        if self._below is not None:
            self._below.abort()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if self._below is not None:
            self._below.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._below.get_extra_info(name, default) if self._below is not None else default

    # inside

    def _continue_handshake(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except ssl.SSLError as error:
            if not self.ready.done():
                self.ready.set_exception(error)
            self.abort()
            return
        self._flush()
        self._connected = True
        self.inner.connection_made(self)
        if not self.ready.done():
            self.ready.set_result(None)

    def _deliver(self) -> None:
        """Pass on what can be read, until the reader pauses."""
        while self._connected and not self._paused and not self._ended:
            try:
                data = self._tls.read(READ_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError:
                self.abort()
                return
            if not data:  # the other side has sent its closing message
                self.close()
                return
            self.inner.data_received(data)
        self._flush()  # sends responses to the other side's TLS control messages

    def _end(self, exc: Exception | None) -> None:
        """Handle the end of the connection; data received before is still passed on, even if the reader is paused."""
        self._paused = False
        while self._connected and not self._ended:
            try:
                data = self._tls.read(READ_BYTES)
            except ssl.SSLError:
                break
            if not data:
                break
            self.inner.data_received(data)
            self._paused = False
        self._ended = True
        if self._connected:
            self.inner.connection_lost(exc)

    def _flush(self) -> None:
        if self._outgoing.pending and self._below is not None and not self._below.is_closing():
            self._below.write(self._outgoing.read())


async def open_connection(make_protocol: Callable[[], P], sock: socket.socket, server_name: str | None) -> P:
    """Take over the socket. `server_name` is the server name for a TLS handshake, or None for a plain connection. The
    certificate is not verified, because the connection leads to that sandbox in any case. On failure the socket is
    closed and BrokenUpstreamError is raised, or BadReplyError if the server does not use TLS."""
    loop = asyncio.get_running_loop()
    connect: Any = loop.create_unix_connection if sock.family == socket.AF_UNIX else loop.create_connection
    protocol = make_protocol()
    layer = protocol if server_name is None else TlsLayer(protocol, _CONTEXT, server_name)
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
