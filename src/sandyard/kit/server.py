"""An HTTP server with limits on its clients that leaves signal handling to its caller."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import deque
from collections.abc import Iterator, MutableMapping
from typing import Any, Protocol

import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from sandyard.kit import connections
from sandyard.kit.pacing import PacedInput

SLICE_BYTES = 4096
"""How many received bytes are parsed at once, at most: several hundred chunks of one byte."""
OVERHEAD_LIMIT = 64 * 1024
"""How many bytes a client may send without completing a head or part of a body."""
HEADERS_LIMIT = 256
PIPELINE_LIMIT = 100
"""How many pipelined requests may wait on one connection. Each takes tens of kilobytes of memory."""
PIPELINE_BYTES = 256 * 1024
"""How many bytes waiting pipelined requests may have together."""
HEAD_SECONDS = 20.0
"""How long a client may take to send its headers, from the start of the connection or the first byte of the request."""
BODY_SECONDS, BODY_BYTES_PER_SECOND = 60.0, 100
"""How often to check that a body arrives at this rate. Time in which the application does not read is not counted."""
STREAM_SILENCE_SECONDS = 600.0
"""How long a streaming body may pause (`allow_slow_body`)."""
UNAUTHENTICATED_IDLE_SECONDS = 15
"""How long an idle unauthenticated connection is kept. Authenticated ones are kept for the server's keep-alive time."""
DATE_SECONDS = 1.0
"""How often to update the Date header."""
CLOSING_SECONDS = 0.005
"""How often to check whether all connections of a stopping server are closed."""
RETRY_SECONDS = 5
"""The Retry-After sent to clients that are refused for lack of connections."""
AUTHENTICATED = "sandyard.authenticated"
"""Name of the scope extension whose `mark` reports that the client sent a valid credential. Missing once that was reported."""
CONNECTION = "sandyard.connection"
"""Name of the scope extension whose `is_closing` returns whether the request's connection is closed."""


def mark_authenticated(scope: MutableMapping[str, Any]) -> None:
    """Report that this request's client sent a valid credential, so that its connection is kept longer."""
    extension = scope.get("extensions", {}).get(AUTHENTICATED)
    if extension is not None:
        extension["mark"]()


def is_client_gone(scope: MutableMapping[str, Any]) -> bool:
    """Return whether the request's client has disconnected. False if that is unknown."""
    extension = scope.get("extensions", {}).get(CONNECTION)
    return extension is not None and bool(extension["is_closing"]())


class Handshake(Protocol):
    """A TLS handshake that was counted as a connection."""

    def release(self) -> None:
        """Stop counting it. Idempotent."""


class Server(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before the application is closed, and that stops at once: uvicorn
    looks ten times a second whether it should exit, and then sleeps for another tenth."""

    def __init__(self, config: uvicorn.Config) -> None:
        self._exiting = asyncio.Event()
        super().__init__(config)

    @property
    def should_exit(self) -> bool:
        """Set this to True in the event loop of the server to stop it."""
        return self._exiting.is_set()

    @should_exit.setter
    def should_exit(self, value: bool) -> None:
        if value:
            self._exiting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # updates the Date header
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_SECONDS):
                    await self._exiting.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more connections, close idle ones, and wait for the requests in progress, at most as long as the configuration says."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110 - uvicorn's sets, which tell nobody
                    await asyncio.sleep(CLOSING_SECONDS)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel("The server stops.")


class _Flow(FlowControl):
    """Resumes reading only when everything that was read is parsed."""

    def __init__(self, transport: asyncio.Transport, paced_input: PacedInput) -> None:
        super().__init__(transport)
        self._paced_input = paced_input

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._paced_input.resume()


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with limits. It disconnects clients whose head, trailer or chunk extension is too large or too slow, whose body
    arrives too slowly, that do not read their responses, and that exceed the limit on `connections`. A client that sends many tiny chunks
    waits for others (`pacing`)."""

    authenticated = False
    handshake: Handshake | None = None  # counted as a connection until this protocol takes over
    _unread: connections.UnreadWatch
    _paced_input: PacedInput
    _parts = 0  # chunks, headers and requests so far
    _running: RequestResponseCycle | None = None  # the request being answered; `cycle` is the one being received
    _waiting_bytes = 0  # size of the pipelined requests that wait
    _overhead = 0  # bytes since a head or part of a body was completed
    _progress = False  # whether the piece being parsed completes one
    _in_head = False
    _head_timer: asyncio.TimerHandle | None = None
    _body_timer: asyncio.TimerHandle | None = None
    _in_body = False
    _body_bytes = 0  # since the timer was set
    _body_held_up = False  # whether the application stopped reading since the timer was set
    _slow_scope: object = None  # the scope of the request whose body may be slow

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # same as in uvicorn
        super().connection_made(transport)
        self._paced_input = PacedInput(
            transport, self._parse, slice_bytes=SLICE_BYTES, may_read=lambda: not self.flow.read_paused
        )
        self.flow = _Flow(transport, self._paced_input)
        self._unread = connections.UnreadWatch(transport, self.loop)
        self._waiting: deque[int] = deque()  # bytes of each request in `pipeline`, oldest first
        self.timeout_keep_alive = min(UNAUTHENTICATED_IDLE_SECONDS, self.config.timeout_keep_alive)
        if self.handshake is not None:
            self.handshake.release()
        if connections.CONNECTIONS.add(self):
            self._start_head_timer()
        else:
            self.refuse(503, "Too many connections. Try again in a few seconds.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._release()
        self._paced_input.drop()
        self._stop_head_timer()
        self._finish_body()
        self._disconnect()
        super().connection_lost(exc)

    def _release(self) -> None:
        connections.CONNECTIONS.remove(self)
        self._unread.stop()

    def _disconnect(self) -> None:
        """Tell the application that its client is gone. What it still sends is discarded."""
        self.pipeline.clear()
        for cycle in (self._running, self.cycle):
            if cycle is not None and not cycle.response_complete:
                cycle.disconnected = True
                cycle.message_event.set()

    def can_be_dropped(self) -> bool:
        """Return whether nobody loses anything: no headers of an authenticated client are arriving and no response is unsent."""
        return not (self.authenticated and self._in_head) and not self.transport.get_write_buffer_size()

    def drop(self) -> None:
        self.transport.abort()

    def close(self) -> None:
        """Close the connection after the data sent so far, if the client reads it."""
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self._unread.start()

    def _mark_authenticated(self) -> None:
        self.authenticated = True
        self.timeout_keep_alive = self.config.timeout_keep_alive

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread.start()

    def _start_head_timer(self) -> None:
        self._stop_head_timer()
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._on_head_timeout)

    def _on_head_timeout(self) -> None:
        self._head_timer = None
        if self._in_head:
            self.refuse(408, f"The request's headers did not arrive within {HEAD_SECONDS:.0f} seconds.")
        else:
            self.transport.close()

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def allow_slow_body(self, scope: object) -> None:
        """Accept this request's body at any rate, because it is a stream."""
        self._slow_scope = scope

    def _start_body_timer(self) -> None:
        seconds = STREAM_SILENCE_SECONDS if self._slow_scope is self.scope else BODY_SECONDS
        self._body_bytes, self._body_held_up = 0, self.flow.read_paused
        self._body_timer = self.loop.call_later(seconds, self._check_body_rate, seconds)

    def _check_body_rate(self, seconds: float) -> None:
        """Check that enough of the body arrived since the timer was set."""
        cycle = self.cycle
        # both sides are sending: the application decides when to end
        answering = cycle.response_started and not cycle.response_complete
        if self._slow_scope is self.scope:
            enough = self._body_bytes > 0 or seconds < STREAM_SILENCE_SECONDS
            message = f"No part of the request's body arrived for {seconds:.0f} seconds."
        else:
            enough = self._body_bytes >= BODY_BYTES_PER_SECOND * seconds
            message = f"The request's body arrives too slowly: send at least {BODY_BYTES_PER_SECOND} bytes a second."
        held_up = self._body_held_up or self._paced_input.busy
        if enough or answering or held_up or cycle.waiting_for_100_continue:
            self._start_body_timer()
            return
        self._body_timer = None
        if cycle.response_complete:
            self.transport.close()
            return
        self.refuse(408, message)

    def _finish_body(self) -> None:
        self._in_body = False
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def data_received(self, data: bytes) -> None:
        self._paced_input.receive(data)

    def _parse(self, data: bytes) -> int:
        """Parse the next piece of received data. Return how many parts it contained."""
        before = self._parts
        self._progress = False
        super().data_received(data)
        self._overhead = 0 if self._progress else self._overhead + len(data)
        if not self.transport.is_closing():
            self._check_progress()
        return self._parts - before

    def _check_progress(self) -> None:
        if self._overhead > OVERHEAD_LIMIT:
            self.refuse(431, "The request's headers are too large: send less than 64 KiB.")
        elif self._in_body and self._body_timer is None:
            self._start_body_timer()
        elif self._overhead and not self._in_body and self._head_timer is None and not self._is_answering():
            self._start_head_timer()  # bytes between requests that do not start a request

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def handle_websocket_upgrade(self) -> None:
        self._finish_body()
        self._paced_input.drop()
        super().handle_websocket_upgrade()
        # the connection counts until it is lost, which is reported to its next protocol
        next_protocol: asyncio.BaseProtocol = self.transport.get_protocol()
        lost = next_protocol.connection_lost

        def connection_lost(exc: Exception | None) -> None:
            self._release()
            lost(exc)

        next_protocol.connection_lost = connection_lost  # type: ignore[method-assign]

    def on_message_begin(self) -> None:
        if self._pipeline_is_full():
            raise ValueError("too many pipelined requests")
        self._parts += 1
        super().on_message_begin()
        extensions: dict[str, dict[object, object]] = {CONNECTION: {"is_closing": self.transport.is_closing}}
        if not self.authenticated:
            extensions[AUTHENTICATED] = {"mark": self._mark_authenticated}
        self.scope["extensions"] = extensions
        self._in_head = True
        self._start_head_timer()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._parts += 1
        if not self._in_head:
            return  # a trailer, which is not used
        if len(self.headers) >= HEADERS_LIMIT:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        hosts = sum(name == b"host" for name, _ in self.headers)
        if hosts > 1 or (not hosts and self.parser.get_http_version() != "1.0"):
            raise ValueError("not exactly one Host header")  # RFC 9112, 3.2: a proxy in front may have used another one
        self._in_head = False
        self._progress = self._in_body = True
        self._stop_head_timer()
        connections.CONNECTIONS.mark_busy(self)
        waiting = len(self.pipeline)
        super().on_headers_complete()
        if len(self.pipeline) > waiting:
            self._waiting.append(0)
            self._count_waiting(len(self.url) + sum(len(name) + len(value) for name, value in self.headers))

    def _count_waiting(self, size: int) -> None:
        self._waiting[-1] += size
        self._waiting_bytes += size
        if self._pipeline_is_full():
            raise ValueError("too many pipelined requests")

    def _pipeline_is_full(self) -> bool:
        return len(self.pipeline) >= PIPELINE_LIMIT or self._waiting_bytes > PIPELINE_BYTES

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        if self._waiting:
            self._waiting_bytes -= self._waiting.popleft()
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last:
            connections.CONNECTIONS.mark_idle(self)
        if self.transport.get_write_buffer_size():
            self._unread.start()  # this may be the last write

    def on_body(self, body: bytes) -> None:
        self._progress = True
        self._parts += 1
        self._body_bytes += len(body)
        super().on_body(body)
        if self.cycle is not self._running and self._waiting:
            self._count_waiting(len(body))
        self._body_held_up = self._body_held_up or self.flow.read_paused

    def on_message_complete(self) -> None:
        self._progress = True  # the end of a chunked body may arrive separately
        self._finish_body()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        if self._pipeline_is_full():
            limits = f"{PIPELINE_LIMIT} requests or {PIPELINE_BYTES // 1024} KiB"
            self.refuse(400, f"Too many pipelined requests: wait for responses after {limits}.")
        else:
            self.refuse(400, "The request is not valid HTTP/1.1, or has no Host header or several.")

    def refuse(self, status: int, message: str) -> None:
        """Send an error response and close the connection. If another response is being sent, only close."""
        running = self._running
        answering = running is not None and running.response_started and not running.response_complete
        self._paced_input.drop()
        self._disconnect()
        if answering:
            self.close()
            return
        kind, content = self.make_problem(status, message)
        body = json.dumps(content).encode()
        head = b"content-type: %s\r\ncontent-length: %d\r\nconnection: close\r\n" % (kind, len(body))
        if status == 503:
            head += b"retry-after: %d\r\n" % RETRY_SECONDS
        self.transport.write(STATUS_LINE[status] + head + b"\r\n" + body)
        self.close()

    def make_problem(self, status: int, message: str) -> tuple[bytes, dict[str, object]]:
        """Return the content type and JSON body of an error."""
        return b"application/json", {"code": status, "message": message}
