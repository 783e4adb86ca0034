"""The ASGI types in use here, and where the server and the application agree on more than ASGI says."""

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
"""Name of the scope extension whose `close` cuts the client's connection, after what was sent so far."""

DELIVERY = "sandyard.delivery"
"""Name of the scope extension that says when what was sent is on its way to the client, whatever becomes of this process. After
`begin`, until `end`: `await settled()` waits until the kernel has it all, and is false when the client is gone."""

SLOW_BODY = "sandyard.slow_body"
"""Name of the scope extension whose `allow` lets the request's body arrive as slowly as its sender likes, as a stream does."""


def header(headers: Headers, name: bytes) -> str | None:
    """The first header of this name, which is in lower case."""
    for key, value in headers:
        if key == name:
            return value.decode("latin-1")
    return None


async def whole_body(receive: Receive) -> bytes:
    """The request's body. Its size is the caller's to bound."""
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False):
            return bytes(body)


DISCARD_BYTES = 1 << 20
DISCARD_SECONDS = 2.0


async def discard_body(receive: Receive) -> None:
    """Take what is left of a request nobody wants, within bounds. Closing a connection over unread bytes resets it, and
    the client would see that instead of the answer."""
    taken = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(DISCARD_SECONDS):
            while taken < DISCARD_BYTES:
                message = await receive()
                taken += len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    return
