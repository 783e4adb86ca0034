"""The part of HTTP/1.1 that clients of models use. Only the standard library, so that it also runs in a sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.models.requests import Call


async def read_call(reader: asyncio.StreamReader) -> Call | None:
    """Read the next request. None: the connection has no further request."""
    line = (await reader.readline()).decode("latin-1").strip()
    if not line:
        return None
    method, target, _ = line.split(" ", 2)
    headers: dict[str, str] = {}
    while header := (await reader.readline()).decode("latin-1").strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    parts = urlsplit(target)
    raw = await _body(reader, headers)
    try:
        body: Any = json.loads(raw) if raw else None
    except ValueError:
        body = raw.decode(errors="replace")
    return Call(method, parts.path, dict(parse_qsl(parts.query)), headers, body)


async def _body(reader: asyncio.StreamReader, headers: Mapping[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() != "chunked":
        return await reader.readexactly(int(headers.get("content-length", 0)))
    whole = bytearray()
    while size := int((await reader.readline()).split(b";")[0], 16):
        whole += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return bytes(whole)


class Reply:
    """One answer on a connection: either `send`, or `start_stream`, `send_chunk`… and `end_stream`."""

    def __init__(self, writer: asyncio.StreamWriter, call: Call) -> None:
        self._writer = writer
        self._call = call

    async def send(self, status: int, body: Any, **headers: str) -> None:
        data = json.dumps(body).encode()
        self._head(status, {"content-type": "application/json", "content-length": str(len(data)), **headers})
        self._writer.write(data)
        await self._writer.drain()

    async def start_stream(self) -> None:
        self._head(
            200, {"content-type": "text/event-stream", "cache-control": "no-cache", "transfer-encoding": "chunked"}
        )
        await self._writer.drain()

    async def send_chunk(self, data: bytes) -> None:
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end_stream(self) -> None:
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Abort the connection. Data that is not sent yet is lost."""
        self._writer.transport.abort()

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        self._call.status = status
        lines = [f"HTTP/1.1 {status} {_phrase(status)}", *(f"{name}: {value}" for name, value in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
