"""The server's own bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from sandyard.engine.e2b.dataplane.asgi import App, Receive, Scope, Send, whole_body
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.kit import server
from tests.unit.engine.e2b.support import TOKEN, Bench, control


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

    def __init__(self) -> None:
        super().__init__()
        self.said, self.closed, self.reading = b"", False, True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.said += bytes(data)

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

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

    def __init__(self, app: App) -> None:
        self.timers, self.line = Timers(), Line()
        config = uvicorn.Config(app, http=EngineProtocol, ws="none", lifespan="off", log_config=None)
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
