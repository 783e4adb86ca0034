"""Proxy one HTTP request of a browser and its response, both streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.logging import get_logger
from sandyard.kit.pacing import take_turn
from sandyard.kit.tasks import end_tasks
from sandyard.platform.api.preview_proxy.headers import (
    filter_request_headers,
    filter_response_headers,
    require_revalidation,
)
from sandyard.platform.api.preview_proxy.pages import (
    RouteFailure,
    find_route_failure,
    is_complete,
    may_be_route_failure,
)
from sandyard.platform.domain.previews.addresses import Addresses, PreviewPort
from sandyard.platform.domain.previews.model import BrokenResponseError, PortClosedError
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.e2b import EngineUnreachableError, Route, SandboxUnreachableError

log = get_logger(__name__)
CONNECT_S = 10.0
_TIMEOUT = {"connect": CONNECT_S, "pool": CONNECT_S, "read": None, "write": None}  # a stream may be silent for hours
_EVENT_STREAM = b"text/event-stream"


class _DisconnectedError(Exception):
    """The browser has disconnected."""


class PreviewExchange:
    """A proxied request. With `wake`, a person opens the preview, so a paused sandbox is resumed.

    Raises SandyardError if there is no response to pass on.
    """

    def __init__(
        self,
        previews: Previews,
        addresses: Addresses,
        preview: PreviewPort,
        *,
        wake: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._previews = previews
        self._addresses = addresses
        self._preview = preview
        self._wake = wake
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_read = asyncio.Event()  # set when the whole request has been read
        names = dict(scope["headers"])
        self._has_body = b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"
        if not self._has_body:
            self._request_read.set()

    async def run(self) -> None:
        """Proxy until the response is complete or the browser disconnects."""
        try:
            await run_until_first(self._proxy(), self._wait_for_disconnect())
        except _DisconnectedError:
            return

    async def _wait_for_disconnect(self) -> None:
        await self._request_read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _proxy(self) -> None:
        for may_retry in (True, False):
            async with self._previews.open_route(self._preview, wake=self._wake) as route:
                response = await self._send_request(route)
            try:
                chunks = response.aiter_raw()
                beginning = await _read_beginning(response, chunks)
                reason = find_route_failure(response.status_code, beginning)
                if reason is None:
                    await self._stream_response(response, beginning, chunks)
                    return
            finally:
                await response.aclose()
            if reason is RouteFailure.CLOSED:
                raise PortClosedError(
                    f"Nothing is listening on port {self._preview.port} of this sandbox. Start a server on it."
                )
            if (
                not await self._previews.resume_if_paused(self._preview, wake=self._wake)
                or self._has_body
                or not may_retry
            ):
                raise SandboxUnreachableError

    async def _send_request(self, route: Route) -> httpx.Response:
        content = self._stream_body() if self._has_body else None
        return await send_request(self._previews, self._addresses, self._preview, route, self._scope, content=content)

    async def _stream_body(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _DisconnectedError
            if message.get("body"):
                self._previews.touch(self._preview)
                await take_turn()
                yield message["body"]
            if not message.get("more_body"):
                self._request_read.set()
                return

    async def _stream_response(self, response: httpx.Response, beginning: bytes, chunks: AsyncIterator[bytes]) -> None:
        """Stream the response to the browser.

        If the response breaks off, it is left incomplete: the server then closes the browser's connection too.
        """
        headers = list(require_revalidation(filter_response_headers(response.headers.raw)))
        await self._send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        # an open event stream may be a forgotten tab, so it does not count as activity
        counts_as_activity = not any(
            name == b"content-type" and value.lower().startswith(_EVENT_STREAM) for name, value in headers
        )
        try:
            if beginning:
                await self._send({"type": "http.response.body", "body": beginning, "more_body": True})
            async for chunk in chunks:
                await take_turn()
                if counts_as_activity:
                    self._previews.touch(self._preview)
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.TransportError as error:
            log.info("preview_cut", sandbox=self._preview.sandbox_id, port=self._preview.port, reason=repr(error)[:200])
            return
        await self._send({"type": "http.response.body", "body": b""})


async def send_request(
    previews: Previews,
    addresses: Addresses,
    preview: PreviewPort,
    route: Route,
    scope: Scope,
    *,
    content: AsyncIterator[bytes] | None = None,
    extra_headers: Iterable[tuple[bytes, bytes]] = (),
    timeouts: Mapping[str, float | None] = _TIMEOUT,
) -> httpx.Response:
    """Send a browser's request to the sandbox, with `extra_headers` added. Raises SandyardError if there is no response."""
    headers = [*filter_request_headers(scope["headers"], addresses, preview, route), *extra_headers]
    target = scope["raw_path"] + (b"?" + query if (query := scope["query_string"]) else b"")
    try:
        request = httpx.Request(
            scope["method"],
            route.url,
            headers=headers,
            content=content,
            extensions={"target": target, "timeout": dict(timeouts)},  # the path exactly as written, not normalized
        )
        return await previews.http.send(request, stream=True, follow_redirects=False)
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout):
        raise EngineUnreachableError from None
    except httpx.LocalProtocolError as error:
        raise InvalidInputError(f"The request cannot be forwarded: {error}.") from None
    except httpx.TransportError as error:
        log.info("preview_broken", sandbox=preview.sandbox_id, port=preview.port, reason=repr(error)[:200])
        raise BrokenResponseError from None


async def _read_beginning(response: httpx.Response, chunks: AsyncIterator[bytes]) -> bytes:
    """Return the beginning of a response that may come from the engine itself."""
    beginning = b""
    if may_be_route_failure(response.status_code):
        try:
            async for chunk in chunks:
                await take_turn()
                beginning += chunk
                if is_complete(beginning):
                    break
        except httpx.TransportError:
            raise BrokenResponseError from None
    return beginning


async def run_until_first(*coroutines: Coroutine[Any, Any, object]) -> None:
    """Return or raise as the first coroutine does. The others are cancelled and have ended by then."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        if task in done:
            task.result()
        elif not task.cancelled():
            task.exception()  # mark as retrieved, so that asyncio does not log it
