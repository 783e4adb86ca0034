"""Reject requests before routing: wrong host names (DNS rebinding), bodies that are too large, and NUL characters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.bounded_json import TooManyValuesError, ValueCounter
from sandyard.kit.listen import is_loopback
from sandyard.platform.api.problems import make_problem
from sandyard.platform.settings import PlatformSettings

BODY_LIMIT, BODY_VALUES = 1024 * 1024, 5_000
"""Maximum bytes and JSON values of a request body. Each invalid value produces an error, which costs much more than reading it."""
F = TypeVar("F", bound=Callable[..., Any])
_LIMIT_ATTRIBUTE = "__sandyard_body_limit__"
_CLOSES_ATTRIBUTE = "__sandyard_closes_unread__"
_CLOSES_KEY = "sandyard.closes_unread"


@dataclass(frozen=True, slots=True)
class BodyLimit:
    size: int = BODY_LIMIT
    values: int = BODY_VALUES


_DEFAULT_LIMIT = BodyLimit()


def streams_body(endpoint: F) -> F:
    """Mark a route that reads its body as a stream and has its own limit."""
    setattr(endpoint, _LIMIT_ATTRIBUTE, None)
    return endpoint


def body_limit(*, size: int = BODY_LIMIT, values: int = BODY_VALUES) -> Callable[[F], F]:
    """Mark a route with its own body limit: a higher one, or a lower one because the route needs no authentication."""

    def mark(endpoint: F) -> F:
        setattr(endpoint, _LIMIT_ATTRIBUTE, BodyLimit(size, values))
        return endpoint

    return mark


def closes_unread(endpoint: F) -> F:
    """Mark a route whose connection is closed after a response that is sent before the whole body was read."""
    setattr(endpoint, _CLOSES_ATTRIBUTE, True)
    return endpoint


def close_if_unread(connection: HTTPConnection) -> None:
    """Close the connection after the response, unless the whole body was read. Call it before the response starts."""
    connection.scope[_CLOSES_KEY] = True


class GuardMiddleware:
    """Rejects requests with a wrong host name, a NUL character or a body that is too large."""

    def __init__(self, app: ASGIApp, *, settings: PlatformSettings) -> None:
        self._app = app
        self._hosts = list_allowed_hosts(settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        refusal = self._check(scope)
        if refusal is None:
            if scope["type"] == "http":
                receive, send = _close_unread(scope, _limit_body(scope, receive), send)
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await make_problem(HTTPConnection(scope), *refusal)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008, "reason": refusal[2][:100]})

    def _check(self, scope: Scope) -> tuple[int, str, str] | None:
        if self._hosts is not None:
            host = parse_host_name(Headers(scope=scope).get("host", ""))
            if host not in self._hosts:
                return (
                    421,
                    "wrong_host",
                    f"Unknown host name: {host[:100] or 'none'}. Use the URL that `sandyard up` printed, or set SANDYARD_PUBLIC_URL.",
                )
        if "\0" in scope["path"] or b"%00" in scope.get("query_string", b""):
            return 400, "invalid_argument", "The URL must not contain NUL characters."
        return None


def list_allowed_hosts(settings: PlatformSettings) -> frozenset[str] | None:
    """Return the accepted host names; None means any.

    On loopback, only a page that lies about its own name (DNS rebinding) sends another host name.
    """
    if not is_loopback(settings.host):
        return None
    hosts = {"localhost", "127.0.0.1", "::1", settings.host.strip("[]").lower()}
    if settings.public_url:
        hosts.add((urlsplit(settings.public_url).hostname or "").lower())
    return frozenset(hosts - {""})


def parse_host_name(value: str) -> str:
    """Return the host without port or brackets: `::1` for `[::1]:8700`, `localhost` for `Localhost:8700`."""
    value = value.strip().lower()
    if value.startswith("["):
        return value[1:].partition("]")[0]
    return value.partition(":")[0]


def _limit_body(scope: Scope, receive: Receive) -> Receive:
    received = 0
    counter: ValueCounter | None = None

    async def receive_limited() -> Message:
        nonlocal received, counter
        message = await receive()
        limit: BodyLimit | None = getattr(scope.get("endpoint"), _LIMIT_ATTRIBUTE, _DEFAULT_LIMIT)
        if message["type"] != "http.request" or limit is None:
            return message
        body = message.get("body", b"")
        received += len(body)
        if received > limit.size:
            raise HTTPException(413, f"The request body is too large: the limit is {_format_size(limit.size)}.")
        counter = counter or ValueCounter(limit.values)
        try:
            counter.feed(body)
        except TooManyValuesError:
            raise HTTPException(
                413, f"The request body has too many JSON values: the limit is {limit.values:,}. Split the request."
            ) from None
        except ValueError:
            raise HTTPException(400, "The request body is not valid JSON: it is not UTF-8.") from None
        return message

    return receive_limited


def _close_unread(scope: Scope, receive: Receive, send: Send) -> tuple[Receive, Send]:
    complete = False

    async def receive_watched() -> Message:
        nonlocal complete
        message = await receive()
        complete = message["type"] == "http.request" and not message.get("more_body", False)
        return message

    async def send_closing(message: Message) -> None:
        closes = _CLOSES_KEY in scope or getattr(scope.get("endpoint"), _CLOSES_ATTRIBUTE, False)
        if message["type"] == "http.response.start" and closes and not complete:
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await send(message)

    return receive_watched, send_closing


def _format_size(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
