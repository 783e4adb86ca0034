"""Bridge from standard input and output to a server's /mcp. It forwards tools without knowing them."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import anyio
import httpx2
import mcp_types as wire
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from sandyard import __version__

R = TypeVar("R", bound=BaseModel)
PROTOCOL_VERSION = "2026-07-28"
"""A protocol version without a handshake: requests are independent, so the server may restart between two of them."""
RESPONSE_SECONDS = 900.0
"""Longer than any tool waits. While a tool waits, the server sends progress now and then."""


def serve(url: str, token: str) -> None:
    """Serve until standard input ends."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)
    anyio.run(_serve, url, token)


async def _serve(url: str, token: str) -> None:
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=httpx2.Timeout(30, read=RESPONSE_SECONDS)) as http:
        bridge = Bridge(url, http)
        server: Server[Any] = Server(
            "sandyard",
            version=__version__,
            instructions=await bridge.get_instructions(),
            on_list_tools=bridge.list_tools,
            on_call_tool=bridge.call_tool,
        )
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


class Bridge:
    """Forwards requests to the MCP endpoint at `url`."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url, self._http = url, http

    async def get_instructions(self) -> str | None:
        return (
            await self._send_request(wire.DiscoverRequest(params=wire.RequestParams()), wire.DiscoverResult)
        ).instructions

    async def list_tools(
        self, _: ServerRequestContext[Any], params: wire.PaginatedRequestParams | None
    ) -> wire.ListToolsResult:
        cursor = None if params is None else params.cursor
        return await self._send_request(
            wire.ListToolsRequest(params=wire.PaginatedRequestParams(cursor=cursor)), wire.ListToolsResult
        )

    async def call_tool(
        self, context: ServerRequestContext[Any], params: wire.CallToolRequestParams
    ) -> wire.CallToolResult:
        """Call a tool. Progress and cancellation are forwarded."""
        forwarded = wire.CallToolRequestParams(name=params.name, arguments=params.arguments)
        return await self._send_request(
            wire.CallToolRequest(params=forwarded), wire.CallToolResult, progress=context.session.report_progress
        )

    async def _send_request(
        self, request: wire.Request[Any, Any], result_type: type[R], progress: ProgressFnT | None = None
    ) -> R:
        """Send a request with its own client, so that a broken connection affects only one request."""
        transport = streamable_http_client(self._url, http_client=self._http, max_sse_event_size=None)
        try:
            async with Client(transport, mode=PROTOCOL_VERSION, cache=None) as server:
                try:
                    return await server.session.send_request(request, result_type, progress_callback=progress)
                except MCPError as error:
                    failure = error  # raising it here would wrap it in an exception group
        except BaseExceptionGroup as group:
            if group.subgroup(httpx2.HTTPError) is None:
                raise
            failure = MCPError(
                code=wire.INTERNAL_ERROR, message=f"The server at {self._url} is not responding. Try again."
            )
        raise failure
