"""TLS connections count towards the limits before their handshake, and may not take long for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import pytest
import uvicorn
import uvloop

from sandyard.engine.certificates.authority import Authority
from sandyard.kit import connections, tls_server
from sandyard.kit.connections import Connections
from sandyard.kit.listen import listen
from sandyard.kit.server import BoundedProtocol
from sandyard.kit.tls_server import TlsServer

MAX_CONNECTIONS = 40
FROM_HERE = 30
"""The connections that this machine may have of MAX_CONNECTIONS."""


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Respond with the scheme and the body of the request."""
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    body += message.get("body", b"")
    body = scope["scheme"].encode() + b" " + body
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class SecureServer:
    def __init__(self, folder: Path) -> None:
        self.authority = Authority.load(folder)
        config = uvicorn.Config(
            answer, http=BoundedProtocol, interface="asgi3", lifespan="off", log_config=None, ws="none"
        )
        config.load()
        self.server = TlsServer(config, self.authority.make_server_context(["127.0.0.1"]))
        self.listener = listen("127.0.0.1", 0)
        self.port = self.listener.getsockname()[1]
        self.connections = Connections(MAX_CONNECTIONS)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        serving = asyncio.create_task(self.server.serve([self.listener]))
        try:
            yield
        finally:
            self.server.should_exit = True
            await serving

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect without a handshake."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def request(self, body: bytes = b"") -> bytes:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=context)
        head = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        response = await reader.read()
        writer.close()
        return response

    async def wait_for_count(self, count: int) -> None:
        while len(self.connections) != count:
            await asyncio.sleep(0.005)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[SecureServer], Awaitable[None]]], None]:
    """Runs a test with a server, in the engine's event loop."""

    def start(test: Callable[[SecureServer], Awaitable[None]]) -> None:
        async def run_with_server() -> None:
            secure = SecureServer(tmp_path)
            monkeypatch.setattr(connections, "CONNECTIONS", secure.connections)
            async with asyncio.timeout(20):
                await test(secure)

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_with_server())

    return start


Run = Callable[[Callable[[SecureServer], Awaitable[None]]], None]


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def test_requests_are_served(run: Run) -> None:
    async def test(secure: SecureServer) -> None:
        async with secure.running():
            for body in (b"", b"short", bytes(1 << 20)):
                assert (await secure.request(body)).endswith(b"https " + body)
            await secure.wait_for_count(0)

    run(test)


def test_clients_that_begin_no_handshake_are_limited_and_dropped_first(run: Run) -> None:
    async def test(secure: SecureServer) -> None:
        async with secure.running():
            silent = [await secure.connect() for _ in range(2 * FROM_HERE)]
            await secure.wait_for_count(FROM_HERE)
            for reader, _ in silent[:FROM_HERE]:
                assert await is_closed(reader)
            assert (await secure.request(b"served")).endswith(b"https served")
            await secure.wait_for_count(FROM_HERE - 1)
            for _, writer in silent:
                writer.close()
            await secure.wait_for_count(0)

    run(test)


def test_a_handshake_may_not_take_long(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "HANDSHAKE_SECONDS", 0.1)

    async def test(secure: SecureServer) -> None:
        async with secure.running():
            for start in (b"", b"\x16\x03\x01\x02\x00\x01"):  # nothing, and the beginning of a hello
                reader, writer = await secure.connect()
                writer.write(start)
                assert await is_closed(reader)
                writer.close()
            await secure.wait_for_count(0)

    run(test)


def test_failed_handshakes_are_forgotten(run: Run) -> None:
    async def test(secure: SecureServer) -> None:
        async with secure.running():
            for _ in range(MAX_CONNECTIONS):
                reader, writer = await secure.connect()
                writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
                await reader.read()
                writer.close()
            _, writer = await secure.connect()
            writer.close()
            await secure.wait_for_count(0)

    run(test)


def test_a_server_that_stops_does_not_wait_for_handshakes(run: Run) -> None:
    async def test(secure: SecureServer) -> None:
        async with secure.running():
            reader, writer = await secure.connect()
            await secure.wait_for_count(1)
        assert await is_closed(reader)
        writer.close()
        assert len(secure.connections) == 0

    run(test)


def test_a_process_without_free_descriptors_accepts_again_later(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls_server, "ACCEPT_PAUSE_SECONDS", 0.05)

    class Exhausted:
        """A listener that fails once."""

        def __init__(self, listener: socket.socket) -> None:
            self._listener, self.failed = listener, False

        def accept(self) -> Any:
            if not self.failed:
                self.failed = True
                raise OSError(24, "Too many open files")
            return self._listener.accept()

        def fileno(self) -> int:
            return self._listener.fileno()

        def close(self) -> None:
            self._listener.close()

    async def test(secure: SecureServer) -> None:
        listener = Exhausted(secure.listener)
        secure.listener = cast("socket.socket", listener)
        async with secure.running():
            assert (await secure.request()).endswith(b"https ")
            assert listener.failed

    run(test)
