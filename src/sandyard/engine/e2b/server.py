"""The engine's HTTP protocol: the bounded protocol with five additions.

- All upgrades go to the tunnel, not only WebSockets: a server in a sandbox may speak any protocol.
- An application may close its client's connection (`asgi.CLOSE`), because an interrupted reply must not look complete.
- An application can find out when the data it sent has left this process (`asgi.DELIVERY`).
- An application may allow a request's body to arrive slowly (`asgi.SLOW_BODY`).
- A stopping engine waits only briefly for TLS clients to complete the closing handshake.
"""

from __future__ import annotations

from functools import partial

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT

from sandyard.engine.e2b.dataplane.asgi import CLOSE, DELIVERY, SLOW_BODY
from sandyard.kit import server

CLOSE_TIMEOUT_SECONDS = 1.0


class EngineProtocol(server.BoundedProtocol):
    """One connection of a client. The extensions are in each request's scope."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        delivery: dict[object, object] = {
            "begin": self._write_through,
            "settled": self.wait_until_sent,
            "end": self._write_behind,
        }
        slow: dict[object, object] = {"allow": partial(self.allow_slow_body, self.scope)}
        self.scope["extensions"] |= {CLOSE: {"close": self.close}, DELIVERY: delivery, SLOW_BODY: slow}

    def _write_through(self) -> None:
        """Make each write a system call: data that the kernel does not accept at once pauses the writer."""
        # over TLS, uvloop pauses a writer when it reaches the limit, not when it exceeds it: with 0 it would never resume
        self.transport.set_write_buffer_limits(high=1 if self.scheme == "https" else 0)

    def _write_behind(self) -> None:
        if not self.transport.is_closing():
            self.transport.set_write_buffer_limits(high=HIGH_WATER_LIMIT)

    async def wait_until_sent(self) -> bool:
        while self.flow.write_paused and not self.transport.is_closing():
            await self.flow.drain()
        return not self.transport.is_closing()

    def shutdown(self) -> None:
        super().shutdown()
        if self.scheme == "https" and self.transport.is_closing():
            self.loop.call_later(CLOSE_TIMEOUT_SECONDS, self.transport.abort)

    def _should_upgrade(self) -> bool:
        # h2c is only an offer: a client that makes it (curl --http2) continues with HTTP/1.1 if it is ignored
        return self.ws_protocol_class is not None and self._get_upgrade() not in (None, b"h2c")
