"""What is refused before any route sees it: other sites that pretend to be us, bodies without end, NUL characters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.listen import is_loopback
from sandyard.platform.api.problems import problem
from sandyard.platform.settings import PlatformSettings

BODY_LIMIT = 1024 * 1024
F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__sandyard_streams_body__"


def streams_body(endpoint: F) -> F:
    """Marks a route that reads its body piece by piece and has its own limit."""
    setattr(endpoint, _MARK, True)
    return endpoint


class Guard:
    def __init__(self, app: ASGIApp, *, settings: PlatformSettings) -> None:
        self._app = app
        self._hosts = allowed_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._check(scope)
        if refusal is None:
            limited = _limited(scope, receive) if scope["type"] == "http" else receive
            await self._app(scope, limited, send)
        elif scope["type"] == "http":
            await problem(HTTPConnection(scope), *refusal)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[2][:100]})

    def _check(self, scope: Scope) -> tuple[int, str, str] | None:
        if self._hosts is not None:
            host = host_name(Headers(scope=scope).get("host", ""))
            if host not in self._hosts:
                return (
                    421,
                    "wrong_host",
                    f"This is not {host[:100] or 'a host without a name'}. Use the address that `sandyard up` printed, "
                    "or set SANDYARD_PUBLIC_URL.",
                )
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return 400, "invalid_argument", "The address must not contain NUL characters."
        return None


def allowed_hosts(settings: PlatformSettings) -> frozenset[str] | None:
    """The names we answer to; None when everybody may reach us anyway. Bound to loopback, only a page that lies about
    its own name (DNS rebinding) comes with another one."""
    if not is_loopback(settings.host):
        return None
    hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]").lower()}
    if settings.public_url:
        hosts.add((urlsplit(settings.public_url).hostname or "").lower())
    return frozenset(hosts - {""})


def host_name(value: str) -> str:
    """Of `[::1]:8700` the `::1`, of `Localhost:8700` the `localhost`."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _limited(scope: Scope, receive: Receive) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        if message["type"] == "http.request" and not getattr(scope.get("endpoint"), _MARK, False):
            seen += len(message.get("body", b""))
            if seen > BODY_LIMIT:
                raise HTTPException(413, "The request's body is too large: the limit is 1 MiB.")
        return message

    return counted
