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
from sandyard.platform.api.preview_proxy.headers import filter_request_headers, filter_response_headers
from sandyard.platform.api.preview_proxy.pages import Trouble, is_complete, may_be_trouble, render_error
from sandyard.platform.domain.previews.addresses import Addresses, Place
from sandyard.platform.domain.previews.model import BrokenAnswerError, PortClosedError
from sandyard.platform.domain.previews.service import Previews
from sandyard.platform.domain.sandboxes.e2b import EngineUnreachableError, Route, SandboxUnreachableError

log = get_logger(__name__)
CONNECT_S = 10.0
_TIMEOUT = {"connect": CONNECT_S, "pool": CONNECT_S, "read": None, "write": None}  # a stream may be silent for hours
_LIVE = b"text/event-stream"


class _GoneError(Exception):
    """The browser has disconnected."""


class Exchange:
    """A proxied request. With `wake`, a person opens the preview, so a paused sandbox is resumed.

    Raises SandyardError if there is no response to pass on.
    """

    def __init__(
        self,
        previews: Previews,
        addresses: Addresses,
        place: Place,
        *,
        wake: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self._previews = previews
        self._addresses = addresses
        self._place = place
        self._wake = wake
        self._scope = scope
        self._receive = receive
        self._send = send
        self._whole = asyncio.Event()  # set when the whole request has been read
        names = dict(scope["headers"])
        self._has_body = b"transfer-encoding" in names or names.get(b"content-length", b"0") != b"0"
        if not self._has_body:
            self._whole.set()

    async def run(self) -> None:
        """Proxy until the response is complete or the browser disconnects."""
        try:
            await run_until_first(self._proxy(), self._left())
        except _GoneError:
            return

    async def _left(self) -> None:
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def _proxy(self) -> None:
        for again in (True, False):
            async with self._previews.reaching(self._place, wake=self._wake) as route:
                answer = await self._ask(route)
            try:
                pieces = answer.aiter_raw()
                held = await _held(answer, pieces)
                reason = render_error(answer.status_code, held)
                if reason is None:
                    await self._stream_response(answer, held, pieces)
                    return
            finally:
                await answer.aclose()
            if reason is Trouble.CLOSED:
                raise PortClosedError(
                    f"Nothing is listening on port {self._place.port} of this sandbox. Start a server on it."
                )
            if not await self._previews.missed(self._place, wake=self._wake) or self._has_body or not again:
                raise SandboxUnreachableError

    async def _ask(self, route: Route) -> httpx.Response:
        content = self._body() if self._has_body else None
        return await send_request(self._previews, self._addresses, self._place, route, self._scope, content=content)

    async def _body(self) -> AsyncIterator[bytes]:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _GoneError
            if message.get("body"):
                self._previews.touch(self._place)
                await take_turn()
                yield message["body"]
            if not message.get("more_body"):
                self._whole.set()
                return

    async def _stream_response(self, answer: httpx.Response, held: bytes, pieces: AsyncIterator[bytes]) -> None:
        """Stream the response to the browser.

        If the response breaks off, it is left incomplete: the server then closes the browser's connection too.
        """
        headers = list(filter_response_headers(answer.headers.raw))
        await self._send({"type": "http.response.start", "status": answer.status_code, "headers": headers})
        # an open event stream may be a forgotten tab, so it does not count as activity
        counts = not any(name == b"content-type" and value.lower().startswith(_LIVE) for name, value in headers)
        try:
            if held:
                await self._send({"type": "http.response.body", "body": held, "more_body": True})
            async for piece in pieces:
                await take_turn()
                if counts:
                    self._previews.touch(self._place)
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except httpx.TransportError as error:
            log.info("preview_cut", sandbox=self._place.sandbox_id, port=self._place.port, reason=repr(error)[:200])
            return
        await self._send({"type": "http.response.body", "body": b""})


async def send_request(
    previews: Previews,
    addresses: Addresses,
    place: Place,
    route: Route,
    scope: Scope,
    *,
    content: AsyncIterator[bytes] | None = None,
    more: Iterable[tuple[bytes, bytes]] = (),
    timeouts: Mapping[str, float | None] = _TIMEOUT,
) -> httpx.Response:
    """Send a browser's request to the sandbox, with `more` headers. Raises SandyardError if there is no response."""
    headers = [*filter_request_headers(scope["headers"], addresses, place, route), *more]
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
        log.info("preview_broken", sandbox=place.sandbox_id, port=place.port, reason=repr(error)[:200])
        raise BrokenAnswerError from None


async def _held(answer: httpx.Response, pieces: AsyncIterator[bytes]) -> bytes:
    """Return the beginning of a response that may come from the engine itself."""
    held = b""
    if may_be_trouble(answer.status_code):
        try:
            async for piece in pieces:
                await take_turn()
                held += piece
                if is_complete(held):
                    break
        except httpx.TransportError:
            raise BrokenAnswerError from None
    return held


async def run_until_first(*works: Coroutine[Any, Any, object]) -> None:
    """Return or raise as the first coroutine does. The others are cancelled and have ended by then."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end_tasks(*tasks)
    for task in tasks:
        if task in done:
            task.result()
        elif not task.cancelled():
            task.exception()  # mark as retrieved, so that asyncio does not log it
