"""How the HTTP server stops."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator

import pytest
import uvicorn

from sandyard.engine.e2b.dataplane.asgi import App, Receive, Scope, Send
from sandyard.kit.listen import listen
from sandyard.kit.server import BoundedProtocol, Server

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
SECONDS = 20


@contextlib.asynccontextmanager
async def serve(app: App, grace_s: float = SECONDS) -> AsyncIterator[tuple[Server, asyncio.Task[None], int]]:
    """Yield a server, its task, and its port."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, http=BoundedProtocol, ws="none", lifespan="off", log_config=None)
    config.timeout_graceful_shutdown = grace_s  # type: ignore[assignment]
    server = Server(config)
    serving = asyncio.create_task(server.serve([listener]))
    async with asyncio.timeout(SECONDS):
        yield server, serving, listener.getsockname()[1]
        server.should_exit = True
        await serving


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def test_stops_at_once_and_closes_idle_connections() -> None:
    """uvicorn takes a tenth of a second or two."""
    taken = []
    for _ in range(5):
        async with serve(answer) as (server, serving, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(GET)
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            began = time.monotonic()
            server.should_exit = True
            await serving
            taken.append(time.monotonic() - began)
            assert await reader.read() == b""
            writer.close()
    assert min(taken) < 0.08


async def test_finishes_requests_in_progress() -> None:
    started, finish = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        await finish.wait()
        await answer(scope, receive, send)

    async with serve(app) as (server, serving, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await started.wait()
        server.should_exit = True
        await asyncio.wait((serving,), timeout=0.02)
        assert not serving.done()
        finish.set()
        assert (await reader.read()).endswith(b"ok")
        await serving
        writer.close()


async def test_cancels_requests_that_take_too_long() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    async with serve(app, grace_s=0.02) as (server, serving, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await started.wait()
        server.should_exit = True
        await serving
        await cancelled.wait()
        writer.close()


async def test_updates_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    times = (f"time {number}" for number in itertools.count())
    monkeypatch.setattr("uvicorn.server.formatdate", lambda *_, **__: next(times))
    monkeypatch.setattr("sandyard.kit.server.DATE_SECONDS", 0.005)
    async with serve(answer) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        dates = set[bytes]()
        while len(dates) < 2:
            writer.write(GET)
            dates |= {line for line in (await reader.readuntil(b"ok")).split(b"\r\n") if line.startswith(b"date:")}
        writer.close()
