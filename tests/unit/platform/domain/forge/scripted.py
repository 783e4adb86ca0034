"""An API that returns the answers of a test one after the other, for cases that the forge of tests/forge cannot
produce.

The answers have the shape of GitHub's, as in its documentation and its real answers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler
from typing import Any, Self

from sandyard.kit.clock import Clock
from tests.harness.http_server import HttpServer


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


class Scripted:
    """Use it as a context manager. Its `Date` comes from the test's clock. It answers 599 when it has no more answers."""

    def __init__(self, clock: Clock) -> None:
        self.requests: list[Request] = []
        self.is_github = True
        """Whether its answers have what all of GitHub's have."""
        self.answers: list[tuple[int, dict[str, str], bytes]] = []
        self.clock = clock
        self._server = HttpServer(("127.0.0.1", 0), self._handler())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/api/v3"

    def answer(self, status: int = 200, body: Any = None, **headers: str) -> None:
        """Add an answer. Underscores in the names of headers stand for dashes."""
        content = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        self.answers.append((status, {name.replace("_", "-"): value for name, value in headers.items()}, content))

    def limit(self, remaining: int, reset_in_s: float, limit: int = 5000) -> dict[str, str]:
        """Return the headers of a rate limit."""
        reset = str(int(self.clock.now() + reset_in_s))
        names = ("limit", "remaining", "reset", "resource")
        values = (str(limit), str(remaining), reset, "core")
        return {f"X_RateLimit_{name}": value for name, value in zip(names, values, strict=True)}

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                data = self.rfile.read(size)
                body = json.loads(data) if data else None
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.requests.append(Request(self.command, self.path.removeprefix("/api"), headers, body))
                status, more, content = script.answers.pop(0) if script.answers else (599, {}, b"")
                self.send_response_only(status)
                self.send_header(
                    "X-GitHub-Request-Id", "0A1B:2C3D:4E5F60:718293:65B0C1D2"
                ) if script.is_github else None
                self.send_header("Date", formatdate(script.clock.now(), usegmt=True))
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if status != 304:
                    self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_one  # noqa: N815 - names that the base class calls

            def log_message(self, *_: object) -> None:
                """Log nothing: tests check the recorded requests."""

        return Handler
