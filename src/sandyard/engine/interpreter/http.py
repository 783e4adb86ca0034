"""A minimal HTTP/1.1 server for the interpreter: small JSON requests, JSON or streamed line responses, and detection of
clients that disconnect."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeVar

MAX_HEAD = 64 << 10
MAX_BODY = 256 << 20
CORS = "access-control-allow-origin: *\r\naccess-control-allow-methods: *\r\naccess-control-allow-headers: *\r\n"


MISSING_LANGUAGE = "x-missing-language"
"""Header of an error response that tells the engine which kernel it could add to the template."""


class BadRequestError(Exception):
    """The request is answered with this message and status. `language`: see MISSING_LANGUAGE."""

    def __init__(self, message: str, status: int = 400, *, language: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.language = language


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    body: bytes

    def parse_json(self) -> dict[str, Any]:
        """Return the body as an object; an empty body is an empty object. Raises BadRequestError."""
        try:
            value = json.loads(self.body or b"{}")
        except ValueError as error:
            raise BadRequestError(f"The body is not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise BadRequestError("The body is not a JSON object.")
        return value


@dataclass(frozen=True, slots=True)
class Response:
    """A response. `content` is text, or a value that is written as JSON."""

    status: int
    content: Any = None
    text: bool = False
    language: str | None = None  # see MISSING_LANGUAGE


T = TypeVar("T")
JsonLines = AsyncGenerator[dict[str, Any], None]
Handler = Callable[[Request], Coroutine[Any, Any, Response | JsonLines]]


async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handle: Handler) -> None:
    """Handle one request and close the connection. A connection that ends earlier means that the client is gone."""
    try:
        request = await _read_request(reader, writer)
        response = await _run_unless_gone(reader, handle(request))
        if isinstance(response, Response):
            _write_response(writer, response)
        else:
            await _stream_lines(reader, writer, response)
        await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ClientGoneError):
        pass
    except BadRequestError as error:
        with contextlib.suppress(ConnectionError):
            _write_response(writer, Response(error.status, str(error), text=True, language=error.language))
            await writer.drain()
    finally:
        writer.close()


class ClientGoneError(Exception):
    """The client has closed its connection."""


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise BadRequestError("The request is not HTTP/1.1.")
    headers = {}
    for line in filter(None, lines):
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Request(words[0], words[1].partition("?")[0], await _read_body(reader, headers))


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", "").lower():
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > MAX_BODY:
            raise BadRequestError(f"The body may have at most {MAX_BODY >> 20} MiB.", 413)
        return await reader.readexactly(int(length))
    chunks: list[bytes] = []
    total = 0
    while True:
        try:
            size = int((await reader.readline()).partition(b";")[0], 16)
        except ValueError as error:
            raise BadRequestError("The body's chunked encoding is not valid.") from error
        total += size
        if total > MAX_BODY or size < 0:
            raise BadRequestError(f"The body may have at most {MAX_BODY >> 20} MiB.", 413)
        if size == 0:
            while (await reader.readline()).strip():
                pass
            return b"".join(chunks)
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)


def _write_response(writer: asyncio.StreamWriter, response: Response) -> None:
    body = b"" if response.status == 204 else _encode_content(response)
    kind = "text/plain; charset=utf-8" if response.text else "application/json"
    language_header = f"{MISSING_LANGUAGE}: {response.language}\r\n" if response.language else ""
    writer.write(_make_head(response.status, kind, f"{language_header}content-length: {len(body)}") + body)


def _encode_content(response: Response) -> bytes:
    return str(response.content).encode() if response.text else _encode_json(response.content)


async def _stream_lines(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lines: JsonLines) -> None:
    """Send one JSON object per line as they arrive. Stops if the client disconnects."""
    async with contextlib.aclosing(lines):
        # a failure before the first line can still be reported with a status
        line = await _run_unless_gone(reader, anext(lines, None))
        writer.write(_make_head(200, "application/x-ndjson", "transfer-encoding: chunked"))
        while line is not None:
            data = _encode_json(line) + b"\n"
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
            line = await _run_unless_gone(reader, anext(lines, None))
        writer.write(b"0\r\n\r\n")


async def _run_unless_gone(reader: asyncio.StreamReader, work: Awaitable[T]) -> T:
    """Return the work's result. If the client closes its connection first, cancel the work and raise ClientGoneError."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(reader.read())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        for unfinished in (gone, task):
            if not unfinished.done():
                unfinished.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await unfinished


def _make_head(status: int, kind: str, framing: str) -> bytes:
    phrase = HTTPStatus(status).phrase
    return (
        f"HTTP/1.1 {status} {phrase}\r\ncontent-type: {kind}\r\n{CORS}{framing}\r\nconnection: close\r\n\r\n".encode()
    )


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
