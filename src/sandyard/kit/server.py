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
PIPELINE_LIMIT = 100
"""Most pipelined requests that may wait on one connection. Each takes tens of kilobytes of memory."""
HEAD_SECONDS = 20.0
"""How long a client may take to say what it wants, from its connection or the first byte of its request."""
BODY_SECONDS, BODY_BYTES_PER_SECOND = 60.0, 100
"""How often it is looked whether the rest of a body arrives at that rate. Time in which the application does not read is not counted."""
STREAM_SILENCE_SECONDS = 600.0
"""How long a body may pause whose sender may take its time (`allow_slow_body`)."""


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
    end, is sent away before it costs anything; so is one whose body arrives more slowly than anybody's line is."""

    _silent = 0
    _progress = False
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _in_body = False
    _body_bytes = 0  # since the timer was set
    _body_held_up = False  # by the application, since the timer was set
    _slow_scope: object = None  # of the request whose body may be slow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        self._body_is_there()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        self._head_is_there()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._in_head:
            self.refuse(408, f"The request's headers did not arrive within {HEAD_SECONDS:.0f} seconds.")
        else:
            self.transport.close()

    def _head_is_there(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def allow_slow_body(self, scope: object) -> None:
        """The application wants this request's body however slowly it comes: it is a stream."""
        self._slow_scope = scope

    def _expect_body(self) -> None:
        seconds = STREAM_SILENCE_SECONDS if self._slow_scope is self.scope else BODY_SECONDS
        self._body_bytes, self._body_held_up = 0, self.flow.read_paused
        self._body_timer = self.loop.call_later(seconds, self._look_at_body, seconds)

    def _look_at_body(self, seconds: float) -> None:
        """Whether enough of it came since the timer was set."""
        cycle = self.cycle
        answering = (
            cycle.response_started and not cycle.response_complete
        )  # both sides talk: it is for the application to end
        if self._slow_scope is self.scope:
            enough = self._body_bytes > 0 or seconds < STREAM_SILENCE_SECONDS
            late = f"Nothing of the request's body arrived for {seconds:.0f} seconds."
        else:
            enough = self._body_bytes >= BODY_BYTES_PER_SECOND * seconds
            late = f"The request's body arrives too slowly: send at least {BODY_BYTES_PER_SECOND} bytes a second."
        if enough or answering or self._body_held_up or cycle.waiting_for_100_continue:
            self._expect_body()
            return
        self._body_timer = None
        if cycle.response_complete:
            self.transport.close()
            return
        self.refuse(408, late)
        cycle.disconnected = True  # the application learns it at once, and what it still says is not sent
        cycle.message_event.set()

    def _body_is_there(self) -> None:
        self._in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def data_received(self, data: bytes) -> None:
        self._progress = False
        super().data_received(data)
        self._silent = 0 if self._progress else self._silent + len(data)
        if self.transport.is_closing():
            return
        if self._silent > SILENT_LIMIT:
            self.refuse(431, "The request's headers are too large: send less than 64 KiB.")
        elif self._in_body and self._body_timer is None:
            self._expect_body()
        elif self._silent and not self._in_body and self._head_timer is None and not self._is_answering():
            self._expect_head()  # bytes between requests that begin none

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def handle_websocket_upgrade(self) -> None:
        self._body_is_there()
        super().handle_websocket_upgrade()

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= PIPELINE_LIMIT:
            raise ValueError("too many pipelined requests")
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
        self._progress = self._in_body = True
        self._head_is_there()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._body_bytes += len(body)
        super().on_body(body)
        self._body_held_up = self._body_held_up or self.flow.read_paused

    def on_message_complete(self) -> None:
        self._progress = True  # the end of a chunked body may come alone
        self._body_is_there()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if len(self.pipeline) >= PIPELINE_LIMIT:
            self.refuse(400, f"Too many pipelined requests: wait for answers after {PIPELINE_LIMIT}.")
        else:
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
