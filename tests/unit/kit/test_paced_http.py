"""Servers that send endless heads or tiny pieces do not occupy the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace

import httpx
import pytest

from sandyard.kit import paced_http
from sandyard.kit.destinations import Destinations
from sandyard.kit.http_clients import GuardedTransport, open_shared_client
from sandyard.kit.paced_http import INTERIM_RESPONSES, READ_BYTES

INTERIM = b"HTTP/1.1 103 \r\n\r\n"
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
Handler = Callable[[asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await handler(writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def sending(data: bytes, *, endless: bool = False) -> Handler:
    async def handler(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()
        while endless:
            writer.write(data)
            await writer.drain()

    return handler


@pytest.fixture(params=["direct", "guarded"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[httpx.AsyncClient]:
    transport = GuardedTransport(Destinations(["127.0.0.1"])) if request.param == "guarded" else None
    async with open_shared_client(timeout=5, transport=transport) as made:
        yield made


@pytest.mark.parametrize("data", [INTERIM * 4000, b"HTTP/1.1 103 \n\n" * 4000])
async def test_refuses_endless_interim_responses(client: httpx.AsyncClient, data: bytes) -> None:
    async with serving(sending(data, endless=True)) as url, asyncio.timeout(5):
        with pytest.raises(httpx.RemoteProtocolError, match="interim"):
            await client.get(url)


async def test_accepts_some_interim_responses(client: httpx.AsyncClient) -> None:
    async with serving(sending(INTERIM * INTERIM_RESPONSES + ANSWER)) as url:
        for _ in range(3):  # on one connection
            assert (await client.get(url)).text == "ok"


async def test_refuses_large_head(client: httpx.AsyncClient) -> None:
    for lines in (b"a:b\r\n" * 5000, (b"a: " + b"b" * 1000 + b"\r\n") * 90):
        async with serving(sending(ANSWER.replace(b"\r\n\r\n", b"\r\n" + lines + b"\r\n"))) as url:
            with pytest.raises(httpx.RemoteProtocolError, match="too large"):
                await client.get(url)


async def test_accepts_body_of_many_lines(client: httpx.AsyncClient) -> None:
    body = b"\n" * (1 << 20)
    async with serving(sending(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)) as url:
        assert (await client.get(url)).content == body


async def test_whole_head_must_arrive_in_time(client: httpx.AsyncClient) -> None:
    async def slow(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\na: ")
        while not writer.is_closing():
            writer.write(b"b")
            await asyncio.sleep(0.02)

    async with serving(slow) as url, asyncio.timeout(5):
        with pytest.raises(httpx.ReadTimeout):
            await client.get(url, timeout=0.2)


async def test_body_may_take_longer_than_head(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    now, head_received = 0.0, asyncio.Event()
    monkeypatch.setattr(paced_http, "time", SimpleNamespace(monotonic=lambda: now))

    async def slow(writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
        await head_received.wait()
        writer.write(b"xxxxx")

    async with serving(slow) as url, client.stream("GET", url, timeout=30) as response:
        now += 3600
        head_received.set()
        assert await response.aread() == b"xxxxx"


async def test_reads_take_turns(client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, take_turn = 0, paced_http.take_turn

    async def count_turn(kind: str) -> None:
        nonlocal turns
        turns += 1
        await take_turn(kind)

    monkeypatch.setattr(paced_http, "take_turn", count_turn)
    size = 40 * READ_BYTES
    async with serving(sending(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)) as url:
        assert len((await client.get(url)).content) == size
    assert turns >= size // READ_BYTES


async def test_responses_through_proxy_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(sending(INTERIM * 4000, endless=True)) as url, asyncio.timeout(5):
        monkeypatch.setenv("http_proxy", url)
        monkeypatch.setenv("no_proxy", "")
        for transport in (None, GuardedTransport(Destinations())):
            async with open_shared_client(timeout=5, transport=transport) as client:
                with pytest.raises(httpx.RemoteProtocolError, match="interim"):
                    await client.get("http://mcp.example.org/")
