"""An HTTP server in threads, on a loopback port."""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any


class HttpServer(ThreadingHTTPServer):
    """Requests that are still running when it stops are left alone."""

    daemon_threads = True
    request_queue_size = 256  # clients beyond it wait for a second

    def server_bind(self) -> None:
        """Skip the reverse lookup of the base class, which takes ten seconds where nothing answers it."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection. It sends small writes at once: a response is two, and the second would wait 40 ms for the client's kernel."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def stop(self) -> None:
        """Stop accepting connections, at once: `shutdown` alone waits until the thread looks, twice a second."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.shutdown()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect, which is part of the tests."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextlib.contextmanager
def serve_http(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[HttpServer]:
    server = HttpServer(("127.0.0.1", 0), handler)
    server.start()
    try:
        yield server
    finally:
        server.stop()
