"""Authenticate requests: an API token in a header, a browser's cookie, or a one-time ticket where a browser cannot set headers.

Routes take `caller: Caller` (a user), `AdminCaller` (an administrator) or, for SSE and WebSockets, `StreamCaller`.
"""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Depends
from fastapi.openapi.models import APIKey, HTTPBearer
from fastapi.security.base import SecurityBase
from starlette.requests import HTTPConnection

from sandyard.kit.errors import SandyardError, UnauthenticatedError
from sandyard.kit.pacing import set_turn_owner
from sandyard.kit.server import mark_authenticated
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.service import Users

COOKIE = "sandyard_session"
CSRF_HEADER = "X-Sandyard-CSRF"
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class CrossSiteError(SandyardError):
    """This request has a session cookie but not the header X-Sandyard-CSRF: 1, which protects against cross-site requests."""

    code, status = "csrf", 403


class _Bearer(SecurityBase):
    scheme_name = "token"
    model = HTTPBearer(bearerFormat="sy_…", description="An API token: `Authorization: Bearer sy_…`.")

    async def __call__(self, connection: HTTPConnection) -> str | None:
        """Return the token, "" for any other Authorization header, or None without one."""
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
            "description": f"Set by `POST /login`. Methods that change data also need the header `{CSRF_HEADER}: 1`.",
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
            "description": "From `POST /tickets`. Valid once, for 30 seconds, to open a stream or a terminal.",
        }
    )

    async def __call__(self, connection: HTTPConnection) -> str | None:
        return connection.query_params.get("ticket")


Bearer = Annotated[str | None, Depends(_Bearer())]
Cookie = Annotated[str | None, Depends(_Cookie())]
Ticket = Annotated[str | None, Depends(_Ticket())]


async def authenticate(connection: HTTPConnection, bearer: Bearer, cookie: Cookie) -> Principal:
    """Return the authenticated user.

    Raises UnauthenticatedError, or CrossSiteError if the cookie may have been sent by another site.
    """
    users = _get_users(connection)
    if bearer is not None:
        principal = await users.authenticate_token(bearer)
        if principal is None:
            raise UnauthenticatedError("The token is invalid, expired or revoked. Use another one.")
    elif cookie is not None:
        principal = await users.authenticate_cookie(cookie)
        if principal is None:
            raise UnauthenticatedError("Your login has expired. Sign in again.")
        check_origin(connection)
    else:
        raise UnauthenticatedError("Sign in, or send an API token in the header: Authorization: Bearer sy_…")
    _set_caller(connection, principal)
    return principal


async def authenticate_stream(connection: HTTPConnection, bearer: Bearer, cookie: Cookie, ticket: Ticket) -> Principal:
    """Authenticate like `authenticate`, but also accept a ticket, which is consumed."""
    if ticket is None or bearer is not None:
        return await authenticate(connection, bearer, cookie)
    principal = await _get_users(connection).authenticate_ticket(ticket)
    if principal is None:
        raise UnauthenticatedError(
            "The ticket is invalid: it was already used or is older than 30 seconds. Create another one with POST /tickets."
        )
    _set_caller(connection, principal)
    return principal


async def authenticate_admin(principal: Caller) -> Principal:
    """Raise ForbiddenError if the caller is not an administrator."""
    principal.require_admin()
    return principal


Caller = Annotated[Principal, Depends(authenticate)]
StreamCaller = Annotated[Principal, Depends(authenticate_stream)]
AdminCaller = Annotated[Principal, Depends(authenticate_admin)]


def check_origin(connection: HTTPConnection) -> None:
    """Reject requests that another site may have sent.

    Browsers send cookies with cross-site requests too. A change needs a header that other sites cannot set, and a WebSocket needs our
    origin.
    """
    if connection.scope["type"] == "websocket":
        if not is_same_origin(connection):
            raise CrossSiteError("This WebSocket was opened by a page of another site.")
    elif connection.scope["method"] not in SAFE_METHODS and connection.headers.get(CSRF_HEADER) != "1":
        raise CrossSiteError


def is_same_origin(connection: HTTPConnection) -> bool:
    """Return whether the request comes from our own origin. A request without Origin is not from a browser and has no ambient cookie."""
    origin = connection.headers.get("origin")
    if origin is None:
        return True
    public = connection.app.state.services.settings.public_url
    allowed = {connection.headers.get("host", ""), urlsplit(public).netloc if public else ""} - {""}
    return urlsplit(origin).netloc in allowed


def _set_caller(connection: HTTPConnection, principal: Principal) -> None:
    connection.state.principal = principal
    mark_authenticated(connection.scope)
    set_turn_owner(principal.user_id)


def _get_users(connection: HTTPConnection) -> Users:
    users: Users = connection.app.state.services.users
    return users
