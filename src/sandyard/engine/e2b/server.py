"""The engine's HTTP protocol: the bounded one with two things added.

- Every kind of upgrade goes to the tunnel, not WebSockets only: what a server in a sandbox speaks is its own affair.
- An application may cut its client's connection (`asgi.CLOSE`), because a reply that broke off must not look complete.
"""

from __future__ import annotations

from sandyard.engine.e2b.dataplane.asgi import CLOSE
from sandyard.kit import server


class EngineProtocol(server.BoundedProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CLOSE: {"close": self.transport.close}}

    def _should_upgrade(self) -> bool:
        # h2c is an offer, not a wish: a client that makes it (curl --http2) goes on in HTTP/1.1 when it is passed over
        return self.ws_protocol_class is not None and self._get_upgrade() not in (None, b"h2c")
