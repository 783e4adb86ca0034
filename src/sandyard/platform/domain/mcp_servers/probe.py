"""Test an MCP server: initialize it and list its tools, over streamable HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Mapping
from typing import Any

import httpx

from sandyard import __version__
from sandyard.kit import bounded_json
from sandyard.kit.errors import SandyardError
from sandyard.kit.event_stream import EventStream
from sandyard.kit.pacing import take_turn
from sandyard.kit.secret import Secret
from sandyard.kit.text import make_storable
from sandyard.platform.domain.mcp_servers.error_messages import explain_error, explain_response
from sandyard.platform.domain.mcp_servers.model import McpTestResult
from sandyard.platform.domain.models.redaction import Redactor, make_header_redactor

VERSION = "2025-06-18"
"""The protocol version offered. A server that uses another version says so, and that version is used."""
TIMEOUT_S = 30.0
END_TIMEOUT_S = 5.0
"""How long the server may take to end the test's session."""
MAX_TOOLS, MAX_PAGES = 500, 10
_MAX_BYTES, _MAX_VALUES = 4 << 20, 50_000
_MAX_DETAIL_LENGTH = 600
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_HEADER_VALUE = re.compile(r"[!-~]{1,1000}")
_ID = re.compile(rb'"id"')


class _CheckFailed(Exception):  # noqa: N818 - a result, not an error of the platform
    """The test failed, with a message for people."""


async def check_server(client: httpx.AsyncClient, name: str, url: str, headers: Mapping[str, Secret]) -> McpTestResult:
    """Connect to the server with these headers and list its tools. Never raises for errors of the server."""
    started = time.monotonic()
    redactor = make_header_redactor(headers.values())
    conversation = _Conversation(client, name, url, headers, redactor)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            server, tools = await conversation.run()
        ok, detail = True, f"{name} works: {_describe_count(tools)}."
    except _CheckFailed as failed:
        ok, detail, server, tools = False, str(failed), None, []
    except TimeoutError:
        ok, detail, server, tools = False, f"{name} did not respond within {TIMEOUT_S:.0f} s.", None, []
    except (httpx.HTTPError, httpx.InvalidURL, SandyardError) as error:
        ok, detail, server, tools = False, explain_error(name, url, error), None, []
    duration_ms = round((time.monotonic() - started) * 1000)
    await conversation.end()
    shown = [redactor.redact(make_storable(tool))[:200] for tool in tools]
    return McpTestResult(
        ok,
        redactor.redact(make_storable(detail))[:_MAX_DETAIL_LENGTH],
        duration_ms,
        None if server is None else redactor.redact(make_storable(server))[:200],
        tuple(shown),
    )


def _describe_count(tools: list[str]) -> str:
    return f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"


class _Conversation:
    """A connection to an MCP server for the length of one test."""

    def __init__(
        self, client: httpx.AsyncClient, name: str, url: str, headers: Mapping[str, Secret], redactor: Redactor
    ) -> None:
        self._client = client
        self._name = name
        self._url = url
        self._headers = {
            "accept": "application/json, text/event-stream",
            "accept-encoding": "identity",
            **{name: value.reveal() for name, value in headers.items()},
        }
        self._has_headers = bool(headers)
        self._redactor = redactor
        self._last_id = 0

    async def run(self) -> tuple[str | None, list[str]]:
        """Return the server's own name and the names of its tools."""
        server_info = await self._request(
            "initialize",
            {
                "protocolVersion": VERSION,
                "capabilities": {},
                "clientInfo": {"name": "sandyard", "version": __version__},
            },
        )
        self._headers[_VERSION] = self._check_header_value(
            "protocol version", server_info.get("protocolVersion") or VERSION
        )
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return _make_server_name(server_info.get("serverInfo")), await self._list_tools(server_info)

    async def end(self) -> None:
        """End the server's session, if there is one. Ignores the response."""
        if _SESSION not in self._headers:
            return
        with contextlib.suppress(httpx.HTTPError, SandyardError, TimeoutError):
            async with asyncio.timeout(END_TIMEOUT_S), self._client.stream("DELETE", self._url, headers=self._headers):
                pass

    async def _list_tools(self, server_info: dict[str, Any]) -> list[str]:
        capabilities = server_info.get("capabilities")
        if not isinstance(capabilities, dict) or "tools" not in capabilities:
            return []
        found: list[str] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._request("tools/list", {} if cursor is None else {"cursor": cursor})
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise _CheckFailed(f"{self._name} did not return a list of tools.")
            names = [tool.get("name") for tool in listed if isinstance(tool, dict)]
            found += [name for name in names if isinstance(name, str)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    async def _request(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._last_id += 1
        request_id = self._last_id
        response = await self._send(
            {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}, request_id
        )
        if response is None:
            raise _CheckFailed(
                f"{self._name} responds, but not like an MCP server. Check that the URL is its MCP endpoint."
            )
        if isinstance(error := response.get("error"), dict):
            message = self._redactor.redact(str(error.get("message")))[:300]
            raise _CheckFailed(f"{self._name} rejected {method}: {message}")
        result = response.get("result")
        return result if isinstance(result, dict) else {}

    async def _send(self, message: dict[str, Any], request_id: int | None = None) -> dict[str, Any] | None:
        async with self._client.stream("POST", self._url, json=message, headers=self._headers) as response:
            error = explain_response(self._name, response, has_headers=self._has_headers, redactor=self._redactor)
            if error is not None:
                raise _CheckFailed(error)
            if session := response.headers.get(_SESSION):
                self._headers[_SESSION] = self._check_header_value("session id", session)
            if request_id is None:
                return None
            return await _read_response(response, request_id)

    def _check_header_value(self, what: str, value: object) -> str:
        """Check a value that the server wants sent back in a header."""
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise _CheckFailed(f"{self._name} sent an invalid {what}: it must be ASCII without spaces.")
        return value


async def _read_response(response: httpx.Response, request_id: int) -> dict[str, Any] | None:
    """Return the message with this id from JSON or an event stream."""
    streamed = response.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"
    events, whole, size = EventStream(_ID, largest=_MAX_BYTES), bytearray(), 0
    async for chunk in response.aiter_bytes():
        await take_turn()
        size += len(chunk)
        if size > _MAX_BYTES:
            return None
        if not streamed:
            whole += chunk
            continue
        for data in events.feed(chunk):
            await take_turn()
            if (message := parse_message(data, request_id)) is not None:
                return message
    if not streamed:
        return parse_message(bytes(whole), request_id)
    return next((message for data in events.finish() if (message := parse_message(data, request_id)) is not None), None)


def parse_message(data: bytes, request_id: int) -> dict[str, Any] | None:
    try:
        message: Any = bounded_json.parse(data, largest=_MAX_BYTES, values=_MAX_VALUES)
    except ValueError:
        return None
    return message if isinstance(message, dict) and message.get("id") == request_id else None


def _make_server_name(server: Any) -> str | None:
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return None
    return " ".join(str(server[key]) for key in ("name", "version") if isinstance(server.get(key), str))
