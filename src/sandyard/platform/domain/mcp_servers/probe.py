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
from sandyard.kit.text import storable
from sandyard.platform.domain.mcp_servers.error_messages import explain_error, explain_response
from sandyard.platform.domain.mcp_servers.model import Probe
from sandyard.platform.domain.models.redaction import Redactor, redactor_of_headers

VERSION = "2025-06-18"
"""The protocol version offered. A server that uses another version says so, and that version is used."""
WHOLE_S = 30.0
END_S = 5.0
"""How long the server may take to end the test's session."""
MAX_TOOLS, MAX_PAGES = 500, 10
_MOST, _VALUES = 4 << 20, 50_000
_LONGEST = 600
_SESSION, _VERSION = "mcp-session-id", "mcp-protocol-version"
_HEADER_VALUE = re.compile(r"[!-~]{1,1000}")
_ID = re.compile(rb'"id"')


class _Failed(Exception):  # noqa: N818 - an answer, no error of ours
    """The test failed, with a message for people."""


async def probe(client: httpx.AsyncClient, name: str, url: str, headers: Mapping[str, Secret]) -> Probe:
    began = time.monotonic()
    redactor = redactor_of_headers(headers.values())
    conversation = _Conversation(client, name, url, headers, redactor)
    try:
        async with asyncio.timeout(WHOLE_S):
            server, tools = await conversation.run()
        ok, detail = True, f"{name} works: {_count(tools)}."
    except _Failed as failed:
        ok, detail, server, tools = False, str(failed), None, []
    except TimeoutError:
        ok, detail, server, tools = False, f"{name} did not respond within {WHOLE_S:.0f} s.", None, []
    except (httpx.HTTPError, httpx.InvalidURL, SandyardError) as error:
        ok, detail, server, tools = False, explain_error(name, url, error), None, []
    duration_ms = round((time.monotonic() - began) * 1000)
    await conversation.end()
    shown = [redactor.text(storable(tool))[:200] for tool in tools]
    return Probe(
        ok,
        redactor.text(storable(detail))[:_LONGEST],
        duration_ms,
        None if server is None else redactor.text(storable(server))[:200],
        tuple(shown),
    )


def _count(tools: list[str]) -> str:
    return f"{len(tools)} tool{'' if len(tools) == 1 else 's'}"


class _Conversation:
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
        self._keyed = bool(headers)
        self._redactor = redactor
        self._number = 0

    async def run(self) -> tuple[str | None, list[str]]:
        """Return the server's own name and the names of its tools."""
        greeting = await self._ask(
            "initialize",
            {
                "protocolVersion": VERSION,
                "capabilities": {},
                "clientInfo": {"name": "sandyard", "version": __version__},
            },
        )
        self._headers[_VERSION] = self._checked("protocol version", greeting.get("protocolVersion") or VERSION)
        await self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return _server_name(greeting.get("serverInfo")), await self._tools(greeting)

    async def end(self) -> None:
        """End the server's session, if there is one. Ignores the response."""
        if _SESSION not in self._headers:
            return
        with contextlib.suppress(httpx.HTTPError, SandyardError, TimeoutError):
            async with asyncio.timeout(END_S), self._client.stream("DELETE", self._url, headers=self._headers):
                pass

    async def _tools(self, greeting: dict[str, Any]) -> list[str]:
        offered = greeting.get("capabilities")
        if not isinstance(offered, dict) or "tools" not in offered:
            return []
        found: list[str] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await self._ask("tools/list", {} if cursor is None else {"cursor": cursor})
            listed = page.get("tools")
            if not isinstance(listed, list):
                raise _Failed(f"{self._name} did not return a list of tools.")
            names = [one.get("name") for one in listed if isinstance(one, dict)]
            found += [name for name in names if isinstance(name, str)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    async def _ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        number = self._number
        answer = await self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, number)
        if answer is None:
            raise _Failed(f"{self._name} responds, but not like an MCP server. Check that the URL is its MCP endpoint.")
        if isinstance(error := answer.get("error"), dict):
            message = self._redactor.text(str(error.get("message")))[:300]
            raise _Failed(f"{self._name} rejected {method}: {message}")
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    async def _send(self, message: dict[str, Any], number: int | None = None) -> dict[str, Any] | None:
        async with self._client.stream("POST", self._url, json=message, headers=self._headers) as response:
            refused = explain_response(self._name, response, keyed=self._keyed, redactor=self._redactor)
            if refused is not None:
                raise _Failed(refused)
            if session := response.headers.get(_SESSION):
                self._headers[_SESSION] = self._checked("session id", session)
            if number is None:
                return None
            return await _read_answer(response, number)

    def _checked(self, what: str, value: object) -> str:
        """Check a value that the server wants sent back in a header."""
        if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
            raise _Failed(f"{self._name} sent an invalid {what}: it must be ASCII without spaces.")
        return value


async def _read_answer(response: httpx.Response, number: int) -> dict[str, Any] | None:
    """Return the message with this id from JSON or an event stream."""
    streamed = response.headers.get("content-type", "").partition(";")[0].strip() == "text/event-stream"
    events, whole, size = EventStream(_ID, largest=_MOST), bytearray(), 0
    async for chunk in response.aiter_bytes():
        await take_turn()
        size += len(chunk)
        if size > _MOST:
            return None
        if not streamed:
            whole += chunk
            continue
        for data in events.feed(chunk):
            await take_turn()
            if (told := _message(data, number)) is not None:
                return told
    if not streamed:
        return _message(bytes(whole), number)
    return next((told for data in events.rest() if (told := _message(data, number)) is not None), None)


def _message(data: bytes, number: int) -> dict[str, Any] | None:
    try:
        told: Any = bounded_json.parse(data, largest=_MOST, values=_VALUES)
    except ValueError:
        return None
    return told if isinstance(told, dict) and told.get("id") == number else None


def _server_name(server: Any) -> str | None:
    if not isinstance(server, dict) or not isinstance(server.get("name"), str):
        return None
    return " ".join(str(server[key]) for key in ("name", "version") if isinstance(server.get(key), str))
