"""Who asks: an API token in a header, a browser's cookie, or a one-time ticket where a browser can set no header.

Routes take `caller: Caller` (a person), `AdminCaller` (an administrator) or, for SSE and WebSockets, `StreamCaller`.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.openapi.models import APIKey, HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from sandyard.kit.errors import SandyardError, UnauthenticatedError
from sandyard.kit.server import mark_authenticated
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.service import Users

COOKIE = "sandyard_session"
CSRF_HEADER = "X-Sandyard-CSRF"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class CrossSiteError(SandyardError):
    """This request came with a cookie but without the header X-Sandyard-CSRF: 1, which other sites cannot send."""

    code, status = "csrf", 403


class _Bearer(SecurityBase):
    scheme_name = "token"
    model = HTTPBearer(bearerFormat="sy_…", description="An API token: `Authorization: Bearer sy_…`.")

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """The token, "" for any other Authorization, None without one."""
        given = connection.headers.get("authorization")
        if given is None:
            return None
        scheme, _, token = given.partition(" ")
        return token.strip() if scheme.lower() == "bearer" else ""


class _Cookie(SecurityBase):
    scheme_name = "cookie"
    model = APIKey.model_validate(
        {
            "in": "cookie",
            "name": COOKIE,
            "description": f"Set by `POST /login`. Methods that change something also need the header `{CSRF_HEADER}: 1`.",
        }
    )

    async def __call__(self, connection: HTTPConnection) -> str | None:
        return connection.cookies.get(COOKIE)


class _Ticket(SecurityBase):
    scheme_name = "ticket"
    model = APIKey.model_validate(
        {
            "in": "query",
            "name": "ticket",
            "description": "From `POST /tickets`: good once, for 30 seconds, to open a stream or a terminal.",
        }
    )

    async def __call__(self, connection: HTTPConnection) -> str | None:
        return connection.query_params.get("ticket")


Bearer = Annotated[str | None, Depends(_Bearer())]
Cookie = Annotated[str | None, Depends(_Cookie())]
Ticket = Annotated[str | None, Depends(_Ticket())]


async def caller(connection: HTTPConnection, bearer: Bearer, cookie: Cookie) -> Principal:
    """Raises UnauthenticatedError, or CrossSiteError for a cookie that another site may have sent."""
    users = _users(connection)
    if bearer is not None:
        found = await users.by_token(bearer)
        if found is None:
            raise UnauthenticatedError("The token is not valid, has expired or was revoked.")
    elif cookie is not None:
        found = await users.by_cookie(cookie)
        if found is None:
            raise UnauthenticatedError("The login has ended; sign in again.")
        check_origin(connection)
    else:
        raise UnauthenticatedError("Sign in, or send an API token: Authorization: Bearer sy_…")
    connection.state.principal = found
    mark_authenticated(connection.scope)
    return found


async def stream_caller(connection: HTTPConnection, bearer: Bearer, cookie: Cookie, ticket: Ticket) -> Principal:
    """Like `caller`; a ticket is used up by being shown."""
    if ticket is None or bearer is not None:
        return await caller(connection, bearer, cookie)
    found = await _users(connection).by_ticket(ticket)
    if found is None:
        raise UnauthenticatedError("The ticket is not valid: it was used already or is older than 30 seconds.")
    connection.state.principal = found
    mark_authenticated(connection.scope)
    return found


async def admin_caller(principal: Caller) -> Principal:
    """Raises ForbiddenError."""
    principal.require_admin()
    return principal


Caller = Annotated[Principal, Depends(caller)]
StreamCaller = Annotated[Principal, Depends(stream_caller)]
AdminCaller = Annotated[Principal, Depends(admin_caller)]


def check_origin(connection: HTTPConnection) -> None:
    """A browser sends cookies also for other sites: a change needs a header they cannot set, a WebSocket our origin."""
    if connection.scope["type"] == "websocket":
        if not same_origin(connection):
            raise CrossSiteError("This WebSocket was opened by a page of another site.")
    elif connection.scope["method"] not in SAFE_METHODS and connection.headers.get(CSRF_HEADER) != "1":
        raise CrossSiteError


def same_origin(connection: HTTPConnection) -> bool:
    """No Origin means no browser, which has no cookie by accident."""
    origin = connection.headers.get("origin")
    if origin is None:
        return True
    public = connection.app.state.services.settings.public_url
    allowed = {connection.headers.get("host", ""), urlsplit(public).netloc if public else ""} - {""}
    return urlsplit(origin).netloc in allowed


def _users(connection: HTTPConnection) -> Users:
    users: Users = connection.app.state.services.users
    return users
