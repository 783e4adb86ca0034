"""A WebSocket between a browser and a server in a sandbox: two of them, and messages carried from one to the other."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus, WebSocketException

from sandyard.platform.api.previewing.exchange import CONNECT_S
from sandyard.platform.api.previewing.headers import to_browser, to_sandbox, without_sockets
from sandyard.platform.api.previewing.pages import Trouble, trouble
from sandyard.platform.api.previewing.racing import first
from sandyard.platform.domain.previews.addresses import Addresses, Place
from sandyard.platform.domain.previews.model import BrokenAnswerError, PortClosedError
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.e2b import EngineUnreachableError, Route, SandboxUnreachableError

MESSAGE_LIMIT = 16 << 20
"""Of a WebSocket: an editor in the browser saves a file in one message."""
_NO_CODE, _BROKEN = 1005, 1006


class _Direct(connect):
    """A redirect is the browser's to follow: the platform goes nowhere because a sandbox says so."""

    def process_redirect(self, exc: Exception) -> Exception | str:
        return exc


async def carry(
    previews: Previews, addresses: Addresses, place: Place, *, scope: Scope, receive: Receive, send: Send
) -> Response | None:
    """Until one side ends it. An answer instead when the server in the sandbox does not want it. Wakes nobody: a page that tries
    again and again is no person. Raises SandyardError."""
    await receive()  # websocket.connect
    async with previews.reaching(place, wake=False) as route:
        try:
            upstream = await _dial(previews, addresses, place, route, scope)
        except InvalidStatus as error:
            return await _refused(previews, place, error)
        except (InvalidMessage, EOFError):
            raise BrokenAnswerError from None
        except (OSError, InvalidHandshake, WebSocketException):  # a TimeoutError is an OSError
            raise EngineUnreachableError from None
    async with upstream:
        assert upstream.response is not None
        answered = [
            (name.encode("latin-1"), value.encode("latin-1")) for name, value in upstream.response.headers.raw_items()
        ]
        headers = list(without_sockets(to_browser(answered)))
        await send({"type": "websocket.accept", "subprotocol": upstream.subprotocol, "headers": headers})
        await first(_typed(previews, place, upstream, receive), _shown(upstream, send))
    return None


async def _dial(previews: Previews, addresses: Addresses, place: Place, route: Route, scope: Scope) -> ClientConnection:
    """The name in the address is the one the server hears; where it lies is the route's."""
    parts = urlsplit(route.url)
    secure = parts.scheme == "https"
    name = addresses.host(place) if route.keeps_host else parts.netloc
    target = scope["raw_path"].decode("latin-1") + (
        f"?{query.decode('latin-1')}" if (query := scope["query_string"]) else ""
    )
    given = without_sockets(to_sandbox(scope["headers"], addresses, place, route))
    options: dict[str, Any] = {"host": parts.hostname, "port": parts.port or 80} if route.keeps_host else {}
    return await _Direct(
        f"{'wss' if secure else 'ws'}://{name}{target}",
        additional_headers=[(key.decode("latin-1"), value.decode("latin-1")) for key, value in given if key != b"host"],
        subprotocols=scope["subprotocols"] or None,
        compression=None,
        user_agent_header=None,
        open_timeout=CONNECT_S,
        ping_interval=None,
        max_size=MESSAGE_LIMIT,
        proxy=True if previews.outside else None,
        **options,
    )


async def _refused(previews: Previews, place: Place, error: InvalidStatus) -> Response:
    answer = error.response
    reason = trouble(answer.status_code, bytes(answer.body))
    if reason is Trouble.CLOSED:
        raise PortClosedError from None
    if reason is Trouble.MISSING:
        await previews.missed(place, wake=False)
        raise SandboxUnreachableError from None
    response = Response(bytes(answer.body), answer.status_code)
    given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.raw_items()]
    response.raw_headers = [pair for pair in to_browser(given) if pair[0] != b"content-length"]
    response.headers["content-length"] = str(len(answer.body))
    return response


async def _typed(previews: Previews, place: Place, upstream: ClientConnection, receive: Receive) -> None:
    """What the browser says, until it goes."""
    while True:
        message: Message = await receive()
        if message["type"] == "websocket.disconnect":
            await upstream.close(_sendable(message.get("code") or _NO_CODE), (message.get("reason") or "")[:30])
            return
        previews.touch(place)
        try:
            text = message.get("text")
            await upstream.send(message["bytes"] if text is None else text)
        except ConnectionClosed:
            pass  # the other half hears why


async def _shown(upstream: ClientConnection, send: Send) -> None:
    """What the server says, until it ends."""
    try:
        async for message in upstream:
            await send({"type": "websocket.send", "text" if isinstance(message, str) else "bytes": message})
    except ConnectionClosed:
        pass
    code = upstream.close_code or _BROKEN
    await send({"type": "websocket.close", "code": _sendable(code), "reason": upstream.close_reason or ""})


def _sendable(code: int) -> int:
    """Some codes say what was seen, and may not be sent themselves."""
    if code == _NO_CODE:
        return 1000
    return code if code in (1000, 1001, 1002, 1003, *range(1007, 1015)) or 3000 <= code < 5000 else 1011
