"""The ASGI types used here, and extensions between the server and the application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

CLOSE = "sandyard.close"
"""Scope extension whose `close` closes the client's connection after what was sent so far."""

DELIVERY = "sandyard.delivery"
"""Scope extension that reports when sent data can no longer be lost with this process. Between `begin` and `end`,
`await settled()` waits until the kernel has all data; it returns false if the client is gone."""

SLOW_BODY = "sandyard.slow_body"
"""Scope extension whose `allow` lets the request's body arrive as slowly as its sender likes, like a stream."""


def get_header(headers: Headers, name: bytes) -> str | None:
    """Return the first header of this name, which must be in lower case."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


async def read_body(receive: Receive) -> bytes:
    """Return the request's body. The caller must limit its size."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


DISCARD_BYTES = 1 << 20
DISCARD_SECONDS = 2.0


async def discard_body(receive: Receive) -> None:
    """Read the rest of a rejected request, within limits. Closing a connection with unread bytes resets it, and the
    client would see that instead of the response."""
    discarded = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while discarded < DISCARD_BYTES:
                message = await receive()
                discarded += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
