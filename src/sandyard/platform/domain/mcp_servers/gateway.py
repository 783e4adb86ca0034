"""Proxy agents' requests to MCP servers: authenticate, add the server's headers, stream both ways."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

import httpx

from sandyard.kit.errors import SandyardError
from sandyard.kit.logging import get_logger
from sandyard.kit.pacing import take_turn
from sandyard.kit.secret import Secret
from sandyard.kit.tasks import TaskSet
from sandyard.platform.db.models import McpServer
from sandyard.platform.domain.mcp_servers.error_messages import explain_error, explain_response
from sandyard.platform.domain.mcp_servers.model import SERVER_FAILED, ServerType
from sandyard.platform.domain.mcp_servers.service import ID_PREFIX, McpServers
from sandyard.platform.domain.models import apis
from sandyard.platform.domain.models.capability import Capabilities
from sandyard.platform.domain.models.gateway import RequestOrigin
from sandyard.platform.domain.models.redaction import Redactor, make_header_redactor
from sandyard.platform.domain.models.tunnel import ResponseWriter, TunnelRequest

log = get_logger(__name__)

METHODS = ("POST", "GET", "DELETE")
_FORWARDED_HEADERS = frozenset(("accept", "content-type", "last-event-id", "user-agent"))
_STRIPPED_RESPONSE_HEADERS = frozenset(("www-authenticate",))
"""Headers that would make an agent ask for a login that is impossible in a sandbox."""
_MAX_REPORTED = 10_000
FailureHook = Callable[[str, str, str], Awaitable[None]]
"""Called with a turn id, an error code and a message."""


class _RequestRejected(Exception):  # noqa: N818 - a response, not an error of the platform
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class McpGateway:
    """Proxy for MCP servers. Settings are read for each request, so that changes take effect immediately.

    `failure_hooks` are called for servers that cannot be used, once per turn.
    """

    def __init__(
        self,
        servers: McpServers,
        capabilities: Capabilities,
    ) -> None:
        self.servers = servers
        self._capabilities = capabilities
        self._tasks = TaskSet("mcp")
        self._reported: set[tuple[str, str]] = set()
        self.failure_hooks: list[FailureHook] = []

    async def close(self) -> None:
        await self._tasks.wait(2)
        await self._tasks.cancel()
        await self.servers.close()

    def handles(self, target: str) -> bool:
        """Return whether a request in the tunnel is for an MCP server and not for a model."""
        return target.startswith(f"/{ID_PREFIX}")

    async def serve(self, origin: RequestOrigin, request: TunnelRequest, writer: ResponseWriter) -> None:
        """Serve a request. Always responds, unless cancelled."""
        try:
            row = await self._authorize(origin, request)
            await self._forward(origin, row, request, writer)
        except _RequestRejected as refused:
            error = {"code": -32000, "message": refused.message}
            body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
            headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
            await writer.send_head(refused.status, headers)
            await writer.send_data(b"" if request.method == "HEAD" else body)
            await writer.end()

    async def _authorize(self, origin: RequestOrigin, request: TunnelRequest) -> McpServer:
        target, _, query = request.target.partition("?")
        if not self._capabilities.is_valid(origin.sandbox_id, apis.list_capabilities(request.headers, "")):
            raise _RequestRejected(
                403, "Invalid token. Use the one that the platform has set for the agents in this sandbox."
            )
        row = await self.servers.find(target.strip("/"), origin.session_id)
        if row is None or row.type != ServerType.HTTP:
            raise _RequestRejected(404, "The project no longer has this MCP server.")
        if request.method not in METHODS:
            raise _RequestRejected(405, f"Method {request.method[:10]} is not allowed.")
        if query:
            raise _RequestRejected(400, "Query parameters are not allowed here.")
        if any(name == "content-encoding" and value != "identity" for name, value in request.headers):
            raise _RequestRejected(415, "Send the request uncompressed.")
        return row

    async def _forward(
        self, origin: RequestOrigin, row: McpServer, request: TunnelRequest, writer: ResponseWriter
    ) -> None:
        try:
            secrets = await self.servers.reveal(row)
        except SandyardError as error:
            log.error("mcp_headers_unreadable", server=row.id, reason=error.message)  # noqa: TRY400
            raise _RequestRejected(
                500, f"The headers of {row.name} cannot be decrypted. Ask an administrator."
            ) from None
        redactor = make_header_redactor(secrets.values())
        try:
            response = await self._send(row, request, secrets)
        except (httpx.HTTPError, httpx.InvalidURL, SandyardError) as error:
            message = redactor.redact(explain_error(row.name, row.url or "", error))
            log.warning("mcp_server_unreachable", server=row.id, reason=type(error).__name__)
            self._report_failure(origin, row, message)
            raise _RequestRejected(504 if isinstance(error, httpx.TimeoutException) else 502, message) from None
        try:
            complete = await self._stream_response(origin, row, response, writer, redactor, has_headers=bool(secrets))
        finally:
            await response.aclose()
        if complete:
            await writer.end()

    async def _stream_response(
        self,
        origin: RequestOrigin,
        row: McpServer,
        response: httpx.Response,
        writer: ResponseWriter,
        redactor: Redactor,
        *,
        has_headers: bool,
    ) -> bool:
        """Stream the response to the agent. Returns whether it is complete."""
        if response.status_code in (401, 403) or response.is_redirect:
            message = redactor.redact(
                explain_response(row.name, response, has_headers=has_headers, redactor=redactor) or ""
            )
            log.info("mcp_server_refused", server=row.id, status=response.status_code)
            self._report_failure(origin, row, message)
            raise _RequestRejected(502 if response.is_redirect else 403, message)
        headers = redactor.redact_headers(response.headers.items())
        kept = [header for header in headers if header[0].lower() not in _STRIPPED_RESPONSE_HEADERS]
        await writer.send_head(
            response.status_code, apis.filter_response_headers(kept, decoded="content-encoding" in response.headers)
        )
        try:
            async for chunk in response.aiter_bytes():
                await take_turn()
                await writer.send_data(redactor.feed(chunk))
            await writer.send_data(redactor.flush())
        except httpx.ReadTimeout:
            # an idle stream ends, and the client reopens it if needed
            return response.request.method == "GET"
        except httpx.HTTPError as error:
            log.warning("mcp_answer_broken", server=row.id, reason=type(error).__name__)
            return False
        return True

    async def _send(self, row: McpServer, request: TunnelRequest, secrets: Mapping[str, Secret]) -> httpx.Response:
        client = self.servers.get_client(row)
        configured = {name.lower() for name in secrets}
        headers = [
            *((name, value) for name, value in request.headers if _is_forwarded(name) and name not in configured),
            ("accept-encoding", "identity"),
            *([("content-length", str(len(request.body)))] if request.body else []),
            *((name, value.reveal()) for name, value in secrets.items()),
        ]
        upstream_request = client.build_request(
            request.method,
            row.url or "",
            headers=[
                (name.encode("latin-1", "replace"), value.encode("latin-1", "replace")) for name, value in headers
            ],
            content=request.stream_body() if request.body else None,
        )
        response = await client.send(upstream_request, stream=True)
        request.drop_body()
        return response

    def _report_failure(self, origin: RequestOrigin, row: McpServer, message: str) -> None:
        turn_id = origin.get_turn_id()
        if turn_id is None or (turn_id, row.id) in self._reported:
            return
        if len(self._reported) > _MAX_REPORTED:
            self._reported.clear()
        self._reported.add((turn_id, row.id))
        for hook in self.failure_hooks:
            self._tasks.spawn(_call_hook(hook, turn_id, message))


def _is_forwarded(name: str) -> bool:
    return name in _FORWARDED_HEADERS or name.startswith("mcp-")


async def _call_hook(hook: FailureHook, turn_id: str, message: str) -> None:
    try:
        await hook(turn_id, SERVER_FAILED, message)
    except SandyardError as error:
        log.warning("mcp_failure_not_noted", turn=turn_id, reason=error.message)
