"""Responses of an engine that stands by: alive, but not ready, and why."""

from __future__ import annotations

from starlette.responses import JSONResponse

from sandyard import __version__
from sandyard.engine.e2b.dataplane.asgi import Receive, Scope, Send

RETRY_AFTER_S = 5


class Standby:
    """The ASGI application of such an engine. `reason` says what it waits for."""

    def __init__(self) -> None:
        self.reason = "It is starting."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013, "reason": "standby"})
        elif scope["type"] == "http":
            await self._make_response(scope["path"])(scope, receive, send)

    def _make_response(self, path: str) -> JSONResponse:
        if path == "/health":
            return JSONResponse({"status": "standby", "version": __version__, "reason": self.reason})
        headers = {"Retry-After": str(RETRY_AFTER_S), "Cache-Control": "no-store", "Connection": "close"}
        return JSONResponse({"code": 503, "message": f"This engine stands by. {self.reason}"}, 503, headers)
