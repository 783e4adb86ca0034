"""Checks for every control request: authentication, body limits and CORS; and the last resort for unexpected errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from sandyard.engine.e2b.control.errors import FAILED
from sandyard.engine.e2b.dataplane.asgi import App, Headers, Message, Receive, Scope, Send, discard_body, get_header
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.bounded_json import TooManyValuesError, ValueCounter
from sandyard.kit.logging import get_logger
from sandyard.kit.server import mark_authenticated

log = get_logger(__name__)

BODY_LIMIT, BODY_VALUES = 4 * 1024 * 1024, 20_000
"""Maximum number of bytes and JSON values in a request's body."""
_READING = frozenset(("GET", "HEAD"))
OPEN_PATHS = frozenset(("/health", "/ready"))
CORS: Headers = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-expose-headers", b"X-Next-Token, X-Total-Running"),
]


class RefusedBodyError(Exception):
    """The request's body was rejected."""


class Guard:
    """Wraps the control application. Sets `scope["state"]["key"]` to the ApiKey that was used."""

    def __init__(
        self,
        app: App,
        keys: ApiKeys,
        direct_apps: Mapping[tuple[str, str], App],
        token_apps: Mapping[str, App] | None = None,
        find_problem: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`direct_apps` are the requests, by method and path, that need only the guard. `token_apps`, by path prefix, are
        applications that check their own tokens; the body of a PUT to them may have any size. `find_problem` returns why
        nothing can be changed at the moment, or None."""
        self.app = app
        self._keys = keys
        self.direct_apps = direct_apps
        self._token_apps = token_apps or {}
        self._find_problem = find_problem

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: Headers = scope["headers"]
        if scope["method"] == "OPTIONS" and get_header(headers, b"access-control-request-method"):
            await self._answer_preflight(headers, send)
            return
        token_app = next((app for start, app in self._token_apps.items() if scope["path"].startswith(start)), None)
        refusal = self._authenticate(scope, headers) if token_app is None else None
        if refusal is not None:
            await discard_body(receive)
            await _send_error(send, *refusal)
            return
        # Bodies other than PUT are read completely, before the token is checked.
        body = _Body(receive, None if token_app is not None and scope["method"] == "PUT" else BODY_LIMIT)
        response_started = False

        async def send_with_cors(message: Message) -> None:
            if body.refusal is not None:
                return  # a response to half a body would be wrong
            if message["type"] == "http.response.start":
                nonlocal response_started
                response_started = True
                message = {**message, "headers": [*message["headers"], *CORS]}
            await send(message)

        try:
            app = token_app or self.direct_apps.get((scope["method"], scope["path"]), self.app)
            await app(scope, body.receive, send_with_cors)
        except RefusedBodyError:
            pass
        except Exception as error:
            log.error("request_failed", exc=error, method=scope["method"], path=scope["path"])  # noqa: TRY400
            if not response_started:
                await _send_error(send, 500, FAILED)
        if body.refusal is not None:
            await _send_error(send, *body.refusal)

    def _authenticate(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        """Check the API key, the declared length, and whether changes are possible. Return the status and message of a refusal, or None."""
        if scope["path"] in OPEN_PATHS:
            return None
        credential = get_credential(headers)
        key = self._keys.check(credential)
        if key is None:
            if credential is None:
                return 401, "The API key is missing. Send it in the header X-API-Key (SDKs use E2B_API_KEY)."
            return 401, "The API key is not valid. Create one with `sandyard keys create` on the engine's machine."
        scope.setdefault("state", {})["key"] = key
        mark_authenticated(scope)
        length = get_header(headers, b"content-length")
        if length is not None and length.isdigit() and int(length) > BODY_LIMIT:
            return _TOO_LARGE
        if scope["method"] not in _READING and (problem := self._find_problem()) is not None:
            return 503, problem  # before anything is done to a sandbox that could then not be recorded
        return None

    async def _answer_preflight(self, headers: Headers, send: Send) -> None:
        requested_headers = get_header(headers, b"access-control-request-headers") or "*"
        response_headers: Headers = [
            *CORS,
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
            (b"access-control-allow-headers", requested_headers.encode("latin-1")),
            (b"access-control-max-age", b"7200"),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": response_headers})
        await send({"type": "http.response.body", "body": b""})


_TOO_LARGE = (413, f"The request's body is too large: the limit is {BODY_LIMIT // 1024 // 1024} MiB.")
_TOO_MANY_VALUES = (413, f"The request's body has too many JSON values: the limit is {BODY_VALUES:,}.")
_NOT_UTF8 = (400, "The request's body is not valid JSON: it is not UTF-8.")


def get_credential(headers: Headers) -> str | None:
    """Return the key that a request was sent with."""
    key = get_header(headers, b"x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, token = (get_header(headers, b"authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class _Body:
    """Counts a body as it arrives, because the declared length may be missing."""

    def __init__(self, receive: Receive, limit: int | None) -> None:
        self._receive = receive
        self._limit = limit
        self._size = 0
        self._values = ValueCounter(BODY_VALUES)
        self.refusal: tuple[int, str] | None = None
        """Why the rest of the body is rejected."""

    async def receive(self) -> Message:
        message = await self._receive()
        if self._limit is not None:
            self._check(message.get("body", b""), self._limit)
        if self.refusal is not None:
            raise RefusedBodyError
        return message

    def _check(self, chunk: bytes, limit: int) -> None:
        self._size += len(chunk)
        if self._size > limit:
            self.refusal = _TOO_LARGE
            return
        try:
            self._values.feed(chunk)
        except TooManyValuesError:
            self.refusal = _TOO_MANY_VALUES
        except ValueError:
            self.refusal = _NOT_UTF8


async def _send_error(send: Send, status: int, message: str) -> None:
    body = json.dumps({"code": status, "message": message}).encode()
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *([(b"retry-after", b"1")] if status == 503 else ()),
        *CORS,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
