"""Limits of the engine's HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from sandyard.engine.e2b.dataplane.asgi import CLOSE, App, Receive, Scope, Send, read_body
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.kit import connections, server
from tests.unit.engine.e2b.support import TOKEN, GatewayHarness, control_api, request, serving


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000, 431),
        (b"GET /" + b"a" * 200_000, 431),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n\r\n", 400),
    ],
    ids=lambda value: str(value[:30]) if isinstance(value, bytes) else str(value),
)
async def test_malformed_requests_are_rejected(harness: GatewayHarness, raw: bytes, status: int) -> None:
    actual, _, body = await harness.send_request(raw)
    assert actual == status
    assert json.loads(body)["code"] == status
    assert json.loads(body)["message"]


async def test_http_1_0_needs_no_host(harness: GatewayHarness) -> None:
    assert (await harness.send_request(b"GET / HTTP/1.0\r\n\r\n"))[0] == 299


async def test_a_malformed_request_does_not_affect_other_clients(harness: GatewayHarness) -> None:
    good = await harness.connect()
    await harness.send_request(b"nonsense\r\n\r\n")
    good[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"299" in await good[0].readuntil(b"\r\n")


# Slow clients ---------------------------------------------------------------------------------------------------------------

UPLOAD_HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n"
CHUNKED_HEAD = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
AGENT_HEADERS = f"E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {TOKEN}\r\n".encode()
FAST_ENOUGH = b"a" * int(server.BODY_SECONDS * server.BODY_BYTES_PER_SECOND)


class Timers:
    """An event loop whose timers expire when the test says so."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(0, callback, list(arguments), self._loop)
        self._timers.append((delay, timer, partial(callback, *arguments)))
        return timer

    @property
    def running(self) -> list[float]:
        return [delay for delay, timer, _ in self._timers if not timer.cancelled()]

    def expire(self, delay: float) -> None:
        """Run the callback of the only timer with this delay."""
        ((timer, work),) = [
            (timer, work) for length, timer, work in self._timers if length == delay and not timer.cancelled()
        ]
        timer.cancel()
        work()


class FakeTransport(asyncio.Transport):
    """A transport that records what the server does with its connection."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 40000)})
        self.written, self.closed, self.reading, self.aborted = b"", False, True, False
        self.unread = 0  # written bytes that the client has not read yet

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_reading(self) -> bool:
        return self.reading

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    @property
    def timed_out(self) -> bool:
        return (
            self.closed
            and b" 408 " in self.written
            and bool(json.loads(self.written.rpartition(b"\r\n\r\n")[2])["message"])
        )


class Client:
    """One client connection to an application behind the engine's server."""

    def __init__(self, app: App, address: str = "127.0.0.1") -> None:
        self.timers, self.transport = Timers(), FakeTransport(address)
        config = uvicorn.Config(
            app, http=EngineProtocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=600
        )
        config.load()
        loop = cast("asyncio.AbstractEventLoop", self.timers)
        self.protocol = EngineProtocol(config, ServerState(), {}, loop)
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def expire_timer(self, seconds: float = server.BODY_SECONDS) -> None:
        self.timers.expire(seconds)


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    await read_body(receive)
    await control_api(scope, receive, send)


async def never_read(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def test_request_headers_that_arrive_too_slowly_are_rejected() -> None:
    client = Client(read_all)
    client.send(b"POST /a HTTP/1.1\r\nHo")
    client.send(b"st")
    client.expire_timer(server.HEAD_SECONDS)
    assert client.transport.timed_out


async def test_a_connection_without_a_request_is_closed_silently() -> None:
    client = Client(read_all)
    client.expire_timer(server.HEAD_SECONDS)
    assert client.transport.closed and client.transport.written == b""


async def test_a_complete_request_leaves_only_the_keep_alive_timer() -> None:
    client = Client(read_all)
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
    await client.settle()
    assert b" 299 " in client.transport.written
    assert client.timers.running == [client.protocol.timeout_keep_alive]


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (UPLOAD_HEAD, b"a"),
        (CHUNKED_HEAD + b"\r\n", b"1\r\na\r\n"),
        (CHUNKED_HEAD + b"\r\nffff\r\n", b"a"),
        (UPLOAD_HEAD, b""),
    ],
    ids=["body", "chunks", "chunk", "nothing"],
)
async def test_a_body_that_arrives_too_slowly_is_rejected(head: bytes, piece: bytes) -> None:
    disconnected = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        disconnected.set()

    client = Client(app)
    client.send(head)
    for _ in range(50):
        client.send(piece)
        await client.settle()
    client.expire_timer()
    assert client.transport.timed_out
    await disconnected.wait()


async def test_a_body_that_becomes_slow_is_rejected() -> None:
    client = Client(read_all)
    client.send(UPLOAD_HEAD)
    client.send(FAST_ENOUGH)
    client.expire_timer()
    assert not client.transport.closed
    client.send(b"a")
    client.expire_timer()
    assert client.transport.timed_out


async def test_a_body_above_the_minimum_rate_is_accepted() -> None:
    client = Client(read_all)
    client.send(UPLOAD_HEAD)
    for _ in range(100):
        client.send(FAST_ENOUGH)
        await client.settle()
        client.expire_timer()
    assert not client.transport.closed


async def test_a_client_is_not_late_while_the_application_does_not_read() -> None:
    client = Client(never_read)
    client.send(UPLOAD_HEAD + b"a" * 100_000)
    assert not client.transport.reading
    for _ in range(3):
        client.expire_timer()
    assert not client.transport.closed


async def test_a_client_that_waits_for_100_continue_is_not_late() -> None:
    client = Client(never_read)
    client.send(UPLOAD_HEAD.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
    client.expire_timer()
    assert not client.transport.closed


async def test_a_body_sent_after_the_response_is_limited_too() -> None:
    client = Client(control_api)
    client.send(UPLOAD_HEAD)
    await client.settle()
    client.send(b"a")
    client.expire_timer()
    assert client.transport.closed and b" 299 " in client.transport.written and b" 408 " not in client.transport.written


async def test_the_number_of_pipelined_requests_is_limited() -> None:
    client = Client(never_read)
    for _ in range(3):
        client.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * server.PIPELINE_LIMIT)
    assert client.transport.closed
    assert b"Too many pipelined requests" in client.transport.written
    assert len(client.protocol.pipeline) <= server.PIPELINE_LIMIT


async def test_the_final_chunk_may_arrive_separately() -> None:
    client = Client(never_read)
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    client.send(b"0\r\n\r\n")
    client.send(b"\r\n")
    assert client.timers.running == [], "a response may take any time, so no timer may run"


async def test_line_breaks_between_requests_do_not_keep_a_connection_open() -> None:
    client = Client(control_api)
    client.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.settle()
    client.send(b"\r\n")
    client.expire_timer(server.HEAD_SECONDS)
    assert client.transport.closed


async def test_a_stream_into_a_sandbox_may_pause(harness: GatewayHarness) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await harness.sandboxes.listen(agent)
    client = Client(harness.gateway)
    client.send(CHUNKED_HEAD + AGENT_HEADERS + b"\r\n1\r\na\r\n")
    await client.settle()
    client.expire_timer()
    for _ in range(5):
        client.send(b"1\r\na\r\n")
        client.expire_timer(server.STREAM_SILENCE_SECONDS)
        assert not client.transport.closed
    client.expire_timer(server.STREAM_SILENCE_SECONDS)
    assert client.transport.timed_out


async def test_an_unauthenticated_client_may_not_stream(harness: GatewayHarness) -> None:
    client = Client(harness.gateway)
    client.send(CHUNKED_HEAD + AGENT_HEADERS.replace(TOKEN.encode(), b"wrong") + b"\r\n1\r\na\r\n")
    await client.settle()
    client.expire_timer()
    assert client.transport.closed


# Pipelined requests ---------------------------------------------------------------------------------------------------------

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /a HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 60_000 + b"\r\n\r\n"


async def test_the_size_of_pipelined_requests_is_limited() -> None:
    client = Client(never_read)
    client.send(GET)
    for _ in range(4):
        client.send(LARGE)
    assert not client.transport.closed
    client.send(LARGE)
    assert client.transport.closed and b"Too many pipelined requests" in client.transport.written
    assert not client.protocol.pipeline


async def test_the_size_of_pipelined_bodies_is_limited() -> None:
    client = Client(never_read)
    client.send(GET + UPLOAD_HEAD)
    for _ in range(5):
        client.send(b"a" * 60_000)
    assert client.transport.closed


async def test_completed_requests_do_not_count_against_the_limit() -> None:
    completed = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal completed
        await control_api(scope, receive, send)
        completed += 1

    client = Client(app)
    for _ in range(10):
        client.send(LARGE + LARGE)
        await client.settle()
    assert completed == 20 and not client.transport.closed


async def test_the_application_is_notified_when_its_client_is_rejected() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await control_api(scope, receive, send)
        ended.set()

    client = Client(app)
    client.send(GET)
    await client.settle()
    client.send(GET + b"nonsense\r\n\r\n")
    assert client.transport.closed
    written_before = client.transport.written
    await asyncio.wait_for(ended.wait(), 5)
    assert client.transport.written == written_before, "nothing may be written to a closed connection"


async def test_an_error_is_not_written_into_a_started_response() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    client = Client(app)
    client.send(GET)
    await client.settle()
    client.send(b"nonsense\r\n\r\n")
    assert client.transport.closed and b" 400 " not in client.transport.written


# Clients that do not read ---------------------------------------------------------------------------------------------------


async def test_a_client_that_does_not_read_the_response_is_disconnected() -> None:
    client = Client(never_read)
    client.send(GET)
    client.transport.unread = 100_000
    client.protocol.pause_writing()
    client.expire_timer(connections.WRITE_SECONDS)
    assert client.transport.aborted
    client.protocol.connection_lost(None)


async def test_a_client_that_reads_slowly_is_not_disconnected() -> None:
    client = Client(never_read)
    client.send(GET)
    client.transport.unread = 100_000
    client.protocol.pause_writing()
    for _ in range(10):
        client.transport.unread -= 1
        client.expire_timer(connections.WRITE_SECONDS)
    assert not client.transport.closed
    client.transport.unread = 0
    client.expire_timer(connections.WRITE_SECONDS)
    assert not client.transport.closed and connections.WRITE_SECONDS not in client.timers.running
    client.protocol.connection_lost(None)


async def test_the_rest_of_a_complete_response_must_be_read_in_time() -> None:
    client = Client(control_api)
    client.transport.unread = 1
    client.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    await client.settle()
    assert client.transport.closed and not client.transport.aborted
    client.expire_timer(connections.WRITE_SECONDS)
    assert client.transport.aborted


async def test_data_written_before_the_application_closes_must_be_read_in_time() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][CLOSE]["close"]()
        await asyncio.Event().wait()

    client = Client(app)
    client.transport.unread = 1
    client.send(GET)
    await client.settle()
    client.expire_timer(connections.WRITE_SECONDS)
    assert client.transport.aborted


async def test_a_real_connection_is_closed_when_its_client_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the kernel's count of read bytes: the first client reads a little from time to time, the second nothing."""
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended = asyncio.create_task(_wait_for_disconnect(receive))
        while not ended.done():
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            await asyncio.sleep(0)

    async with serving(app) as port:
        loop = asyncio.get_running_loop()
        before = len(connections.CONNECTIONS) + 2
        slow, silent = await _connect(port), await _connect(port)
        try:
            for connection in (slow, silent):
                await loop.sock_sendall(connection, GET)
            assert await loop.sock_recv(silent, 1)
            async with asyncio.timeout(20):
                while len(connections.CONNECTIONS) >= before:
                    assert await loop.sock_recv(slow, 50_000)
                    await asyncio.sleep(0.02)
            assert len(connections.CONNECTIONS) == before - 1
            for _ in range(30):
                assert await loop.sock_recv(slow, 50_000)
                await asyncio.sleep(0.02)
            assert len(connections.CONNECTIONS) == before - 1, "a client that reads, however slowly, must be served"
        finally:
            slow.close()
            silent.close()


# Connection limits ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def limited_connections(monkeypatch: pytest.MonkeyPatch) -> connections.Connections:
    """A limit of eight connections: six from loopback, two from any other address."""
    limited = connections.Connections(8)
    monkeypatch.setattr(connections, "CONNECTIONS", limited)
    return limited


async def authenticate(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/a":
        server.mark_authenticated(scope)
    await control_api(scope, receive, send)


async def test_the_longest_idle_connection_is_closed_first(limited_connections: connections.Connections) -> None:
    clients = [Client(control_api) for _ in range(6)]
    for client in reversed(clients):
        client.send(GET)
        await client.settle()
    newest = Client(control_api)
    assert [client.transport.aborted for client in clients] == [False] * 5 + [True]
    newest.send(GET)
    await newest.settle()
    assert b" 299 " in newest.transport.written and len(limited_connections) == 6


async def test_authenticated_connections_are_closed_last(limited_connections: connections.Connections) -> None:
    member = Client(authenticate)
    member.send(GET)
    await member.settle()
    strangers = [Client(control_api) for _ in range(5)]
    more = [Client(control_api) for _ in range(10)]
    assert not member.transport.closed
    assert [client.transport.aborted for client in strangers + more] == [True] * 10 + [False] * 5


async def test_a_new_connection_is_rejected_when_none_is_idle(limited_connections: connections.Connections) -> None:
    clients = [Client(never_read) for _ in range(6)]
    for client in clients:
        client.send(GET)
    rejected = Client(never_read)
    assert (
        rejected.transport.closed
        and b" 503 " in rejected.transport.written
        and b"retry-after: " in rejected.transport.written
    )
    assert not any(client.transport.closed for client in clients)
    clients[0].protocol.connection_lost(None)
    assert not Client(never_read).transport.closed


async def test_a_client_with_an_unread_response_is_not_idle(limited_connections: connections.Connections) -> None:
    clients = [Client(control_api) for _ in range(6)]
    for client in clients:
        client.transport.unread = 1
        client.send(GET)
        await client.settle()
    assert b" 503 " in Client(control_api).transport.written


async def test_one_address_cannot_use_the_connections_of_others(limited_connections: connections.Connections) -> None:
    first = [Client(control_api, "192.0.2.1") for _ in range(3)]
    assert [client.transport.aborted for client in first] == [True, False, False]
    assert not any(Client(control_api, "192.0.2.2").transport.closed for _ in range(2))
    assert not any(client.transport.closed for client in first[1:])


async def test_an_idle_unauthenticated_connection_is_closed_early() -> None:
    client = Client(authenticate)
    client.send(GET.replace(b"/a", b"/health"))
    await client.settle()
    client.expire_timer(server.UNAUTHENTICATED_IDLE_SECONDS)
    assert client.transport.closed


async def test_an_authenticated_connection_is_kept_for_the_servers_timeout() -> None:
    client = Client(authenticate)
    client.send(GET)
    await client.settle()
    client.send(GET.replace(b"/a", b"/health"))
    await client.settle()
    assert client.timers.running == [600]


@pytest.mark.parametrize(("token", "idle_timeout"), [(TOKEN, 600), ("wrong", server.UNAUTHENTICATED_IDLE_SECONDS)])
async def test_a_sandboxs_token_authenticates_the_connection(
    harness: GatewayHarness, token: str, idle_timeout: float
) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await harness.sandboxes.listen(agent)
    client = Client(harness.gateway)
    client.send(
        b"GET /files?path=a HTTP/1.1\r\nHost: x\r\n" + AGENT_HEADERS.replace(TOKEN.encode(), token.encode()) + b"\r\n"
    )
    async with asyncio.timeout(5):
        while not client.transport.written.endswith(b"\r\nok") and b" 401 " not in client.transport.written:
            await asyncio.sleep(0.001)
    await client.settle()
    assert client.timers.running == [idle_timeout]


async def test_a_tunnel_counts_as_a_connection_until_it_ends(harness: GatewayHarness) -> None:
    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await reader.read()
        writer.close()

    await harness.sandboxes.listen(websocket, 8000)
    before = len(connections.CONNECTIONS)
    reader, writer = await harness.connect()
    writer.write(request("GET", "/", "Connection: Upgrade", "Upgrade: websocket", port=8000))
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    assert len(connections.CONNECTIONS) == before + 1
    writer.close()
    async with asyncio.timeout(5):
        while len(connections.CONNECTIONS) > before:
            await asyncio.sleep(0.001)


async def test_a_tunnel_is_closed_when_its_client_does_not_read(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.2)
    disconnected = asyncio.Event()

    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        disconnected.set()

    await harness.sandboxes.listen(websocket, 8000)
    client = await _connect(harness.port)
    try:
        raw = request("GET", "/", "Connection: Upgrade", "Upgrade: websocket", port=8000)
        await asyncio.get_running_loop().sock_sendall(client, raw)
        await asyncio.wait_for(disconnected.wait(), 20)
    finally:
        client.close()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _connect(port: int) -> socket.socket:
    client_socket = socket.socket()
    client_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    client_socket.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client_socket, ("127.0.0.1", port))
    return client_socket
