"""Read a file of a sandbox from an offset on, also if the server's answers are invalid."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from e2b.api import client_async

from sandyard.kit.clock import SystemClock
from sandyard.platform.domain.sandboxes.e2b import files
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    EngineUnreachableError,
    FileMissingError,
    SandboxNotRunningError,
    SandboxUnreachableError,
)
from sandyard.platform.domain.sandboxes.e2b.transport import CircuitBreaker, EngineConfig, EngineTransport

CONTENT = bytes(range(256)) * 40
Answer = Callable[[httpx.Request], httpx.Response]


class Transport(EngineTransport):
    """A transport without a breaker and sandboxes."""

    def __init__(self) -> None:
        super().__init__(EngineConfig(None), CircuitBreaker(), SystemClock())

    async def call_sandbox(self, verb: str, engine_id: str, call: Callable[[Any], Awaitable[Any]], **_: object) -> Any:
        sandbox = SimpleNamespace(connection_config=None, envd_api_url="http://sandbox")
        with self.translate_errors():
            return await call(SimpleNamespace(sandbox=sandbox))


async def read(monkeypatch: pytest.MonkeyPatch, answer: Answer, offset: int) -> list[bytes]:
    def client(*_: object, **__: object) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url="http://sandbox", transport=httpx.MockTransport(answer))

    monkeypatch.setattr(client_async, "get_envd_api", client)
    monkeypatch.setattr(files, "PIECE", 1000)
    pieces = files.Files(Transport()).read_from("i1", "/tmp/out", offset, silence_s=0.2)
    return [piece async for piece in pieces]


async def chunks(content: bytes, size: int = 300) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


@pytest.mark.parametrize("offset", [0, 1, 299, 300, 301, len(CONTENT) - 1])
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "a proxy that drops them"])
async def test_reads_from_any_offset(monkeypatch: pytest.MonkeyPatch, offset: int, ranges: bool) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        assert dict(request.url.params) == {"path": "/tmp/out", "username": "root"}
        assert request.headers["range"] == f"bytes={offset}-"
        if not ranges:
            return httpx.Response(200, content=chunks(CONTENT))
        range_headers = {"Content-Range": f"bytes {offset}-{len(CONTENT) - 1}/{len(CONTENT)}"}
        return httpx.Response(206, headers=range_headers, content=chunks(CONTENT[offset:]))

    pieces = await read(monkeypatch, answer, offset)
    assert b"".join(pieces) == CONTENT[offset:]
    assert all(1000 <= len(piece) < 1300 for piece in pieces[:-1])


async def test_file_ends_before_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await read(monkeypatch, lambda _: httpx.Response(200, content=chunks(CONTENT)), len(CONTENT) + 5) == []


@pytest.mark.parametrize(
    ("response", "error"),
    [
        (httpx.Response(404, json={"message": "no such file"}), FileMissingError),
        (httpx.Response(400, json={"message": "not a regular file"}), FileMissingError),
        (httpx.Response(416), FileMissingError),
        (httpx.Response(409, json={"message": "paused"}), SandboxNotRunningError),
        (httpx.Response(502, json={"message": "The sandbox was not found"}), EngineError),
        (httpx.Response(206, headers={"Content-Range": "bytes 6-9/10"}, content=b"6789"), EngineError),
        (httpx.Response(206, content=b"6789"), EngineError),
    ],
)
async def test_error_answers(monkeypatch: pytest.MonkeyPatch, response: httpx.Response, error: type[Exception]) -> None:
    with pytest.raises(error):
        await read(monkeypatch, lambda _: response, 5)


async def test_broken_and_silent_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x"
        raise httpx.ReadError("gone")

    async def silent() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.Event().wait()

    with pytest.raises(EngineUnreachableError):
        await read(monkeypatch, lambda _: httpx.Response(200, content=broken()), 0)
    with pytest.raises(SandboxUnreachableError, match="did not respond in time"):
        await read(monkeypatch, lambda _: httpx.Response(200, content=silent()), 0)
