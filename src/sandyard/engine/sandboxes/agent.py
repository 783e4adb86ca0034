"""The engine's own client for one sandbox's agent: send it its settings, run commands in the sandbox and
write files to it.

The agent runs next to hostile code: everything it sends is read with size limits, and is trusted only as far as it
affects its own sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import socket
import struct
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode

import httptools

from sandyard.engine.contract import AGENT_PORT, Handle
from sandyard.engine.sandboxes.calls import DriverCalls
from sandyard.engine.sandboxes.model import Defaults
from sandyard.kit import bounded_json
from sandyard.kit.errors import NoSpaceError, UnreachableError
from sandyard.kit.pacing import count_turns_for, take_turn

OnOutput = Callable[[str, bytes], None]
"""Called with the stream ("stdout" or "stderr") and the data written to it, as it arrives."""

_ENVELOPE = struct.Struct(">BI")
_END_FLAG = 2
_MAX_MESSAGE_BYTES, _MAX_MESSAGE_VALUES = 4 << 20, 1000
_MAX_ANSWER_BYTES = 64 << 10
_MAX_BYTES_WITHOUT_OUTPUT = 64 << 10  # bytes that may arrive without any output in them
_READ_BYTES = 64 << 10
_MAX_LINES = 512  # maximum number of lines per chunk of output
_NO_ENV: Mapping[str, str] = MappingProxyType({})


class Agent:
    """Client for a sandbox's agent. Raises UnreachableError if the agent misbehaves or the sandbox ends."""

    def __init__(self, calls: DriverCalls, handle: Handle) -> None:
        self._calls = calls
        self._handle = handle

    async def run(
        self,
        command: str,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] = _NO_ENV,
        timeout_s: float | None = None,
        output: OnOutput | None = None,
    ) -> int:
        """Run a shell command to completion and return its exit code, or -1 if a signal ended it. Omitted arguments use
        the sandbox's defaults. Raises TimeoutError and kills the command if it does not end within `timeout_s`
        seconds."""
        events = self._start(command, user, cwd, env, timeout_s)
        async with asyncio.timeout(timeout_s), aclosing(events):
            async for event in events:
                data, end = event.get("data"), event.get("end")
                if isinstance(data, dict) and output is not None:
                    with count_turns_for(self._handle.id):
                        for stream, piece in split_output(data):
                            await take_turn()
                            output(stream, piece)
                elif isinstance(end, dict):
                    return _parse_exit_code(end)
        raise UnreachableError(f"Sandbox {self._handle.id} did not report how a command ended.")

    async def spawn(
        self, command: str, *, user: str | None = None, cwd: str | None = None, env: Mapping[str, str] = _NO_ENV
    ) -> int:
        """Start a shell command in the background and return its pid."""
        events = self._start(command, user, cwd, env, None)
        async with aclosing(events):
            async for event in events:
                start = event.get("start")
                if isinstance(start, dict) and isinstance(start.get("pid"), int):
                    return int(start["pid"])
        raise UnreachableError(f"Sandbox {self._handle.id} did not start a command.")

    async def write(self, path: str, data: bytes | AsyncIterator[bytes], *, user: str | None = None) -> None:
        """Write a complete file. Raises NoSpaceError if the sandbox's disk is full."""
        query = {"path": path} if user is None else {"path": path, "username": user}
        headers = {"Content-Type": "application/octet-stream"}
        body = b""
        async with _Exchange(await self._connect()) as exchange:
            if isinstance(data, bytes):
                await exchange.send(f"/files?{urlencode(query)}", headers, data)
            else:
                await exchange.send_chunks(f"/files?{urlencode(query)}", headers, data)
            async for piece in exchange.read_body():
                body += piece[: _MAX_ANSWER_BYTES - len(body)]
            if exchange.status == NoSpaceError.status:
                raise NoSpaceError("The sandbox's disk is full.")
            if exchange.status != 200:
                answer = body.decode(errors="replace")[:500]
                raise UnreachableError(f"The sandbox did not accept the file {path}: {exchange.status} {answer}")

    async def _connect(self) -> socket.socket:
        return await self._calls.run("connect", self._handle.id, self._calls.driver.connect(self._handle, AGENT_PORT))

    async def _start(
        self, command: str, user: str | None, cwd: str | None, env: Mapping[str, str], timeout_s: float | None
    ) -> AsyncGenerator[dict[str, Any], None]:
        process = {"cmd": "/bin/bash", "args": ["-l", "-c", command], "envs": dict(env)}
        if cwd is not None:
            process["cwd"] = cwd
        message = json.dumps({"process": process, "stdin": False}).encode()
        headers = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
        if user is not None:
            headers["Authorization"] = f"Basic {base64.b64encode(f'{user}:'.encode()).decode()}"
        if timeout_s is not None:
            headers["Connect-Timeout-Ms"] = str(max(1, int(timeout_s * 1000)))
        async with _Exchange(await self._connect()) as exchange:
            await exchange.send("/process.Process/Start", headers, _ENVELOPE.pack(0, len(message)) + message)
            async for flags, content in read_envelopes(exchange.read_body()):
                if flags & _END_FLAG:
                    _raise_if_failed(content)
                    return
                event = content.get("event")
                if isinstance(event, dict):
                    yield event


class _Exchange:
    """One request and its response on a separate connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: list[bytes] = []
        self._complete = False
        self.status = 0

    async def __aenter__(self) -> _Exchange:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connection.close()

    async def send(self, path: str, headers: Mapping[str, str], content: bytes) -> None:
        await self._send(_make_head(path, {**headers, "Content-Length": str(len(content))}) + content)

    async def send_chunks(self, path: str, headers: Mapping[str, str], content: AsyncIterator[bytes]) -> None:
        await self._send(_make_head(path, {**headers, "Transfer-Encoding": "chunked"}))
        async for piece in content:
            if piece:
                await self._send(b"%x\r\n%b\r\n" % (len(piece), piece))
        await self._send(b"0\r\n\r\n")

    async def _send(self, data: bytes) -> None:
        try:
            await self._loop.sock_sendall(self._connection, data)
        except OSError as error:
            raise UnreachableError(f"The sandbox's agent does not accept the request: {error}.") from error

    async def read_body(self) -> AsyncIterator[bytes]:
        """Yield the response body as it arrives. `status` is set before the first chunk, and at the latest at the
        end."""
        bytes_without_output = 0
        while not self._complete:
            try:
                received = await self._loop.sock_recv(self._connection, _READ_BYTES)
            except OSError as error:
                raise UnreachableError(f"The connection to the sandbox's agent was lost: {error}.") from error
            if not received:
                raise UnreachableError("The sandbox's agent closed the connection before its response was complete.")
            bytes_without_output += len(received)
            try:
                self._parser.feed_data(received)
            except httptools.HttpParserError as error:
                raise UnreachableError(f"The sandbox's agent sent an invalid HTTP response: {error}.") from error
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                bytes_without_output = 0
                yield piece
            if bytes_without_output > _MAX_BYTES_WITHOUT_OUTPUT:
                raise UnreachableError("The sandbox's agent sent too many response headers.")

    # httptools callbacks

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._complete = True


def _make_head(path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: sandbox", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "Connection: close", "", ""]).encode("ascii")


async def read_envelopes(body: AsyncIterator[bytes]) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """Yield the messages of the Connect protocol until the body ends."""
    buffer = b""
    async for piece in body:
        buffer += piece
        while len(buffer) >= _ENVELOPE.size:
            flags, size = _ENVELOPE.unpack_from(buffer)
            if size > _MAX_MESSAGE_BYTES:
                raise UnreachableError("The sandbox's agent sent a message that is too large.")
            if len(buffer) < _ENVELOPE.size + size:
                break
            text, buffer = buffer[_ENVELOPE.size : _ENVELOPE.size + size], buffer[_ENVELOPE.size + size :]
            try:
                message = bounded_json.parse(text, largest=_MAX_MESSAGE_BYTES, values=_MAX_MESSAGE_VALUES)
            except ValueError as error:
                raise UnreachableError("The sandbox's agent sent a message that is not valid JSON.") from error
            yield flags, message if isinstance(message, dict) else {}


def _raise_if_failed(end: Mapping[str, Any]) -> None:
    """Raise the error in the last message of a stream, if there is one."""
    error = end.get("error")
    if not isinstance(error, dict):
        return
    if error.get("code") == "deadline_exceeded":
        raise TimeoutError
    raise UnreachableError(f"The sandbox could not run a command: {str(error.get('message'))[:500]}")


def split_output(data: Mapping[str, Any]) -> Iterator[tuple[str, bytes]]:
    """Yield a command's output by stream, in chunks of a few lines: readers pay for each line, however short it is."""
    for stream in ("stdout", "stderr"):
        text = data.get(stream)
        if isinstance(text, str):
            try:
                written = base64.b64decode(text)
            except binascii.Error as error:
                raise UnreachableError("The sandbox's agent sent output that cannot be decoded.") from error
            size = len(written) if written.count(b"\n") <= _MAX_LINES else _MAX_LINES
            for position in range(0, len(written), max(size, 1)):
                yield stream, written[position : position + size]


def _parse_exit_code(end: Mapping[str, Any]) -> int:
    code = end.get("exitCode", 0)
    return code if isinstance(code, int) else -1


async def send_identity(
    calls: DriverCalls, handle: Handle, template_id: str, env: Mapping[str, str], defaults: Defaults
) -> None:
    """Send the agent of a new sandbox its identity, environment variables, user and working directory. Raises
    UnreachableError if the agent does not respond in time."""
    identity = {"E2B_SANDBOX_ID": handle.id, "E2B_TEMPLATE_ID": template_id}
    connection = await calls.run("connect", handle.id, calls.driver.connect(handle, AGENT_PORT))
    # A fork with memory continues any program that has replaced the agent.
    await calls.run_with_agent("init", handle.id, send_settings(connection, {**identity, **env}, defaults))


async def send_settings(connection: socket.socket, env: Mapping[str, str], defaults: Defaults) -> None:
    """Send `POST /init` on a connected socket and close it. Raises UnreachableError if the agent does not accept it."""
    body = {"envVars": dict(env), "defaultUser": defaults.user}
    if defaults.workdir is not None:
        body["defaultWorkdir"] = defaults.workdir
    content = json.dumps(body).encode()
    head = (
        "POST /init HTTP/1.1\r\nHost: sandbox\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with connection:
        try:
            await loop.sock_sendall(connection, head.encode("ascii") + content)
            status = await _read_status(connection)
        except OSError as error:
            raise UnreachableError(f"Could not send the agent its settings: {error}.") from error
    if not 200 <= status < 300:
        raise UnreachableError(f"The agent rejected its settings with status {status}.")


async def _read_status(connection: socket.socket) -> int:
    loop = asyncio.get_running_loop()
    answer = b""
    while b"\r\n\r\n" not in answer:
        received = await loop.sock_recv(connection, 4096)
        answer += received
        if not received or len(answer) > _MAX_ANSWER_BYTES:
            break
    fields = answer.split(b"\r\n", 1)[0].split(b" ")
    if len(fields) < 2 or not fields[0].startswith(b"HTTP/1.") or not fields[1].isdigit():
        raise UnreachableError("The agent sent no valid HTTP response to its settings.")
    return int(fields[1])
