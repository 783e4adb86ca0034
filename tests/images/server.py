"""A small HTTP server for faults that a real registry cannot produce: a function returns its replies, and all requests are recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler

from tests.harness.http_server import serve_http


@dataclass
class ReceivedRequest:
    method: str
    path: str
    headers: dict[str, str]  # lower-case names
    body: bytes


@dataclass
class Reply:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None  # bytes after which the connection breaks


Responder = Callable[[ReceivedRequest], Reply]


@dataclass
class RunningServer:
    port: int
    requests: list[ReceivedRequest]

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"


@contextlib.contextmanager
def run_server(respond: Responder) -> Iterator[RunningServer]:
    requests: list[ReceivedRequest] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            names = {key.lower(): value for key, value in self.headers.items()}
            request = ReceivedRequest(self.command, self.path, names, self.rfile.read(length))
            requests.append(request)
            reply = respond(request)
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(reply.body[: reply.cut])
            if reply.cut is not None:
                self.close_connection = True

        do_GET = do_POST = do_HEAD = _serve  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with serve_http(Handler) as server:
        yield RunningServer(server.server_port, requests)
