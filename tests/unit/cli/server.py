"""A server with scripted replies: for dropped connections, broken responses and errors of proxies, which the real server does not produce
on demand. Everything else is tested with the real server, by the tests that use `platform`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.harness.http_server import serve_http


@dataclass
class Request:
    """`query`: the first value of each parameter; `queries`: all values."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    queries: dict[str, list[str]] = field(default_factory=dict)

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Reply:
    """`cut`: announce more bytes than are sent, then close the connection."""

    status: int = 200
    body: Any = b""
    kind: str = "application/json"
    cut: bool = False


MakeReply = Callable[[Request], Reply]


@dataclass
class Server:
    """`on("GET", "/me", Reply(…))`: replies in turn, and then the last one repeatedly. `requests`: all requests received."""

    url: str = ""
    requests: list[Request] = field(default_factory=list)
    _replies: dict[tuple[str, str], list[Reply | MakeReply]] = field(default_factory=dict)

    def on(self, method: str, path: str, *replies: Reply | MakeReply) -> None:
        self._replies[method, f"/api/v1{path}"] = list(replies)

    def reply(self, request: Request) -> Reply:
        self.requests.append(request)
        replies = self._replies.get((request.method, request.path))
        if not replies:
            return problem(404, "not_found", f"There is no {request.method} {request.path} here.")
        reply = replies.pop(0) if len(replies) > 1 else replies[0]
        return reply(request) if callable(reply) else reply


def problem(status: int, code: str, detail: str, **extra: object) -> Reply:
    body = {"type": f"urn:sandyard:problem:{code}", "title": "No", "status": status, "code": code, "detail": detail}
    return Reply(status, body | extra, "application/problem+json")


def events(*items: tuple[str, str, Any], cut: bool = False) -> Reply:
    """Return a stream of events, each given as (id, event, data)."""
    text = "".join(f"id: {number}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for number, kind, data in items)
    return Reply(200, text.encode(), "text/event-stream", cut)


@contextmanager
def serving() -> Iterator[Server]:
    scripted = Server()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            parts = urlsplit(self.path)
            queries = parse_qs(parts.query)
            query = {name: values[0] for name, values in queries.items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else self._chunks()
            headers = {name.lower(): value for name, value in self.headers.items()}
            reply = scripted.reply(Request(self.command, parts.path, query, headers, body, queries))
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.kind)
            self.send_header("Content-Length", str(len(content) + (1000 if reply.cut else 0)))
            self.end_headers()
            self.wfile.write(content)
            if reply.cut:
                self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names http.server looks for

        def _chunks(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return b""
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        def log_message(self, format: str, *args: object) -> None:
            pass

    with serve_http(Handler) as server:
        scripted.url = f"http://127.0.0.1:{server.server_port}"
        yield scripted
