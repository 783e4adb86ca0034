"""An HTTP server that bounds its clients and leaves signals to whoever runs it."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

SILENT_LIMIT = 64 * 1024
"""How many bytes a client may send without completing a head or a piece of a body."""
HEADERS_LIMIT = 256
HEAD_SECONDS = 20.0
"""How long a client may take to say what it wants, from its connection or the first byte of its request."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handling: it would end the process before what it serves is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def local_url(host: str, port: int) -> str:
    """Where a client on this machine finds a server that listens there."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{name}:{port}"


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's own, with bounds: a client whose head, trailer or chunk extension grows without end, or never comes to an
    end, is sent away before it costs anything."""

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
            self.refuse(431, "The request's headers are too large: send less than 64 KiB.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._expect_head()

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

    def send_400_response(self, msg: str) -> None:
        self.refuse(400, "The request is not valid HTTP/1.1.")

    def refuse(self, status: int, message: str) -> None:
        """Answer what is no request, and hang up."""
        kind, content = self.problem(status, message)
        body = json.dumps(content).encode()
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % (kind, len(body))
        self.transport.write(STATUS_LINE[status] + head + body)
        self.transport.close()

    def problem(self, status: int, message: str) -> tuple[bytes, dict[str, object]]:
        """The content type and JSON of an error."""
        return b"application/json", {"code": status, "message": message}
