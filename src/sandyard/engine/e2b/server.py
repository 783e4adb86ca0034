"""The HTTP server: uvicorn's own protocol with four things added.

- Bounds: a client whose head, trailer or chunk extension grows without end is sent away, before it fills the memory.
- What is not HTTP is answered in the API's own error shape.
- Every kind of upgrade goes to the tunnel, not WebSockets only: what a server in a sandbox speaks is its own affair.
- An application may cut its client's connection (`asgi.CLOSE`), because a reply that broke off must not look complete.
"""

from __future__ import annotations

import json

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from sandyard.engine.e2b.dataplane.asgi import CLOSE

SILENT_LIMIT = 64 * 1024
"""How many bytes a client may send without completing a head or a piece of a body."""
HEADERS_LIMIT = 256


class BoundedProtocol(HttpToolsProtocol):
    _silent = 0
    _progress = False
    _in_head = False

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._silent = 0 if self._progress else self._silent + len(data)
        if self._silent > SILENT_LIMIT and not self.transport.is_closing():
            self._refuse(431, "The request's headers are too large: send less than 64 KiB.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
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
