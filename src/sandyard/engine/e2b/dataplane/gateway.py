"""The gateway: an ASGI application that handles requests for sandboxes and passes others to the control API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sandyard.engine.contract import AGENT_PORT, INTERPRETER_PORT
from sandyard.engine.e2b.dataplane import pages
from sandyard.engine.e2b.dataplane.access import ACCESS_TOKEN, TRAFFIC_TOKEN, check_access, is_authenticated
from sandyard.engine.e2b.dataplane.asgi import (
    DELIVERY,
    SLOW_BODY,
    App,
    Headers,
    Message,
    Receive,
    Scope,
    Send,
    discard_body,
    get_header,
)
from sandyard.engine.e2b.dataplane.forwarded_headers import REPLACED, find_tls_server_name, make_forwarded_headers
from sandyard.engine.e2b.dataplane.pages import Page
from sandyard.engine.e2b.dataplane.pool import Pool
from sandyard.engine.e2b.dataplane.relay import RECEIPTS, ClientGoneError, Exchange, StaleConnectionError, build_request
from sandyard.engine.e2b.dataplane.reply import BadReplyError, UpstreamError
from sandyard.engine.e2b.dataplane.signature import SignatureIndex
from sandyard.engine.e2b.dataplane.target import Target, find_sandbox_id, find_target, parse_signed_file
from sandyard.engine.e2b.dataplane.tunnel import Tunnel, TunnelConnection
from sandyard.engine.e2b.dataplane.upstream import Upstream
from sandyard.engine.sandboxes.model import Sandbox, SandboxQuery
from sandyard.engine.sandboxes.service import Sandboxes
from sandyard.kit.errors import SandyardError, UnreachableError
from sandyard.kit.secret import Secret
from sandyard.kit.server import mark_authenticated

PREFLIGHT_METHOD = b"access-control-request-method"
PREFLIGHT_HEADERS = b"access-control-request-headers"
MISSING_LANGUAGE = b"x-missing-language"
"""Response header: the code interpreter lacks a kernel that its template could have."""
AddLanguage = Callable[[str | None, str], str | None]
"""Called with the name of a sandbox's template and a missing language. If the template is the code interpreter's, starts adding the
language and returns the message for the client; None keeps the original response."""


class Gateway:
    """Subscribes to the service, to close connections into a sandbox when it pauses or ends."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        control: App,
        add_language: AddLanguage = lambda *_: None,
        *,
        is_api_key: Callable[[str], bool],
    ) -> None:
        """`is_api_key` returns whether a text is an API key of this engine."""
        self._sandboxes = sandboxes
        self._control = control
        self._is_api_key = is_api_key
        self.add_language = add_language
        self._signatures = SignatureIndex()
        self.pool = Pool()
        sandboxes.on_interrupted(self._on_interrupted)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._control(scope, receive, send)
            return
        try:
            target = find_target(scope)
            if target is None:
                target = await self._find_signed(scope)
        except SandyardError as error:
            await discard_body(receive)
            await pages.send_page(pages.plain(error.status, error.message), scope, send)
            return
        if target is None:
            await self._control(scope, receive, send)
        else:
            await self._serve(target, scope, receive, send)

    def close(self) -> None:
        self.pool.close()

    def is_sandbox_name(self, host: str) -> bool:
        """Return whether a host name is that of a port of an existing sandbox."""
        sandbox_id = find_sandbox_id(host)
        return sandbox_id is not None and self._sandboxes.find(sandbox_id) is not None

    def admit(self, target: Target, scope: Scope) -> Sandbox | Page:
        """Return the sandbox that a request may access, or the response to send instead."""
        sandbox = self._sandboxes.find(target.sandbox_id)
        if sandbox is None:
            return pages.not_found(target)
        page = check_access(scope, target, sandbox)
        if page is not None:
            return page
        if not sandbox.running and (not sandbox.auto_resume or scope["path"].strip("/") == "health"):
            return pages.not_found(target)  # a health check does not wake a sandbox
        return sandbox

    async def open_tunnel(self, scope: Scope, tunnel: Tunnel) -> TunnelConnection | Page:
        """Return the connection for a WebSocket request, or the response to send instead."""
        target = find_target(scope)
        if target is None:
            return pages.plain(404, "WebSockets are only available for a sandbox and a port.")
        admitted = self.admit(target, scope)
        if isinstance(admitted, Page):
            return admitted
        try:
            sock = await self._sandboxes.dial(target.sandbox_id, target.port)
        except UnreachableError:
            return self._explain_unreachable(target)
        if self._is_gone(target):
            sock.close()
            return self._explain_unreachable(target)
        self.pool.add_busy(target.sandbox_id, tunnel)
        hidden = self._choose_hidden_headers(target, scope)
        kept = [pair for pair in scope["headers"] if pair[0] not in hidden]
        headers = kept + make_forwarded_headers(target, admitted, scope)
        return TunnelConnection(target, sock, find_tls_server_name(target, admitted, scope), headers)

    def end_tunnel(self, target: Target, tunnel: Tunnel) -> None:
        self.pool.remove_busy(target.sandbox_id, tunnel)

    async def _find_signed(self, scope: Scope) -> Target | None:
        file = parse_signed_file(scope)
        if file is None:
            return None
        client = scope["client"][0] if scope.get("client") else ""
        return Target(await self._signatures.find(file, client, self._iterate_tokens()), AGENT_PORT)

    def _iterate_tokens(self) -> Iterator[tuple[str, Secret]]:
        cursor: str | None = None
        while True:
            page = self._sandboxes.list(SandboxQuery(limit=1000, cursor=cursor))
            for sandbox in page.items:
                if sandbox.access_token is not None:
                    yield sandbox.id, sandbox.access_token
            cursor = page.next_cursor
            if cursor is None:
                return

    async def _serve(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            target.port == AGENT_PORT
            and scope["method"] == "OPTIONS"
            and get_header(scope["headers"], PREFLIGHT_METHOD)
        ):
            await _answer_preflight(scope, send)
            return
        admitted = self.admit(target, scope)
        if isinstance(admitted, Page):
            await discard_body(receive)
            await pages.send_page(admitted, scope, send)
            return
        if is_authenticated(scope, target, admitted):
            mark_authenticated(scope)
        if get_header(scope["headers"], b"transfer-encoding") and (slow := scope.get("extensions", {}).get(SLOW_BODY)):
            slow["allow"]()  # the sandbox decides how long a stream may last
        if target.port == INTERPRETER_PORT:
            send = self._explain_missing_language(admitted, send)
        exchange = Exchange(scope, receive, send)
        try:
            await exchange.receive_first()  # before there is a connection that would have to be released
            await self._exchange(target, admitted, scope, exchange)
        except ClientGoneError:
            return
        except UnreachableError:
            await pages.send_page(self._explain_unreachable(target), scope, send)
        except SandyardError as error:
            await pages.send_page(pages.plain(error.status, error.message, target), scope, send)
        except UpstreamError as error:
            if isinstance(error, BadReplyError):
                await pages.send_page(pages.plain(502, str(error), target), scope, send)
            else:
                await pages.send_page(self._explain_unreachable(target), scope, send)

    async def _exchange(self, target: Target, sandbox: Sandbox, scope: Scope, exchange: Exchange) -> None:
        hidden = self._choose_hidden_headers(target, scope)
        if target.port != AGENT_PORT:
            upstream = await self._dial(target, find_tls_server_name(target, sandbox, scope))
            forwarded = make_forwarded_headers(target, sandbox, scope)
            request = build_request(scope, keep_alive=False, drop=hidden, add=forwarded)
            with self.pool.mark_busy(target.sandbox_id, upstream):
                await exchange.run(request, upstream)
            return
        receipt_headers: Headers = (
            [(RECEIPTS, b"1")]
            if scope["path"] in _RESUMABLE_STREAMS and DELIVERY in scope.get("extensions", {})
            else []
        )
        request = build_request(scope, keep_alive=True, drop=hidden, add=receipt_headers)
        upstream = self.pool.take(target.sandbox_id) or await self._dial(target)
        with self.pool.mark_busy(target.sandbox_id, upstream):
            try:
                usable = await exchange.run(request, upstream)
            except StaleConnectionError:
                upstream = await self._dial(target)
                with self.pool.mark_busy(target.sandbox_id, upstream):
                    usable = await exchange.run(request, upstream)
        if usable:
            self.pool.give(target.sandbox_id, upstream)

    def _choose_hidden_headers(self, target: Target, scope: Scope) -> frozenset[bytes]:
        """Return the names of the client's headers that are not forwarded, because programs in the sandbox could read
        credentials in them."""
        values = [value for name, value in scope["headers"] if name == _AUTHORIZATION]
        if target.port == AGENT_PORT:
            hidden, has_secret = _HIDDEN_FROM_AGENT, not all(_split_scheme(value)[0] == "basic" for value in values)
        else:
            hidden, has_secret = _HIDDEN_FROM_SERVERS, any(self._has_api_key(value) for value in values)
        return hidden | {_AUTHORIZATION} if has_secret else hidden

    def _has_api_key(self, authorization: bytes) -> bool:
        scheme, credential = _split_scheme(authorization)
        return scheme == "bearer" and self._is_api_key(credential)

    def _explain_missing_language(self, sandbox: Sandbox, send: Send) -> Send:
        """Forward the response. If it rejects a language that the engine can add, replace its message with the engine's."""
        replaced: Message | None = None
        body = b""

        async def send_or_replace(message: Message) -> None:
            nonlocal replaced, body
            if message["type"] == "http.response.start" and message["status"] == 400:
                language = get_header(message["headers"], MISSING_LANGUAGE)
                explanation = self.add_language(sandbox.alias, language) if language is not None else None
                if explanation is not None:
                    replaced, body = message, explanation.encode()
                    return
            if replaced is None:
                await send(message)
            elif not message.get("more_body", False):
                dropped = (MISSING_LANGUAGE, b"content-length", b"transfer-encoding")
                kept = [pair for pair in replaced["headers"] if pair[0] not in dropped]
                await send({**replaced, "headers": [*kept, (b"content-length", b"%d" % len(body))]})
                await send({"type": "http.response.body", "body": body})

        return send_or_replace

    async def _dial(self, target: Target, server_name: str | None = None) -> Upstream:
        sock = await self._sandboxes.dial(target.sandbox_id, target.port)
        upstream = await Upstream.open(sock, server_name)
        if self._is_gone(target):
            upstream.abort()
            raise UnreachableError("The sandbox was not found")
        return upstream

    def _is_gone(self, target: Target) -> bool:
        """Return whether the sandbox was paused or ended while it was dialled, so that nothing will close the new
        connection."""
        sandbox = self._sandboxes.find(target.sandbox_id)
        return sandbox is None or not sandbox.running

    def _on_interrupted(self, sandbox_id: str, reason: str) -> None:
        self.pool.drop(sandbox_id)
        if reason != "paused":
            self._signatures.forget(sandbox_id)

    def _explain_unreachable(self, target: Target) -> Page:
        """Return why the sandbox cannot be reached, based on its current state."""
        sandbox = self._sandboxes.find(target.sandbox_id)
        return pages.port_closed(target) if sandbox is not None and sandbox.running else pages.not_found(target)


_AUTHORIZATION, _API_KEY = b"authorization", b"x-api-key"
_HIDDEN_FROM_AGENT = frozenset((ACCESS_TOKEN, TRAFFIC_TOKEN, _API_KEY, b"cookie", RECEIPTS))
"""The agent uses `Authorization` too, but only to name a user."""
_RESUMABLE_STREAMS = frozenset(("/process.Process/Start", "/process.Process/Connect"))
"""Streams that a client can reconnect to; it then gets what did not arrive."""
_HIDDEN_FROM_SERVERS = frozenset((ACCESS_TOKEN, TRAFFIC_TOKEN, _API_KEY, *REPLACED))


def _split_scheme(authorization: bytes) -> tuple[str, str]:
    """Return the scheme of an `Authorization` header, in lower case, and its credential."""
    scheme, _, credential = authorization.decode("latin-1").strip().partition(" ")
    return scheme.lower(), credential.strip()


async def _answer_preflight(scope: Scope, send: Send) -> None:
    """Answer a CORS preflight: all requests are allowed, and the tokens decide about the rest."""
    headers: Headers = [*pages.CORS, (b"access-control-allow-methods", b"*"), (b"access-control-max-age", b"7200")]
    if (requested := get_header(scope["headers"], PREFLIGHT_HEADERS)) is not None:
        headers.append((b"access-control-allow-headers", requested.encode("latin-1")))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
