"""Checks for every control request: authentication, body limits and CORS; and the last resort for unexpected errors."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sandyard.engine.e2b.control.errors import FAILED
from sandyard.engine.e2b.dataplane.asgi import App, Headers, Message, Receive, Scope, Send, discard_body, header
from sandyard.engine.store.keys import ApiKeys
from sandyard.kit.bounded_json import TooManyValuesError, ValueCounter
from sandyard.kit.logging import get_logger
from sandyard.kit.server import mark_authenticated

log = get_logger(__name__)

BODY_LIMIT, BODY_VALUES = 4 * 1024 * 1024, 20_000
"""Maximum number of bytes and JSON values in a request's body."""
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
        direct: Mapping[tuple[str, str], App],
        tokened: Mapping[str, App] | None = None,
    ) -> None:
        """`direct` are the requests, by method and path, that need only the guard. `tokened`, by path prefix, are
        applications that check their own tokens; the body of a PUT to them may have any size."""
        self.app = app
        self._keys = keys
        self.direct = direct
        self._tokened = tokened or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: Headers = scope["headers"]
        if scope["method"] == "OPTIONS" and header(headers, b"access-control-request-method"):
            await self._preflight(headers, send)
            return
        own = next((app for start, app in self._tokened.items() if scope["path"].startswith(start)), None)
        refusal = self._check(scope, headers) if own is None else None
        if refusal is not None:
            await discard_body(receive)
            await _answer(send, *refusal)
            return
        # Bodies other than PUT are read completely, before the token is checked.
        body = _Body(receive, None if own is not None and scope["method"] == "PUT" else BODY_LIMIT)
        answered = False

        async def reply(message: Message) -> None:
            if body.refusal is not None:
                return  # a response to half a body would be wrong
            if message["type"] == "http.response.start":
                nonlocal answered
                answered = True
                message = {**message, "headers": [*message["headers"], *CORS]}
            await send(message)

        try:
            app = own or self.direct.get((scope["method"], scope["path"]), self.app)
            await app(scope, body.receive, reply)
        except RefusedBodyError:
            pass
        except Exception as error:
            log.error("request_failed", exc=error, method=scope["method"], path=scope["path"])  # noqa: TRY400
            if not answered:
                await _answer(send, 500, FAILED)
        if body.refusal is not None:
            await _answer(send, *body.refusal)

    def _check(self, scope: Scope, headers: Headers) -> tuple[int, str] | None:
        if scope["path"] in OPEN_PATHS:
            return None
        key = self._keys.check(credential(headers))
        if key is None:
            given = credential(headers)
            if given is None:
                return 401, "The API key is missing. Send it in the header X-API-Key (SDKs use E2B_API_KEY)."
            return 401, "The API key is not valid. Create one with `sandyard keys create` on the engine's machine."
        scope.setdefault("state", {})["key"] = key
        mark_authenticated(scope)
        length = header(headers, b"content-length")
        if length is not None and length.isdigit() and int(length) > BODY_LIMIT:
            return _TOO_LARGE
        return None

    async def _preflight(self, headers: Headers, send: Send) -> None:
        wanted = header(headers, b"access-control-request-headers") or "*"
        answer: Headers = [
            *CORS,
            (b"access-control-allow-methods", b"GET, POST, PUT, PATCH, DELETE"),
            (b"access-control-allow-headers", wanted.encode("latin-1")),
            (b"access-control-max-age", b"7200"),
        ]
        await send({"type": "http.response.start", "status": 204, "headers": answer})
        await send({"type": "http.response.body", "body": b""})


_TOO_LARGE = (413, f"The request's body is too large: the limit is {BODY_LIMIT // 1024 // 1024} MiB.")
_TOO_MANY_VALUES = (413, f"The request's body has too many JSON values: the limit is {BODY_VALUES:,}.")
_NOT_UTF8 = (400, "The request's body is not valid JSON: it is not UTF-8.")


def credential(headers: Headers) -> str | None:
    """Return the key that a request was sent with."""
    key = header(headers, b"x-api-key")
    if key is not None:
        return key.strip()
    scheme, _, token = (header(headers, b"authorization") or "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


class _Body:
    """Counts a body as it arrives, because the announced length may be missing."""

    def __init__(self, receive: Receive, limit: int | None) -> None:
        self._receive = receive
        self._limit = limit
        self._seen = 0
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

    def _check(self, piece: bytes, limit: int) -> None:
        self._seen += len(piece)
        if self._seen > limit:
            self.refusal = _TOO_LARGE
            return
        try:
            self._values.feed(piece)
        except TooManyValuesError:
            self.refusal = _TOO_MANY_VALUES
        except ValueError:
            self.refusal = _NOT_UTF8


async def _answer(send: Send, status: int, message: str) -> None:
    body = json.dumps({"code": status, "message": message}).encode()
    headers: Headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *CORS,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
