"""Proxy a WebSocket between a browser and a server in a sandbox, byte for byte, without interpreting messages."""

from __future__ import annotations

import httpcore
import httpx
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sandyard.kit.pacing import take_turn
from sandyard.kit.websockets import RAW, FrameTracker
from sandyard.platform.api.preview_proxy.exchange import CONNECT_S, run_until_first, send_request
from sandyard.platform.api.preview_proxy.headers import filter_response_headers
from sandyard.platform.api.preview_proxy.pages import RouteFailure, find_route_failure
from sandyard.platform.domain.previews.addresses import Addresses, PreviewPort
from sandyard.platform.domain.previews.model import BrokenResponseError, PortClosedError
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.e2b import SandboxUnreachableError

READ_BYTES = 256 << 10
REFUSAL_BYTES = 1 << 20
"""Maximum size of a response that rejects a WebSocket."""
_UPGRADE = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
_TIMEOUT = {"connect": CONNECT_S, "pool": CONNECT_S, "read": CONNECT_S, "write": CONNECT_S}


async def forward_socket(
    previews: Previews, addresses: Addresses, preview: PreviewPort, *, scope: Scope, receive: Receive, send: Send
) -> Response | None:
    """Proxy until one side closes. Returns the response if the server in the sandbox rejects the WebSocket.

    Does not resume the sandbox, because pages reconnect without user action. Raises SandyardError.
    """
    await receive()  # websocket.connect
    request = {**scope, "method": "GET"}
    async with previews.open_route(preview, wake=False) as route:
        upstream = await send_request(
            previews, addresses, preview, route, request, extra_headers=_UPGRADE, timeouts=_TIMEOUT
        )
    try:
        if upstream.status_code != httpx.codes.SWITCHING_PROTOCOLS:
            return await _make_refusal(previews, preview, upstream)
        await send({"type": RAW, "headers": list(filter_response_headers(upstream.headers.raw))})
        stream: httpcore.AsyncNetworkStream = upstream.extensions["network_stream"]
        await run_until_first(_forward_input(previews, preview, stream, receive), _forward_output(stream, send))
    finally:
        await upstream.aclose()
    return None


async def _make_refusal(previews: Previews, preview: PreviewPort, upstream: httpx.Response) -> Response:
    body = b""
    try:
        async for chunk in upstream.aiter_raw():
            await take_turn()
            body += chunk
            if len(body) > REFUSAL_BYTES:
                raise BrokenResponseError
    except httpx.TransportError:
        raise BrokenResponseError from None
    reason = find_route_failure(upstream.status_code, body)
    if reason is RouteFailure.CLOSED:
        raise PortClosedError
    if reason is RouteFailure.MISSING:
        await previews.resume_if_paused(preview, wake=False)
        raise SandboxUnreachableError
    response = Response(body, upstream.status_code)
    response.raw_headers = [
        pair for pair in filter_response_headers(upstream.headers.raw) if pair[0] != b"content-length"
    ]
    response.headers["content-length"] = str(len(body))
    return response


async def _forward_input(
    previews: Previews, preview: PreviewPort, stream: httpcore.AsyncNetworkStream, receive: Receive
) -> None:
    """Forward the browser's data until it disconnects.

    Pongs do not count as activity, because browsers send them automatically.
    """
    frames = FrameTracker()
    while True:
        message: Message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        if frames.feed(message["bytes"]):
            previews.touch(preview)
        await take_turn()
        try:
            await stream.write(message["bytes"])
        except httpcore.NetworkError:
            return


async def _forward_output(stream: httpcore.AsyncNetworkStream, send: Send) -> None:
    """Forward the server's data until it closes."""
    while True:
        try:
            data = await stream.read(READ_BYTES)
        except httpcore.NetworkError:
            return
        if not data:
            return
        await take_turn()
        try:
            await send({"type": "websocket.send", "bytes": data})
        except OSError:  # the browser has disconnected
            return
