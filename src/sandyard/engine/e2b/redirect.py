"""Plain HTTP on port 80, for clients that omit `https://`: every request is redirected to HTTPS."""

from __future__ import annotations

import re

from sandyard.engine.certificates.server_certificates import LOCAL
from sandyard.engine.e2b.dataplane import pages
from sandyard.engine.e2b.dataplane.asgi import Receive, Scope, Send, discard_body, get_header

HTTP_PORT = 80
_NAME = re.compile(r"[a-z0-9_.-]{1,253}")


class Redirect:
    """An ASGI application. `domain` is the public domain, with the HTTPS port if that is not 443."""

    def __init__(self, domain: str) -> None:
        self._domain, _, port = domain.partition(":")
        self._port = f":{port}" if port else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await discard_body(receive)
        name = (get_header(scope["headers"], b"host") or "").partition(":")[0].lower().removesuffix(".")
        if not self._serves(name):
            await pages.send_page(pages.plain(404, f"Unknown host name. Use a name below {self._domain}."), scope, send)
            return
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        # 308: a client that follows it repeats the request with its method and its body
        location = f"https://{name}{self._port}".encode() + scope["raw_path"] + query
        headers = [(b"location", location), (b"content-length", b"0"), (b"connection", b"close")]
        await send({"type": "http.response.start", "status": 308, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    def _serves(self, name: str) -> bool:
        """Return whether the name belongs to this engine. Redirecting any other name would make this an open redirect."""
        if not _NAME.fullmatch(name):
            return False
        return any(name == own or name.endswith(f".{own}") for own in (self._domain, LOCAL))
