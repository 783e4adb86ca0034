"""A client of the guest agent, with only what these tests need: HTTP/1.1 over the socket that `driver.connect` returns."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from sandyard.engine.contract import AGENT_PORT, Driver, Handle

TIMEOUT = 60.0


@dataclass(frozen=True, slots=True)
class Output:
    code: int
    out: str
    err: str


class GuestAgent:
    """The guest agent of one sandbox."""

    def __init__(self, driver: Driver, handle: Handle) -> None:
        self.driver = driver
        self.handle = handle

    async def health(self) -> int:
        """Return the status of GET /health."""
        async with asyncio.timeout(TIMEOUT):
            status, _ = await self._request("GET", "/health", {}, b"")
        return status

    async def run(self, command: str, *, user: str = "root") -> Output:
        """Run a shell command and wait for its end."""
        out, err = b"", b""
        async with asyncio.timeout(TIMEOUT):
            async for event in self._start_process(command, user):
                out += base64.b64decode(event.get("data", {}).get("stdout", ""))
                err += base64.b64decode(event.get("data", {}).get("stderr", ""))
                if "end" in event:
                    return Output(_exit_code(event["end"]), out.decode(errors="replace"), err.decode(errors="replace"))
        raise AssertionError("the process never ended")

    async def start(self, command: str, *, user: str = "root") -> int:
        """Start a command, leave it running and return its pid inside the sandbox."""
        async with asyncio.timeout(TIMEOUT):
            async for event in self._start_process(command, user):
                if "start" in event:
                    return int(event["start"]["pid"])
        raise AssertionError("the process never started")

    async def read(self, path: str) -> str:
        result = await self.run(f"cat -- {path}")
        assert result.code == 0, result.err
        return result.out

    async def _start_process(self, command: str, user: str) -> AsyncIterator[dict[str, Any]]:
        message = json.dumps({"process": {"cmd": "/bin/sh", "args": ["-c", command], "cwd": "/"}}).encode()
        body = struct.pack(">BI", 0, len(message)) + message
        headers = {
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
            "Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode(),
        }
        sock = await self.driver.connect(self.handle, AGENT_PORT)
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            writer.write(_build_request("POST", "/process.Process/Start", headers, body))
            status, fields = await _read_head(reader)
            assert status == 200, status
            stream = _Body(reader, fields)
            while True:
                flags, size = struct.unpack(">BI", await stream.read_exactly(5))
                event = json.loads(await stream.read_exactly(size))
                if flags & 2:
                    assert "error" not in event, event
                    return
                yield event["event"]
        finally:
            writer.close()

    async def _request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        sock = await self.driver.connect(self.handle, AGENT_PORT)
        reader, writer = await asyncio.open_connection(sock=sock)
        try:
            writer.write(_build_request(method, path, headers, body))
            status, _ = await _read_head(reader)
            return status, await reader.read()
        finally:
            writer.close()


class _Body:
    """The body of a response, chunked or not."""

    def __init__(self, reader: asyncio.StreamReader, fields: dict[str, str]) -> None:
        self._reader = reader
        self._chunked = fields.get("transfer-encoding") == "chunked"
        self._buffer = b""

    async def read_exactly(self, size: int) -> bytes:
        if not self._chunked:
            return await self._reader.readexactly(size)
        while len(self._buffer) < size:
            line = await self._reader.readline()
            if not line:
                raise EOFError("The agent closed the connection before the end of the response.")
            length = int(line, 16)
            assert length, "the stream ended early"
            self._buffer += await self._reader.readexactly(length)
            await self._reader.readexactly(2)
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


def _exit_code(end: dict[str, Any]) -> int:
    """Return the exit code. The JSON encoding omits zero."""
    return int(end.get("exitCode", 0))


def _build_request(method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
    fields = {"Host": "agent", "Connection": "close", "Content-Length": str(len(body)), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


async def _read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    raw = (await reader.readuntil(b"\r\n\r\n")).decode()
    first, *lines = raw.rstrip("\r\n").split("\r\n")
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return int(first.split()[1]), fields


async def exchange(sock: socket.socket, data: bytes) -> bytes:
    """Send `data`, then read until the other side closes."""
    loop = asyncio.get_running_loop()
    received = b""
    with sock:
        await loop.sock_sendall(sock, data)
        while chunk := await loop.sock_recv(sock, 65536):
            received += chunk
    return received
