"""One HTTP request and its answer, with streams in both directions. The connection can be cut at any point."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import urlsplit

from tests.harness.http_server import HttpServer

PIECE = 64 * 1024


class CutError(Exception):
    """The connection must end here."""


class Exchange:
    """A request, as a handler reads and answers it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self._handler = handler
        address = urlsplit(handler.path)
        self.method, self.path, self.query = handler.command, address.path, address.query
        self.headers = handler.headers
        self.answered: int | None = None
        self._chunked = self.headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._length = None if self._chunked else int(self.headers.get("Content-Length") or 0)
        self._read = False

    @property
    def length(self) -> int | None:
        """Length of the body. None: unknown, because it is sent in chunks."""
        return self._length

    def pieces(self) -> Iterator[bytes]:
        """Yield the body as it arrives. Raises CutError if the client disconnects before the end."""
        if self._read:
            return
        stream = self._handler.rfile
        if not self._chunked:
            left = self._length or 0
            while left:
                piece = stream.read1(min(PIECE, left))
                if not piece:
                    raise CutError("the client disconnected during its request")
                left -= len(piece)
                self._read = left == 0
                yield piece
        else:
            while size := self._chunk_size():
                piece = stream.read(size)
                if len(piece) < size or not stream.readline():
                    raise CutError("the client disconnected during its request")
                yield piece
            while stream.readline() not in (b"\r\n", b"\n", b""):
                pass
        self._read = True

    def _chunk_size(self) -> int:
        line = self._handler.rfile.readline(100)
        if not line:
            raise CutError("the client disconnected during its request")
        return int(line.split(b";")[0], 16)

    def body(self) -> bytes:
        return b"".join(self.pieces())

    def answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        if not self._read and self._length != 0:
            self._handler.close_connection = True
        self._start(status, {**(headers or {}), "Content-Length": str(len(body))})
        if self.method != "HEAD":
            self._handler.wfile.write(body)

    def stream(self, status: int, headers: Mapping[str, str], pieces: Iterable[bytes]) -> None:
        """Answer in chunks. An exception from `pieces` leaves the answer incomplete."""
        self._start(status, {**headers, "Transfer-Encoding": "chunked"})
        for piece in pieces:
            if piece:
                self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._handler.wfile.write(b"0\r\n\r\n")
        if not self._read:
            self._handler.close_connection = True

    def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.answered = status
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name, value)
        if self._handler.close_connection:
            self._handler.send_header("Connection", "close")
        self._handler.end_headers()

    def close_afterwards(self) -> None:
        """Close the connection after this request."""
        self._handler.close_connection = True

    def cut(self) -> None:
        """End the connection like a broken network. Idempotent."""
        self._handler.close_connection = True
        with contextlib.suppress(OSError):
            self._handler.connection.shutdown(socket.SHUT_RDWR)


class RequestHandler(Protocol):
    def handle(self, exchange: Exchange) -> None: ...


class Server:
    """One thread that listens on a loopback port, and one thread per connection. Independent of any event loop."""

    def __init__(self, request_handler: RequestHandler, port: int = 0) -> None:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            timeout = 120

            def _any(self) -> None:
                exchange = Exchange(self)
                try:
                    request_handler.handle(exchange)
                except (CutError, ConnectionError, TimeoutError):
                    exchange.cut()

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _any  # noqa: N815 - names of the base class

            def log_message(self, format: str, *arguments: Any) -> None:
                """Log nothing: `GitServer.requests` records all requests."""

        self._server = HttpServer(("127.0.0.1", port), Handler)
        self.port = self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()
