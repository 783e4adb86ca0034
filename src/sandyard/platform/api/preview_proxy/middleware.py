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
from sandyard.kit.ids import make_random_id
from sandyard.kit.logging import bind_fields, get_logger
from sandyard.kit.server import mark_authenticated
from sandyard.platform.api.guard import parse_host_name
from sandyard.platform.api.preview_proxy import pages
from sandyard.platform.api.preview_proxy.exchange import PreviewExchange, run_until_first
from sandyard.platform.api.preview_proxy.headers import restrict_framing
from sandyard.platform.api.preview_proxy.sockets import forward_socket
from sandyard.platform.domain.previews.addresses import Addresses, PreviewPort
from sandyard.platform.domain.previews.model import PortClosedError, PreviewSleepingError
from sandyard.platform.domain.previews.service import TICKET_PARAMETER, Previews
from sandyard.platform.domain.sandboxes.model import SandboxDestroyedError
from sandyard.platform.domain.users.model import Principal

if TYPE_CHECKING:
    from sandyard.platform.domain.services import Services

log = get_logger(__name__)
SECURE_COOKIE = "__Host-sandyard_preview"
PLAIN_COOKIE = "sandyard_preview"
RECHECK_SECONDS = 10.0
REFRESH_SECONDS = 2


class PreviewMiddleware:
    """Handles requests for the host names of previews, and passes all others on."""

    def __init__(self, app: ASGIApp, *, services: Services) -> None:
        self._app = app
        self._services = services
        self._addresses = Addresses.from_settings(services.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._addresses is not None and scope["type"] in ("http", "websocket"):
            host = parse_host_name(Headers(scope=scope).get("host", ""))
            if self._addresses.is_preview_host(host):
                with bind_fields(request=make_random_id("req_"), host=host):
                    await _PreviewRequest(self._services.previews, self._addresses, scope, receive, send).respond(host)
                return
        await self._app(scope, receive, send)


class _PreviewRequest:
    """One request at a preview's host name."""

    def __init__(self, previews: Previews, addresses: Addresses, scope: Scope, receive: Receive, send: Send) -> None:
        self._previews = previews
        self._addresses = addresses
        self._scope = scope
        self._receive = receive
        self._raw_send = send
        self._connection = HTTPConnection(scope)
        self._started = False

    async def respond(self, host: str) -> None:
        preview = self._addresses.parse_host(host)
        try:
            response = pages.render_not_found() if preview is None else await self._handle(preview)
        except SandyardError as error:
            assert preview is not None
            response = self._render_error(preview, error)
        except Exception as error:
            log.error("preview_failed", exc=error)  # noqa: TRY400
            response = pages.render_page(
                500, "Preview failed", "An internal error occurred; see Sandyard's log. Try again."
            )
        if response is not None and not self._started:
            await self._respond(response)

    async def _handle(self, preview: PreviewPort) -> Response | None:
        """Return the response to send, or None if it has already been sent."""
        if (
            self._scope["type"] == "http"
            and self._scope["method"] == "GET"
            and TICKET_PARAMETER in self._connection.query_params
        ):
            return await self._accept_ticket(preview)
        found = await self._find_pass(preview)
        if found is None:
            return pages.render_not_allowed()
        value, holder = found
        mark_authenticated(self._scope)
        if self._is_foreign(preview):
            return pages.render_page(
                403, "Access denied", "A page of another origin may not use this preview on your behalf."
            )
        self._record_shown_path(preview, holder)
        with self._previews.count_connection(preview, holder.user_id):
            return await self._proxy(preview, value)

    async def _proxy(self, preview: PreviewPort, pass_value: str) -> Response | None:
        refusals: list[Response] = []

        async def forward() -> None:
            if self._scope["type"] == "websocket":
                refusal = await forward_socket(
                    self._previews,
                    self._addresses,
                    preview,
                    scope=self._scope,
                    receive=self._receive,
                    send=self._send,
                )
                refusals.extend([refusal] if refusal else [])
            else:
                await PreviewExchange(
                    self._previews,
                    self._addresses,
                    preview,
                    wake=self._opened_by_person(),
                    scope=self._scope,
                    receive=self._receive,
                    send=self._send,
                ).run()

        await run_until_first(forward(), self._wait_until_revoked(preview, pass_value))
        return refusals[0] if refusals else pages.render_not_allowed()  # used only if no response has started

    async def _wait_until_revoked(self, preview: PreviewPort, pass_value: str) -> None:
        """Return when the user's access has ended, so that requests in progress are stopped."""
        while True:
            await asyncio.sleep(RECHECK_SECONDS)
            try:
                if await self._previews.passes.find_holder(preview, pass_value) is None:
                    log.info("preview_ended", reason="no longer allowed")
                    return
            except SandyardError as error:
                log.warning("standing_unknown", reason=error.message)

    # access --------------------------------------------------------------------------------------------------------------

    async def _accept_ticket(self, preview: PreviewPort) -> Response:
        """Exchange the ticket for a cookie of this host and remove it from the URL.

        A used ticket is accepted from a browser that already has a valid cookie.
        """
        pass_value = await self._previews.passes.exchange_ticket(
            preview, self._connection.query_params[TICKET_PARAMETER]
        )
        if pass_value is None and await self._find_pass(preview) is None:
            return pages.render_not_allowed()
        kept = [
            part
            for part in self._scope["query_string"].split(b"&")
            if part.partition(b"=")[0] != TICKET_PARAMETER.encode()
        ]
        target = self._scope["raw_path"] + (b"?" + b"&".join(kept) if kept else b"")
        response = Response(
            None, 303, {**pages.HEADERS, "Location": self._addresses.make_url(preview, target.decode("latin-1"))}
        )
        if pass_value is not None:
            for cookie in self._make_cookies(pass_value):
                response.headers.append("Set-Cookie", cookie)
        return response

    def _make_cookies(self, value: str) -> list[str]:
        """Return the cookies that store the pass.

        In a frame of the platform's page, the preview is a third-party site: only a secure, partitioned cookie works there. Browsers that
        reject secure cookies from their own machine get one that works in a tab.
        """
        common = f"Path=/; Max-Age={self._previews.passes.lifetime_s}; HttpOnly"
        cookies = []
        if self._addresses.is_secure:
            cookies.append(f"{SECURE_COOKIE}={value}; {common}; Secure; SameSite=None; Partitioned")
        if self._addresses.scheme != "https":
            cookies.append(f"{PLAIN_COOKIE}={value}; {common}; SameSite=Lax")
        return cookies

    async def _find_pass(self, preview: PreviewPort) -> tuple[str, Principal] | None:
        """Return the browser's pass and its holder if it is valid."""
        names = (SECURE_COOKIE, PLAIN_COOKIE) if self._addresses.scheme != "https" else (SECURE_COOKIE,)
        for name in names:
            value = self._connection.cookies.get(name)
            if value and (holder := await self._previews.passes.find_holder(preview, value)) is not None:
                return value, holder
        return None

    def _is_foreign(self, preview: PreviewPort) -> bool:
        """Return whether another origin's page made this request: another sandbox's, or any other. Navigating here is allowed."""
        headers = self._connection.headers
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if site in ("same-origin", "none"):  # Origin may still be null, if the page sends no referrers
            return False
        if origin is not None:
            return not self._addresses.is_same_sandbox(origin, preview)
        return site is not None and headers.get("sec-fetch-mode") != "navigate"

    def _record_shown_path(self, preview: PreviewPort, holder: Principal) -> None:
        """Remember the path shown in a frame of the platform's page, because that page cannot ask the frame.

        Frames within the preview's own pages load without user action and are ignored.
        """
        headers = self._connection.headers
        by_person = headers.get("sec-fetch-user") == "?1" or headers.get("sec-fetch-site") != "same-origin"
        if headers.get("sec-fetch-dest") != "iframe" or not by_person:
            return
        query = self._scope["query_string"]
        path = self._scope["raw_path"] + (b"?" + query if query else b"")
        self._previews.record_shown_path(preview, holder.user_id, path.decode("latin-1"))

    def _opened_by_person(self) -> bool:
        """Return whether a person navigated here. Scripts that poll do not send navigate; other programs send no such header."""
        return self._connection.headers.get("sec-fetch-mode", "navigate") == "navigate"

    # error pages ----------------------------------------------------------------------------------------------------------

    def _render_error(self, preview: PreviewPort, error: SandyardError) -> Response:
        if isinstance(error, NotFoundError | SandboxDestroyedError):
            return pages.render_page(404, "Sandbox deleted", error.message)
        if isinstance(error, PortClosedError):
            will_refresh = self._previews.record_closed_port(preview)
            hint = (
                "This page reloads automatically." if will_refresh else "Reload this page once the server is running."
            )
            return pages.render_page(
                502, "No server on this port", error.message, hint, refresh_s=REFRESH_SECONDS if will_refresh else None
            )
        title = "Sandbox is paused" if isinstance(error, PreviewSleepingError) else "Preview unavailable"
        return pages.render_page(error.status, title, error.message)

    async def _send(self, message: Message) -> None:
        self._started = True
        if message["type"] == "http.response.start":
            message = {**message, "headers": list(restrict_framing(message["headers"], self._addresses))}
        await self._raw_send(message)

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
