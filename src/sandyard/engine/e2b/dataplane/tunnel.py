"""WebSockets into a sandbox: the client's connection and one to the sandbox's port, joined byte for byte.

uvicorn hands a connection over as soon as a client asks to upgrade it. Until the sandbox has agreed (101), only that
one request of the client is forwarded. If the sandbox does not agree, its response is the last thing on the connection:
what follows might be meant for another server.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import unquote

from sandyard.engine.e2b.dataplane import pages
from sandyard.engine.e2b.dataplane.asgi import Headers, Scope
from sandyard.engine.e2b.dataplane.connection import open_connection
from sandyard.engine.e2b.dataplane.pages import Page
from sandyard.engine.e2b.dataplane.relay import filter_end_to_end
from sandyard.engine.e2b.dataplane.reply import OVERHEAD_LIMIT, BadReplyError, Reply, UpstreamError
from sandyard.engine.e2b.dataplane.target import Target
from sandyard.kit.connections import UnreadWatch
from sandyard.kit.errors import SandyardError
from sandyard.kit.pacing import PacedInput
from sandyard.kit.server import SLICE_BYTES

if TYPE_CHECKING:
    from uvicorn.server import ServerState

BUFFER_BYTES = 256 * 1024
CLOSE_TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class TunnelConnection:
    """A socket into the sandbox, the TLS server name if the server there uses TLS, and the headers to send."""

    target: Target
    sock: socket.socket
    server_name: str | None
    headers: Headers


class TunnelGateway(Protocol):
    """The methods of the gateway that a tunnel calls."""

    async def open_tunnel(self, scope: Scope, tunnel: Tunnel) -> TunnelConnection | Page:
        """Return the connection that this request may use, or the response to send instead."""
        ...

    def end_tunnel(self, target: Target, tunnel: Tunnel) -> None: ...


class TunnelSide(asyncio.Protocol):
    """One of the two connections of a tunnel."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=BUFFER_BYTES)

    def write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause_reading(self) -> None:
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing() and not self._transport.is_reading():
            self._transport.resume_reading()


class Tunnel(TunnelSide):
    """The client's side. Created by uvicorn, for one connection."""

    def __init__(self, gateway: TunnelGateway, server_state: ServerState) -> None:
        super().__init__()
        self._gateway = gateway
        self._connections = cast(set[Any], server_state.connections)
        self._unread: UnreadWatch | None = None
        self._sandbox_side: SandboxSide | None = None
        self._task: asyncio.Task[None] | None = None
        self._target: Target | None = None

    @classmethod
    def factory(cls, gateway: TunnelGateway) -> Callable[..., Tunnel]:
        """Return the factory that uvicorn calls as its WebSocket protocol."""

        def make(config: Any, server_state: ServerState, app_state: Any) -> Tunnel:
            return cls(gateway, server_state)

        return make

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unread = UnreadWatch(cast(asyncio.Transport, transport), asyncio.get_running_loop())
        self._connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._task is None:
            self.pause_reading()
            self._task = asyncio.get_running_loop().create_task(self._open(data))
        elif self._sandbox_side is not None:
            self._sandbox_side.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        if self._unread is not None:
            self._unread.stop()
        if self._task is not None:
            self._task.cancel()
        if self._sandbox_side is not None:
            self._sandbox_side.close()
        if self._target is not None:
            self._gateway.end_tunnel(self._target, self)

    def pause_writing(self) -> None:
        if self._unread is not None:
            self._unread.start()
        if self._sandbox_side is not None:
            self._sandbox_side.pause_reading()

    def resume_writing(self) -> None:
        if self._sandbox_side is not None:
            self._sandbox_side.resume_reading()

    def shutdown(self) -> None:
        """Close the connection because the server stops. Over TLS, do not rely on the client completing the closing
        handshake."""
        self.close()
        if self._transport is not None:
            asyncio.get_running_loop().call_later(CLOSE_TIMEOUT_SECONDS, self._transport.abort)

    def abort(self, reason: str = "") -> None:
        """Close the connection because the sandbox paused or ended."""
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            if self._unread is not None and self._transport.get_write_buffer_size():
                self._unread.start()

    def refuse(self, page: Page, headers: Headers) -> None:
        """Respond instead of the sandbox, and close the connection."""
        content_type, body = pages.render(page, headers)
        self.respond(page.status, [(b"content-type", content_type), *pages.CORS], body)

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        phrase = _get_phrase(status)
        lines = [f"HTTP/1.1 {status} {phrase}".encode()]
        lines += [b"%b: %b" % pair for pair in headers if pair[0] != b"content-length"]
        lines += [b"content-length: %d" % len(body), b"connection: close", b"", body]
        self.write(b"\r\n".join(lines))
        self.close()

    async def _open(self, request: bytes) -> None:
        scope = _make_scope(request, self._transport)
        try:
            connection = await self._gateway.open_tunnel(scope, self)
        except SandyardError as error:
            connection = pages.plain(error.status, error.message)
        if isinstance(connection, Page):
            self.refuse(connection, scope["headers"])
            return
        self._target = connection.target
        try:
            self._sandbox_side = await open_connection(
                lambda: SandboxSide(self), connection.sock, connection.server_name
            )
        except BadReplyError as error:
            self.refuse(pages.plain(502, str(error), self._target), scope["headers"])
            return
        except UpstreamError:
            self.refuse(pages.port_closed(self._target), scope["headers"])
            return
        lines = [request.partition(b"\r\n")[0], *(b"%b: %b" % pair for pair in connection.headers), b"", b""]
        self._sandbox_side.write(b"\r\n".join(lines))


class SandboxSide(TunnelSide):
    """The sandbox's side."""

    def __init__(self, client: Tunnel) -> None:
        super().__init__()
        self._client = client
        self._paced_input: PacedInput | None = None  # for a response that refuses the upgrade
        self._head: bytes | None = b""  # the part of the response's head received so far; None once the tunnel is open
        self._refusal: Reply | None = None

    def data_received(self, data: bytes) -> None:
        if self._head is None:
            self._client.write(data)
        elif self._paced_input is not None:
            self._paced_input.receive(data)
        else:
            self._handle_head(self._head + data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._paced_input is not None:
            self._paced_input.end(self._end)
        else:
            self._end()

    def _end(self) -> None:
        """Handle the end of the connection, after everything received before was forwarded."""
        if self._refusal is not None and self._refusal.end():
            self._forward_refusal(self._refusal)
        elif self._head is not None:
            self._client.refuse(pages.plain(502, "The sandbox closed the connection instead of upgrading it."), [])
        self._client.close()

    def pause_writing(self) -> None:
        self._client.pause_reading()

    def resume_writing(self) -> None:
        self._client.resume_reading()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _handle_head(self, head: bytes) -> None:
        self._head = head
        if b"\r\n\r\n" not in head:
            if len(head) > OVERHEAD_LIMIT:
                self._client.refuse(pages.plain(502, "The sandbox sent headers that are too large."), [])
                self.close()
            return
        if head.startswith((b"HTTP/1.1 101 ", b"HTTP/1.1 101\r")):
            self._head = None
            self._client.write(head)
            self._client.resume_reading()
            return
        assert self._transport is not None
        self._refusal = Reply("GET")
        self._paced_input = PacedInput(self._transport, self._collect_refusal, slice_bytes=SLICE_BYTES)
        self._paced_input.receive(head)

    def _collect_refusal(self, data: bytes) -> int:
        """Collect the response that refuses the upgrade, within limits, and forward it as the last one. Return the
        number of parts."""
        reply = self._refusal
        if reply is None:
            return 0
        before = reply.parts
        try:
            reply.feed(data)
        except BadReplyError as error:
            self._head, self._refusal = None, None
            self._client.refuse(pages.plain(502, str(error)), [])
            self.close()
            return 0
        if reply.complete or reply.waiting > OVERHEAD_LIMIT:
            self._forward_refusal(reply)
        return reply.parts - before

    def _forward_refusal(self, reply: Reply) -> None:
        self._head, self._refusal = None, None
        if reply.head is not None:
            self._client.respond(
                reply.head.status, filter_end_to_end(reply.head.headers), reply.take()[:OVERHEAD_LIMIT]
            )
        self.close()


def _make_scope(request: bytes, transport: asyncio.Transport | None) -> Scope:
    """Return the parts of an ASGI scope that routing and access checks use."""
    start, *lines = request.split(b"\r\n\r\n", 1)[0].split(b"\r\n")
    method, target, _ = start.split(b" ", 2)
    raw_path, _, query = target.partition(b"?")
    peer = transport.get_extra_info("peername") if transport is not None else None
    return {
        "type": "http",
        "scheme": "https" if transport is not None and transport.get_extra_info("sslcontext") else "http",
        "method": method.decode("latin-1"),
        "path": unquote(raw_path.decode("latin-1")),
        "raw_path": raw_path,
        "query_string": query,
        "headers": [(name, value.lstrip()) for name, _, value in (line.partition(b":") for line in lines)],
        "client": (peer[0], peer[1]) if isinstance(peer, tuple) else None,
    }


def _get_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:  # a status that is not registered
        return ""
