"""The HTTP server: uvicorn's own protocol with four things added.

- Bounds: a client whose head, trailer or chunk extension grows without end is sent away, before it fills the memory.
- What is not HTTP is answered in the API's own error shape.
- Every kind of upgrade goes to the tunnel, not WebSockets only: what a server in a sandbox speaks is its own affair.
- An application may cut its client's connection (`asgi.CLOSE`), because a reply that broke off must not look complete.
"""

from __future__ import annotations

import asyncio
import json

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sandyard.engine.e2b.dataplane.asgi import CLOSE

SILENT_LIMIT = 64 * 1024
"""How many bytes a client may send without completing a head or a piece of a body."""
HEADERS_LIMIT = 256
HEAD_SECONDS = 20.0
"""How long a client may take to say what it wants, from its connection or the first byte of its request."""


class BoundedProtocol(HttpToolsProtocol):
    _silent = 0
    _progress = False
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self.transport.close)

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._silent = 0 if self._progress else self._silent + len(data)
        if self._silent > SILENT_LIMIT and not self.transport.is_closing():
            self._refuse(431, "The request's headers are too large: send less than 64 KiB.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._expect_head()
        self.scope["extensions"] = {CLOSE: {"close": self.transport.close}}

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._in_head:
            return  # a trailer: nobody here asks for one
        if len(self.headers) >= HEADERS_LIMIT:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._progress = True
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        super().on_body(body)

    def _should_upgrade(self) -> bool:
        # h2c is an offer, not a wish: a client that makes it (curl --http2) goes on in HTTP/1.1 when it is passed over
        return self.ws_protocol_class is not None and self._get_upgrade() not in (None, b"h2c")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP/1.1.")

    def _refuse(self, status: int, message: str) -> None:
        body = json.dumps({"code": status, "message": message}).encode()
        head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()
