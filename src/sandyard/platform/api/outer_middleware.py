"""The outermost middleware: it sets a request id and security headers, and handles unexpected errors."""

from __future__ import annotations

import re
import time

from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import bind_fields, get_logger
from sandyard.platform.api.problems import INTERNAL_ERROR, make_problem

log = get_logger(__name__)

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,40}")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; sandbox",
    "Cache-Control": "no-store",
}
"""Defaults. A response that sets one of these headers itself keeps its own value: web pages need another policy than JSON."""


class OuterMiddleware:
    """Sets the request id and default headers, and handles unexpected errors."""

    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self._app = app
        self._headers = HEADERS | ({"Strict-Transport-Security": "max-age=31536000"} if https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        request_id = _get_request_id(scope)
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        state["started"] = time.perf_counter()
        response_started = False

        async def reply(message: Message) -> None:
            nonlocal response_started
            if message["type"] in ("http.response.start", "websocket.accept", "websocket.http.response.start"):
                response_started = True
                message.setdefault("headers", [])
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = request_id
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        with bind_fields(request=request_id):
            try:
                await self._app(scope, receive, reply)
            except ClientDisconnect:  # while the body was read: the client is gone
                log.info("request_aborted", method=scope.get("method"), path=scope["path"])
            except Exception as error:
                log.error("request_failed", exc=error, method=scope.get("method"), path=scope["path"])  # noqa: TRY400
                if scope["type"] == "websocket":
                    await reply({"type": "websocket.close", "code": 1011, "reason": "Internal error."})
                elif not response_started:
                    response = make_problem(HTTPConnection(scope), 500, "internal", INTERNAL_ERROR)
                    await response(scope, receive, reply)
                else:
                    raise  # the response has started: only a broken connection tells the client that it failed


def _get_request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == b"x-request-id":
            given: str = value.decode("latin-1")
            if REQUEST_ID.fullmatch(given):
                return given
            break
    return make_random_id("req_")
