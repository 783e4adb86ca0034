"""The engine's HTTP protocol: the bounded one with five things added.

- Every kind of upgrade goes to the tunnel, not WebSockets only: what a server in a sandbox speaks is its own affair.
- An application may cut its client's connection (`asgi.CLOSE`), because a reply that broke off must not look complete.
- An application may ask when what it sent has left this process (`asgi.DELIVERY`).
- An application may let a request's body take its time (`asgi.SLOW_BODY`).
- An engine that stops waits no longer than a moment for a client over TLS to say its farewell.
"""

from __future__ import annotations

from functools import partial

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from sandyard.engine.e2b.dataplane.asgi import CLOSE, DELIVERY, SLOW_BODY
from sandyard.kit import server

FAREWELL_SECONDS = 1.0


class EngineProtocol(server.BoundedProtocol):
    def on_message_begin(self) -> None:
        super().on_message_begin()
        delivery: dict[object, object] = {
            "begin": self._write_through,
            "settled": self._settled,
            "end": self._write_behind,
        }
        slow: dict[object, object] = {"allow": partial(self.allow_slow_body, self.scope)}
        self.scope["extensions"] |= {CLOSE: {"close": self.close}, DELIVERY: delivery, SLOW_BODY: slow}

    def _write_through(self) -> None:
        """From now on a write is a system call, and what the kernel does not take at once stops the writer."""
        # over TLS, uvloop pauses a writer that has reached the limit, not passed it: with 0 it would never go on
        self.transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)

    def _write_behind(self) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=HIGH_WATER_LIMIT)

    async def _settled(self) -> bool:
        while self.flow.write_paused and not self.transport.is_closing():
            await self.flow.drain()
        return not self.transport.is_closing()

    def shutdown(self) -> None:
        super().shutdown()
        if self.scheme == "https" and self.transport.is_closing():
            self.loop.call_later(FAREWELL_SECONDS, self.transport.abort)

    def _should_upgrade(self) -> bool:
        # h2c is an offer, not a wish: a client that makes it (curl --http2) goes on in HTTP/1.1 when it is passed over
        return self.ws_protocol_class is not None and self._get_upgrade() not in (None, b"h2c")
