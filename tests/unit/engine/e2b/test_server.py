"""The server's own bounds."""

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

from sandyard.engine.e2b.dataplane.asgi import CLOSE, App, Receive, Scope, Send, whole_body
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.kit import connections, server
from tests.unit.engine.e2b.support import TOKEN, Bench, control, request, serving


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 300 + b"\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: " + b"b" * 200_000, 431),
        (b"GET /" + b"a" * 200_000, 431),
        (b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400),
    ],
    ids=lambda value: str(value[:30]) if isinstance(value, bytes) else str(value),
)
async def test_what_is_refused(gate: Bench, raw: bytes, status: int) -> None:
    got, _, body = await gate.ask(raw)
    assert got == status
    assert json.loads(body)["code"] == status
    assert json.loads(body)["message"]


async def test_one_bad_client_harms_no_other(gate: Bench) -> None:
    good = await gate.connect()
    await gate.ask(b"nonsense\r\n\r\n")
    good[1].write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"299" in await good[0].readuntil(b"\r\n")


# Clients that take their time ---------------------------------------------------------------------------------------------

BODY = b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 10000000\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
AGENT = f"E2b-Sandbox-Id: iabc\r\nE2b-Sandbox-Port: 49983\r\nX-Access-Token: {TOKEN}\r\n".encode()
ENOUGH = b"a" * int(server.BODY_SECONDS * server.BODY_BYTES_PER_SECOND)


class Timers:
    """The event loop with timers that a test lets run out."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._set: list[tuple[float, asyncio.TimerHandle, Callable[[], object]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def call_later(self, delay: float, callback: Callable[..., object], *arguments: object) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(0, callback, list(arguments), self._loop)
        self._set.append((delay, timer, partial(callback, *arguments)))
        return timer

    @property
    def running(self) -> list[float]:
        return [delay for delay, timer, _ in self._set if not timer.cancelled()]

    def run_out(self, delay: float) -> None:
        """The one timer of that length."""
        ((timer, work),) = [
            (timer, work) for length, timer, work in self._set if length == delay and not timer.cancelled()
        ]
        timer.cancel()
        work()


class Line(asyncio.Transport):
    """What the server does with its connection."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 40000)})
        self.said, self.closed, self.reading, self.aborted = b"", False, True, False
        self.unread = 0  # bytes of what was said that the client has not taken

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += bytes(data)

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
    def refused(self) -> bool:
        return (
            self.closed and b" 408 " in self.said and bool(json.loads(self.said.rpartition(b"\r\n\r\n")[2])["message"])
        )


class Client:
    """One connection of the engine's server to an application."""

    def __init__(self, app: App, address: str = "127.0.0.1") -> None:
        self.timers, self.line = Timers(), Line(address)
        config = uvicorn.Config(
            app, http=EngineProtocol, ws="none", lifespan="off", log_config=None, timeout_keep_alive=600
        )
        config.load()
        loop = cast("asyncio.AbstractEventLoop", self.timers)
        self.protocol = EngineProtocol(config, ServerState(), {}, loop)
        self.protocol.connection_made(self.line)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    def late(self, seconds: float = server.BODY_SECONDS) -> None:
        self.timers.run_out(seconds)


async def read_all(scope: Scope, receive: Receive, send: Send) -> None:
    await whole_body(receive)
    await control(scope, receive, send)


async def never_read(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def test_a_head_that_trickles_in_is_refused() -> None:
    client = Client(read_all)
    client.send(b"POST /a HTTP/1.1\r\nHo")
    client.send(b"st")
    client.late(server.HEAD_SECONDS)
    assert client.line.refused


async def test_a_connection_without_a_request_is_closed_without_a_word() -> None:
    client = Client(read_all)
    client.late(server.HEAD_SECONDS)
    assert client.line.closed and client.line.said == b""


async def test_a_whole_request_sets_no_timer() -> None:
    client = Client(read_all)
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\na")
    await client.settle()
    assert b" 299 " in client.line.said
    assert client.timers.running == [client.protocol.timeout_keep_alive]


@pytest.mark.parametrize(
    ("head", "piece"),
    [(BODY, b"a"), (CHUNKED + b"\r\n", b"1\r\na\r\n"), (CHUNKED + b"\r\nffff\r\n", b"a"), (BODY, b"")],
    ids=["body", "chunks", "chunk", "nothing"],
)
async def test_a_body_that_trickles_in_is_refused(head: bytes, piece: bytes) -> None:
    gone = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    client = Client(app)
    client.send(head)
    for _ in range(50):
        client.send(piece)
        await client.settle()
    client.late()
    assert client.line.refused
    await gone.wait()


async def test_one_that_was_fast_before_is_refused_too() -> None:
    client = Client(read_all)
    client.send(BODY)
    client.send(ENOUGH)
    client.late()
    assert not client.line.closed
    client.send(b"a")
    client.late()
    assert client.line.refused


async def test_a_slow_line_is_no_reason() -> None:
    client = Client(read_all)
    client.send(BODY)
    for _ in range(100):
        client.send(ENOUGH)
        await client.settle()
        client.late()
    assert not client.line.closed


async def test_an_application_that_does_not_read_is_waited_for() -> None:
    client = Client(never_read)
    client.send(BODY + b"a" * 100_000)
    assert not client.line.reading
    for _ in range(3):
        client.late()
    assert not client.line.closed


async def test_who_waits_to_be_asked_for_a_body_is_not_late() -> None:
    client = Client(never_read)
    client.send(BODY.replace(b"Host: x", b"Host: x\r\nExpect: 100-continue"))
    client.late()
    assert not client.line.closed


async def test_what_follows_an_answer_is_bounded_too() -> None:
    client = Client(control)
    client.send(BODY)
    await client.settle()
    client.send(b"a")
    client.late()
    assert client.line.closed and b" 299 " in client.line.said and b" 408 " not in client.line.said


async def test_pipelined_requests_are_bounded() -> None:
    client = Client(never_read)
    for _ in range(3):
        client.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n" * server.PIPELINE_LIMIT)
    assert client.line.closed
    assert b"Too many pipelined requests" in client.line.said
    assert len(client.protocol.pipeline) <= server.PIPELINE_LIMIT


async def test_the_end_of_a_chunked_body_may_come_alone() -> None:
    client = Client(never_read)
    client.send(b"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
    client.send(b"0\r\n\r\n")
    client.send(b"\r\n")
    assert client.timers.running == [], "an answer may take as long as it takes"


async def test_line_ends_between_requests_keep_no_connection() -> None:
    client = Client(control)
    client.send(b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n")
    await client.settle()
    client.send(b"\r\n")
    client.late(server.HEAD_SECONDS)
    assert client.line.closed


async def test_a_stream_into_a_sandbox_may_pause(gate: Bench) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"0\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await gate.sockets.listen(agent)
    client = Client(gate.gateway)
    client.send(CHUNKED + AGENT + b"\r\n1\r\na\r\n")
    await client.settle()
    client.late()
    for _ in range(5):
        client.send(b"1\r\na\r\n")
        client.late(server.STREAM_SILENCE_SECONDS)
        assert not client.line.closed
    client.late(server.STREAM_SILENCE_SECONDS)
    assert client.line.refused


async def test_a_stranger_may_not_stream(gate: Bench) -> None:
    client = Client(gate.gateway)
    client.send(CHUNKED + AGENT.replace(TOKEN.encode(), b"wrong") + b"\r\n1\r\na\r\n")
    await client.settle()
    client.late()
    assert client.line.closed


# Clients that pipeline ------------------------------------------------------------------------------------------------------

GET = b"GET /a HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE = b"GET /a HTTP/1.1\r\nHost: x\r\nA: " + b"b" * 60_000 + b"\r\n\r\n"


async def test_the_bytes_of_pipelined_requests_are_bounded() -> None:
    client = Client(never_read)
    client.send(GET)
    for _ in range(4):
        client.send(LARGE)
    assert not client.line.closed
    client.send(LARGE)
    assert client.line.closed and b"Too many pipelined requests" in client.line.said
    assert not client.protocol.pipeline


async def test_so_are_those_of_their_bodies() -> None:
    client = Client(never_read)
    client.send(GET + BODY)
    for _ in range(5):
        client.send(b"a" * 60_000)
    assert client.line.closed


async def test_what_was_answered_does_not_wait() -> None:
    answered = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal answered
        await control(scope, receive, send)
        answered += 1

    client = Client(app)
    for _ in range(10):
        client.send(LARGE + LARGE)
        await client.settle()
    assert answered == 20 and not client.line.closed


async def test_an_application_learns_that_its_client_was_refused() -> None:
    ended = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        assert (await receive())["type"] == "http.disconnect"
        await control(scope, receive, send)
        ended.set()

    client = Client(app)
    client.send(GET)
    await client.settle()
    client.send(GET + b"nonsense\r\n\r\n")
    assert client.line.closed
    said = client.line.said
    await asyncio.wait_for(ended.wait(), 5)
    assert client.line.said == said, "nothing is written to a connection that was closed"


async def test_a_refusal_is_not_written_into_an_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    client = Client(app)
    client.send(GET)
    await client.settle()
    client.send(b"nonsense\r\n\r\n")
    assert client.line.closed and b" 400 " not in client.line.said


# Clients that read nothing --------------------------------------------------------------------------------------------------


async def test_who_reads_nothing_of_an_answer_is_cut_off() -> None:
    client = Client(never_read)
    client.send(GET)
    client.line.unread = 100_000
    client.protocol.pause_writing()
    client.late(connections.WRITE_SECONDS)
    assert client.line.aborted
    client.protocol.connection_lost(None)


async def test_who_reads_slowly_is_not() -> None:
    client = Client(never_read)
    client.send(GET)
    client.line.unread = 100_000
    client.protocol.pause_writing()
    for _ in range(10):
        client.line.unread -= 1
        client.late(connections.WRITE_SECONDS)
    assert not client.line.closed
    client.line.unread = 0
    client.late(connections.WRITE_SECONDS)
    assert not client.line.closed and connections.WRITE_SECONDS not in client.timers.running
    client.protocol.connection_lost(None)


async def test_the_rest_of_a_complete_answer_must_be_read_too() -> None:
    client = Client(control)
    client.line.unread = 1
    client.send(GET.replace(b"Host: x", b"Host: x\r\nConnection: close"))
    await client.settle()
    assert client.line.closed and not client.line.aborted
    client.late(connections.WRITE_SECONDS)
    assert client.line.aborted


async def test_and_what_was_said_before_an_application_hangs_up() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"][CLOSE]["close"]()
        await asyncio.Event().wait()

    client = Client(app)
    client.line.unread = 1
    client.send(GET)
    await client.settle()
    client.late(connections.WRITE_SECONDS)
    assert client.line.aborted


async def test_nobody_holds_a_real_connection_by_not_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel's own count of what was taken: the first reads a little from time to time, the second nothing."""
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.3)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        ended = asyncio.create_task(_disconnected(receive))
        while not ended.done():
            await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            await asyncio.sleep(0)

    async with serving(app) as port:
        loop = asyncio.get_running_loop()
        before = len(connections.CONNECTIONS) + 2
        slow, silent = await _connect(port), await _connect(port)
        try:
            for one in (slow, silent):
                await loop.sock_sendall(one, GET)
            assert await loop.sock_recv(silent, 1)
            async with asyncio.timeout(20):
                while len(connections.CONNECTIONS) >= before:
                    assert await loop.sock_recv(slow, 50_000)
                    await asyncio.sleep(0.02)
            assert len(connections.CONNECTIONS) == before - 1
            for _ in range(30):
                assert await loop.sock_recv(slow, 50_000)
                await asyncio.sleep(0.02)
            assert len(connections.CONNECTIONS) == before - 1, "who reads, however slowly, is served"
        finally:
            slow.close()
            silent.close()


# Too many clients -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> connections.Connections:
    """For eight connections: six of loopback, two of any other address."""
    made = connections.Connections(8)
    monkeypatch.setattr(connections, "CONNECTIONS", made)
    return made


async def authenticate(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["path"] == "/a":
        server.mark_authenticated(scope)
    await control(scope, receive, send)


async def test_the_connection_idle_longest_makes_room(room: connections.Connections) -> None:
    clients = [Client(control) for _ in range(6)]
    for client in reversed(clients):
        client.send(GET)
        await client.settle()
    newest = Client(control)
    assert [client.line.aborted for client in clients] == [False] * 5 + [True]
    newest.send(GET)
    await newest.settle()
    assert b" 299 " in newest.line.said and len(room) == 6


async def test_one_that_authenticated_goes_last(room: connections.Connections) -> None:
    member = Client(authenticate)
    member.send(GET)
    await member.settle()
    strangers = [Client(control) for _ in range(5)]
    more = [Client(control) for _ in range(10)]
    assert not member.line.closed
    assert [client.line.aborted for client in strangers + more] == [True] * 10 + [False] * 5


async def test_without_an_idle_one_the_new_one_is_told_to_come_again(room: connections.Connections) -> None:
    clients = [Client(never_read) for _ in range(6)]
    for client in clients:
        client.send(GET)
    refused = Client(never_read)
    assert refused.line.closed and b" 503 " in refused.line.said and b"retry-after: " in refused.line.said
    assert not any(client.line.closed for client in clients)
    clients[0].protocol.connection_lost(None)
    assert not Client(never_read).line.closed


async def test_who_is_about_to_read_an_answer_is_not_idle(room: connections.Connections) -> None:
    clients = [Client(control) for _ in range(6)]
    for client in clients:
        client.line.unread = 1
        client.send(GET)
        await client.settle()
    assert b" 503 " in Client(control).line.said


async def test_one_address_does_not_take_the_room_of_others(room: connections.Connections) -> None:
    first = [Client(control, "192.0.2.1") for _ in range(3)]
    assert [client.line.aborted for client in first] == [True, False, False]
    assert not any(Client(control, "192.0.2.2").line.closed for _ in range(2))
    assert not any(client.line.closed for client in first[1:])


async def test_an_idle_stranger_is_kept_for_a_moment_only() -> None:
    client = Client(authenticate)
    client.send(GET.replace(b"/a", b"/health"))
    await client.settle()
    client.late(server.STRANGER_SECONDS)
    assert client.line.closed


async def test_one_that_authenticated_is_kept_as_long_as_the_server_says() -> None:
    client = Client(authenticate)
    client.send(GET)
    await client.settle()
    client.send(GET.replace(b"/a", b"/health"))
    await client.settle()
    assert client.timers.running == [600]


@pytest.mark.parametrize(("token", "kept"), [(TOKEN, 600), ("wrong", server.STRANGER_SECONDS)])
async def test_a_sandboxs_token_authenticates(gate: Bench, token: str, kept: float) -> None:
    async def agent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    await gate.sockets.listen(agent)
    client = Client(gate.gateway)
    client.send(b"GET /files?path=a HTTP/1.1\r\n" + AGENT.replace(TOKEN.encode(), token.encode()) + b"\r\n")
    async with asyncio.timeout(5):
        while not client.line.said.endswith(b"\r\nok") and b" 401 " not in client.line.said:
            await asyncio.sleep(0.001)
    await client.settle()
    assert client.timers.running == [kept]


async def test_a_tunnel_counts_until_it_is_lost(gate: Bench) -> None:
    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        await reader.read()
        writer.close()

    await gate.sockets.listen(websocket, 8000)
    before = len(connections.CONNECTIONS)
    reader, writer = await gate.connect()
    writer.write(request("GET", "/", "Connection: Upgrade", "Upgrade: websocket", port=8000))
    assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
    assert len(connections.CONNECTIONS) == before + 1
    writer.close()
    async with asyncio.timeout(5):
        while len(connections.CONNECTIONS) > before:
            await asyncio.sleep(0.001)


async def test_a_tunnels_client_must_read_too(gate: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "WRITE_SECONDS", 0.2)
    gone = asyncio.Event()

    async def websocket(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 20))
                await writer.drain()
        gone.set()

    await gate.sockets.listen(websocket, 8000)
    client = await _connect(gate.port)
    try:
        raw = request("GET", "/", "Connection: Upgrade", "Upgrade: websocket", port=8000)
        await asyncio.get_running_loop().sock_sendall(client, raw)
        await asyncio.wait_for(gone.wait(), 20)
    finally:
        client.close()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _connect(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    made.setblocking(False)
    await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", port))
    return made
