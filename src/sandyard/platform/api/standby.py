"""Responses of a platform that does not own its database yet: alive, but not ready, and why."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from sandyard import __version__
from sandyard.platform.api.problems import MEDIA_TYPE

RETRY_AFTER_S = 5


class EntryPoint:
    """The ASGI entry point: serves `app` once it is set; before that, reports that this platform is on standby, with `reason`."""

    def __init__(self) -> None:
        self.app: ASGIApp | None = None
        self.reason = "The platform is starting."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.app is not None:
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._make_response(Request(scope))(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1013, "reason": "standby"})

    def _make_response(self, request: Request) -> Response:
        if request.url.path == "/health":
            return JSONResponse({"status": "standby", "version": __version__, "reason": self.reason})
        headers = {"Retry-After": str(RETRY_AFTER_S), "Cache-Control": "no-store"}
        if request.url.path == "/ready":
            return JSONResponse({"ready": False, "status": "standby", "reasons": [self.reason]}, 503, headers)
        problem = {
            "type": "urn:sandyard:problem:standby",
            "title": "Service Unavailable",
            "status": 503,
            "code": "standby",
            "detail": f"This platform is on standby. {self.reason}",
            "requestId": None,
        }
        return JSONResponse(problem, 503, headers, MEDIA_TYPE)
