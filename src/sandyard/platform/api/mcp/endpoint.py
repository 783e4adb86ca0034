"""POST /mcp: authentication. Accepts only API tokens, and no requests from pages of other sites."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Depends, Request
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.errors import UnauthenticatedError
from sandyard.platform.api.audit_middleware import audits_itself
from sandyard.platform.api.auth import Bearer, CrossSiteError, authenticate, is_same_origin
from sandyard.platform.api.routers import api_router
from sandyard.platform.domain.users.model import Principal

router = api_router("service", prefix="")


async def token_caller(connection: HTTPConnection, bearer: Bearer) -> Principal:
    """Return the user of the API token.

    Raises UnauthenticatedError without a token, even if there is a cookie, and CrossSiteError for pages of other sites.
    """
    if not is_same_origin(connection):
        raise CrossSiteError
    if bearer is None:
        raise UnauthenticatedError("Send an API token in the header: Authorization: Bearer sy_…")
    return await authenticate(connection, bearer, ())


TokenCaller = Annotated[Principal, Depends(token_caller)]


class _DelegatedResponse(Response):
    """A response produced by another ASGI app, which receives the request's body that was already read."""

    def __init__(self, app: ASGIApp, message: bytes) -> None:
        super().__init__()
        self._app = app
        self._message: bytes | None = message

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def replay_body() -> Message:
            message, self._message = self._message, None
            return await receive() if message is None else {"type": "http.request", "body": message}

        await self._app(scope, replay_body, send)


@router.post("/mcp", name="mcp", include_in_schema=False)
@audits_itself
async def mcp(request: Request, principal: TokenCaller) -> Response:
    """Handle one message of the Model Context Protocol.

    The server sends nothing on its own, so there is no stream to GET, and there is no session to DELETE.
    """
    mcp_app = getattr(request.app.state, "mcp", None)
    if mcp_app is None:
        # the package takes a second to load: load it on first use, in a thread, and not at every start
        make_app: Callable[[], Any] = (await asyncio.to_thread(importlib.import_module, _SERVER)).McpApplication
        mcp_app = request.app.state.mcp = getattr(request.app.state, "mcp", None) or make_app()
    body = await request.body()  # here, where it is rejected if it is too large
    return _DelegatedResponse(mcp_app, body)


_SERVER = "sandyard.platform.api.mcp.server"
