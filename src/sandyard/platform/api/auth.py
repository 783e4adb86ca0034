"""Authenticate requests: an API token in a header, a browser's cookie with its key, or a one-time ticket where a browser cannot set headers.

Browsers send a cookie to every port of a host, also to a port that the user has forwarded to a program in a sandbox. The cookie alone
therefore proves nothing: each request needs the login's key, which pages of other ports cannot read.

Routes take `caller: Caller` (a user) or `AdminCaller` (an administrator). Routes that a browser opens without headers, which are SSE,
WebSockets and downloads, take `StreamCaller` or `AdminStreamCaller`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
KEY_HEADER = "X-Sandyard-CSRF"
"""Header with the key of the login. Requests of other sites cannot have it, so it also protects against those."""
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


class CrossSiteError(SandyardError):
    """This request was made by a page of another site."""

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
            "description": (
                f"Set by `POST /login`. Every request also needs the header `{KEY_HEADER}` with the `key` of that response: the cookie "
                "alone is refused, because browsers send it to every port of the host. WebSockets and downloads by link need a ticket "
                "instead."
            ),
        }
    )

    async def __call__(self, connection: HTTPConnection) -> Sequence[str]:
        """Return the values of all cookies of this name: programs on other ports can add some for other paths or domains."""
        cookies = [cookie.strip() for header in connection.headers.getlist("cookie") for cookie in header.split(";")]
        return [cookie.removeprefix(f"{COOKIE}=") for cookie in cookies if cookie.startswith(f"{COOKIE}=")]


class _Ticket(SecurityBase):
    scheme_name = "ticket"
    model = APIKey.model_validate(
        {
            "in": "query",
            "name": "ticket",
            "description": "From `POST /tickets`. Valid once, for 30 seconds, to open a stream, a terminal or a download.",
        }
    )

    async def __call__(self, connection: HTTPConnection) -> str | None:
        return connection.query_params.get("ticket")


Bearer = Annotated[str | None, Depends(_Bearer())]
Cookies = Annotated[Sequence[str], Depends(_Cookie())]
Ticket = Annotated[str | None, Depends(_Ticket())]


async def authenticate(connection: HTTPConnection, bearer: Bearer, cookies: Cookies) -> Principal:
    """Return the authenticated user. Raises UnauthenticatedError."""
    users = _get_users(connection)
    if bearer is not None:
        principal = await users.authenticate_token(bearer)
        if principal is None:
            raise UnauthenticatedError("The token is invalid, expired or revoked. Use another one.")
    elif cookies:
        principal = await _authenticate_cookies(connection, cookies)
    else:
        raise UnauthenticatedError("Sign in, or send an API token in the header: Authorization: Bearer sy_…")
    _set_caller(connection, principal)
    return principal


async def _authenticate_cookies(connection: HTTPConnection, cookies: Sequence[str]) -> Principal:
    if connection.scope["type"] == "websocket":
        raise UnauthenticatedError(
            "A WebSocket cannot be opened with a cookie. Use a ticket (POST /tickets) or an API token."
        )
    key = connection.headers.get(KEY_HEADER)
    if key is None:
        raise UnauthenticatedError(
            f"Sign in. A cookie is accepted only with the header {KEY_HEADER} and the key that POST /login returned with the cookie."
        )
    principal = await _get_users(connection).authenticate_cookie(cookies, key)
    if principal is None:
        raise UnauthenticatedError("Your login has expired. Sign in again.")
    return principal


async def authenticate_stream(
    connection: HTTPConnection, bearer: Bearer, cookies: Cookies, ticket: Ticket
) -> Principal:
    """Authenticate like `authenticate`, but also accept a ticket, which is consumed."""
    if ticket is None or bearer is not None:
        return await authenticate(connection, bearer, cookies)
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


async def authenticate_admin_stream(principal: StreamCaller) -> Principal:
    """Authenticate like `authenticate_stream`. Raises ForbiddenError if the caller is not an administrator."""
    principal.require_admin()
    return principal


Caller = Annotated[Principal, Depends(authenticate)]
StreamCaller = Annotated[Principal, Depends(authenticate_stream)]
AdminCaller = Annotated[Principal, Depends(authenticate_admin)]
AdminStreamCaller = Annotated[Principal, Depends(authenticate_admin_stream)]


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
