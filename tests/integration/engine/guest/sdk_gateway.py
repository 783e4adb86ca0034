"""A gateway for the unmodified SDK and a guest agent without an engine: a control endpoint that accepts everything, and a TCP port."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

from tests.harness.http_server import HttpServer


class _Control(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _reply(self, status: int, value: object = None) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        sandbox = {
            "templateID": "base",
            "sandboxID": "guest",
            "clientID": "c",
            "envdVersion": "0.6.8",
            "envdAccessToken": "t",
        }
        self._reply(201, sandbox)

    def do_DELETE(self) -> None:
        self._reply(204)

    def log_message(self, *_args: object) -> None:
        pass


class SdkGateway:
    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self._connect = connect
        self._control = HttpServer(("127.0.0.1", 0), _Control)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._control.start()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def options(self) -> dict[str, str]:
        """The options with which to call the SDK."""
        return {
            "api_key": "e2b_" + "0" * 40,
            "api_url": f"http://127.0.0.1:{self._control.server_address[1]}",
            "sandbox_url": f"http://127.0.0.1:{self._listener.getsockname()[1]}",
        }

    def close(self) -> None:
        self._control.stop()
        self._listener.close()
        for sock in self._open:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            agent = self._connect()
            agent.settimeout(None)
            self._open += [client, agent]
            for source, target in ((client, agent), (agent, client)):
                threading.Thread(target=_relay, args=(source, target), daemon=True).start()


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(256 << 10):
            target.sendall(data)
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
