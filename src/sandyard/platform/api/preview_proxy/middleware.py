"""The outermost middleware: it handles every request for a preview's host name.

The platform's routes are not reachable there. Pages shown there cannot reach the platform: they have another origin, and the platform's
cookie is not sent to them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandyard.kit.errors import NotFoundError, SandyardError
from sandyard.kit.ids import random_id
from sandyard.kit.logging import bind_fields, get_logger
from sandyard.kit.server import mark_authenticated
from sandyard.platform.api.guard import host_name
from sandyard.platform.api.preview_proxy import pages
from sandyard.platform.api.preview_proxy.exchange import Exchange, run_until_first
from sandyard.platform.api.preview_proxy.sockets import forward_socket
from sandyard.platform.domain.previews.addresses import Addresses, Place
from sandyard.platform.domain.previews.model import PortClosedError, SleepingError
from sandyard.platform.domain.previews.service import TICKET, Previews
from sandyard.platform.domain.sandboxes.model import SandboxDestroyedError
from sandyard.platform.domain.users.model import Principal

if TYPE_CHECKING:
    from sandyard.platform.domain.services import Services

log = get_logger(__name__)
SECURE_COOKIE = "__Host-sandyard_preview"
PLAIN_COOKIE = "sandyard_preview"
LOOK_SECONDS = 10.0
REFRESH_SECONDS = 2


class PreviewMiddleware:
    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services
        self._addresses = Addresses.of(services.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._addresses is not None and scope["type"] in ("http", "websocket"):
            host = host_name(Headers(scope=scope).get("host", ""))
            if self._addresses.below(host):
                with bind_fields(request=random_id("req_"), host=host):
                    await _Visit(self._services.previews, self._addresses, scope, receive, send).answer(host)
                return
        await self._app(scope, receive, send)


class _Visit:
    """One request at a preview's host name."""

    def __init__(self, previews: Previews, addresses: Addresses, scope: Scope, receive: Receive, send: Send) -> None:
        self._previews = previews
        self._addresses = addresses
        self._scope = scope
        self._receive = receive
        self._given_send = send
        self._connection = HTTPConnection(scope)
        self._begun = False

    async def answer(self, host: str) -> None:
        place = self._addresses.place(host)
        try:
            response = pages.render_not_found() if place is None else await self._visit(place)
        except SandyardError as error:
            assert place is not None
            response = self._explained(place, error)
        except Exception as error:
            log.error("preview_failed", exc=error)  # noqa: TRY400
            response = pages.render_page(
                500, "Preview failed", "An internal error occurred; see Sandyard's log. Try again."
            )
        if response is not None and not self._begun:
            await self._respond(response)

    async def _visit(self, place: Place) -> Response | None:
        """Return the response to send, or None if it has already been sent."""
        if self._scope["type"] == "http" and self._scope["method"] == "GET" and TICKET in self._connection.query_params:
            return await self._let_in(place)
        known = await self._known(place)
        if known is None:
            return pages.render_not_allowed()
        value, holder = known
        mark_authenticated(self._scope)
        if self._foreign(place):
            return pages.render_page(
                403, "Access denied", "A page of another origin may not use this preview on your behalf."
            )
        self._note_shown(place, holder)
        with self._previews.entering(place, holder.user_id):
            return await self._pass_through(place, value)

    async def _pass_through(self, place: Place, known: str) -> Response | None:
        refused: list[Response] = []

        async def work() -> None:
            if self._scope["type"] == "websocket":
                answer = await forward_socket(
                    self._previews,
                    self._addresses,
                    place,
                    scope=self._scope,
                    receive=self._receive,
                    send=self._send,
                )
                refused.extend([answer] if answer else [])
            else:
                await Exchange(
                    self._previews,
                    self._addresses,
                    place,
                    wake=self._opened_by_person(),
                    scope=self._scope,
                    receive=self._receive,
                    send=self._send,
                ).run()

        await run_until_first(work(), self._no_longer(place, known))
        return refused[0] if refused else pages.render_not_allowed()  # used only if no response has started

    async def _no_longer(self, place: Place, known: str) -> None:
        """Return when the user's access has ended, so that requests in progress are stopped."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if await self._previews.passes.holder(place, known) is None:
                    log.info("preview_ended", reason="no longer allowed")
                    return
            except SandyardError as error:
                log.warning("standing_unknown", reason=error.message)

    # access --------------------------------------------------------------------------------------------------------------

    async def _let_in(self, place: Place) -> Response:
        """Exchange the ticket for a cookie of this host and remove it from the URL.

        A used ticket is accepted from a browser that already has a valid cookie.
        """
        made = await self._previews.passes.exchange(place, self._connection.query_params[TICKET])
        if made is None and await self._known(place) is None:
            return pages.render_not_allowed()
        kept = [part for part in self._scope["query_string"].split(b"&") if part.partition(b"=")[0] != TICKET.encode()]
        target = self._scope["raw_path"] + (b"?" + b"&".join(kept) if kept else b"")
        response = Response(
            None, 303, {**pages.HEADERS, "Location": self._addresses.url(place, target.decode("latin-1"))}
        )
        if made is not None:
            for cookie in self._cookies(made):
                response.headers.append("Set-Cookie", cookie)
        return response

    def _cookies(self, value: str) -> list[str]:
        """Return the cookies to set.

        In a frame of the platform's page, the preview is a third-party site: only a secure, partitioned cookie works there. Browsers that
        reject secure cookies from their own machine get one that works in a tab.
        """
        common = f"Path=/; Max-Age={self._previews.passes.seconds}; HttpOnly"
        made = []
        if self._addresses.trusted:
            made.append(f"{SECURE_COOKIE}={value}; {common}; Secure; SameSite=None; Partitioned")
        if self._addresses.scheme != "https":
            made.append(f"{PLAIN_COOKIE}={value}; {common}; SameSite=Lax")
        return made

    async def _known(self, place: Place) -> tuple[str, Principal] | None:
        """Return the browser's pass and its holder if it is valid."""
        names = (SECURE_COOKIE, PLAIN_COOKIE) if self._addresses.scheme != "https" else (SECURE_COOKIE,)
        for name in names:
            value = self._connection.cookies.get(name)
            if value and (holder := await self._previews.passes.holder(place, value)) is not None:
                return value, holder
        return None

    def _foreign(self, place: Place) -> bool:
        """Return whether another origin's page made this request: another sandbox's, or any other. Navigating here is allowed."""
        headers = self._connection.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site in ("same-origin", "none"):  # Origin may still be null, if the page sends no referrers
            return False
        if origin is not None:
            return not self._addresses.of_same_sandbox(origin, place)
        return site is not None and headers.get("sec-fetch-mode") != "navigate"

    def _note_shown(self, place: Place, holder: Principal) -> None:
        """Remember the path shown in a frame of the platform's page, because that page cannot ask the frame.

        Frames within the preview's own pages load without user action and are ignored.
        """
        headers = self._connection.headers
        by_person = headers.get("sec-fetch-user") == "?1" or headers.get("sec-fetch-site") != "same-origin"
        if headers.get("sec-fetch-dest") != "iframe" or not by_person:
            return
        query = self._scope["query_string"]
        path = self._scope["raw_path"] + (b"?" + query if query else b"")
        self._previews.note_shown(place, holder.user_id, path.decode("latin-1"))

    def _opened_by_person(self) -> bool:
        """Return whether a person navigated here. Scripts that poll do not send navigate; other programs send no such header."""
        return self._connection.headers.get("sec-fetch-mode", "navigate") == "navigate"

    # error pages ----------------------------------------------------------------------------------------------------------

    def _explained(self, place: Place, error: SandyardError) -> Response:
        if isinstance(error, NotFoundError | SandboxDestroyedError):
            return pages.render_page(404, "Sandbox deleted", error.message)
        if isinstance(error, PortClosedError):
            again = self._previews.closed(place)
            hint = "This page reloads automatically." if again else "Reload this page once the server is running."
            return pages.render_page(
                502, "No server on this port", error.message, hint, refresh_s=REFRESH_SECONDS if again else None
            )
        title = "Sandbox is paused" if isinstance(error, SleepingError) else "Preview unavailable"
        return pages.render_page(error.status, title, error.message)

    async def _send(self, message: Message) -> None:
        self._begun = True
        await self._given_send(message)

    async def _respond(self, response: Response) -> None:
        if self._scope["type"] == "http":
            await response(self._scope, self._receive, self._send)
        elif "websocket.http.response" in self._scope.get("extensions", {}):
            headers = response.raw_headers
            await self._send(
                {"type": "websocket.http.response.start", "status": response.status_code, "headers": headers}
            )
            await self._send({"type": "websocket.http.response.body", "body": bytes(response.body)})
        else:
            await self._send({"type": "websocket.close", "code": 1008, "reason": "This preview cannot be opened."})
