"""The tunnel end to end with its real program: as a client sees it, and across crashes of the platform's side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandyard.kit.listen import free_port
from sandyard.platform.domain.models.tunnel import (
    MAX_REQUESTS,
    RequestMemory,
    ResponseWriter,
    Tunnel,
    TunnelError,
    TunnelRequest,
)
from tests.integration.platform.domain.models.local import LocalLines, TunnelDaemon


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[TunnelDaemon]:
    created = TunnelDaemon(tmp_path, free_port())
    yield created
    created.kill()


@pytest.fixture
async def agent() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as created:
        yield created


async def echo(asking: TunnelRequest, answer: ResponseWriter) -> None:
    body = json.dumps([asking.method, asking.target, len(asking.body), sum(asking.body)]).encode()
    await answer.send_head(200, [("content-type", "application/json"), ("content-length", str(len(body)))])
    await answer.send_data(body)
    await answer.end()


async def test_request_bodies_of_every_kind_are_forwarded(daemon: TunnelDaemon, agent: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(300):
            yield bytes([number % 256]) * 1000

    large = bytes(range(256)) * (20 << 10)  # 5 MiB, so that it is kept in a file and sent in many windows
    async with daemon.attach(echo):
        assert (await agent.get(f"{daemon.url}/a?b=c")).json() == ["GET", "/a?b=c", 0, 0]
        assert (await agent.post(f"{daemon.url}/p", content=b"hello")).json() == ["POST", "/p", 5, sum(b"hello")]
        chunked = (await agent.post(f"{daemon.url}/p", content=pieces())).json()
        assert chunked == ["POST", "/p", 300_000, sum(number % 256 for number in range(300)) * 1000]
        assert (await agent.post(f"{daemon.url}/p", content=large)).json() == ["POST", "/p", len(large), sum(large)]
        expecting = await agent.post(f"{daemon.url}/p", content=b"x" * 10, headers={"Expect": "100-continue"})
        assert expecting.json()[2] == 10
        head = await agent.head(f"{daemon.url}/h")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert (await agent.get(f"{daemon.url}/after")).json()[1] == "/after"  # on the same connection


async def send_raw(daemon: TunnelDaemon, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", daemon.port)
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response


async def test_malformed_requests_are_rejected(daemon: TunnelDaemon) -> None:
    async with daemon.attach(echo):
        assert b" 400 " in await send_raw(daemon, b"hello\r\n\r\n")
        both = b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert b" 400 " in await send_raw(daemon, both)
        assert b" 413 " in await send_raw(daemon, b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        assert b" 431 " in await send_raw(daemon, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
        closed = await send_raw(daemon, b"GET /old HTTP/1.0\r\n\r\n")
        assert b"/old" in closed
        assert b"connection: close" in closed


async def test_a_stream_is_forwarded_piece_by_piece(daemon: TunnelDaemon, agent: httpx.AsyncClient) -> None:
    """Each piece is sent only after the agent has received the one before: a tunnel that buffered them would wait forever."""
    received = [asyncio.Event() for _ in range(5)]

    async def serve(asking: TunnelRequest, answer: ResponseWriter) -> None:
        await answer.send_head(200, [("content-type", "text/event-stream")])
        for number, event in enumerate(received):
            await answer.send_data(f"data: {number}\n\n".encode())
            await event.wait()
        await answer.end()

    async with daemon.attach(serve), agent.stream("POST", f"{daemon.url}/s", content=b"{}") as response:
        pieces = []
        async for piece in response.aiter_text():
            pieces.append(piece)
            received[len(pieces) - 1].set()
    assert pieces == [f"data: {number}\n\n" for number in range(5)]


async def test_large_responses_wait_for_a_slow_agent(daemon: TunnelDaemon, agent: httpx.AsyncClient) -> None:
    sent, total = 0, 16 << 20

    async def serve(asking: TunnelRequest, answer: ResponseWriter) -> None:
        nonlocal sent
        await answer.send_head(200, [])
        while sent < total:
            await answer.send_data(b"%08d" % (sent // 65536) * 8192)
            sent += 65536
        await answer.end()

    async with daemon.attach(serve), agent.stream("GET", f"{daemon.url}/large") as response:
        before = -1
        while before != sent:  # until nothing more is sent
            before = sent
            await asyncio.sleep(0.5)
        assert sent < total
        body = b"".join([piece async for piece in response.aiter_bytes()])
    assert body == b"".join(b"%08d" % number * 8192 for number in range(total // 65536))


async def test_a_request_is_cancelled_when_the_agent_disconnects(
    daemon: TunnelDaemon, agent: httpx.AsyncClient
) -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(asking: TunnelRequest, answer: ResponseWriter) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with daemon.attach(serve):
        request = asyncio.ensure_future(agent.get(f"{daemon.url}/"))
        await started.wait()
        request.cancel()
        async with asyncio.timeout(20):
            await cancelled.wait()


async def test_nothing_is_sent_after_an_agent_disconnects_on_a_slow_line(daemon: TunnelDaemon) -> None:
    process, size = await daemon.bridge(limit=70_000), 900_000
    lines = LocalLines(process)
    frames = lines.read_lines()
    async with asyncio.timeout(60):
        _, writer = await asyncio.open_connection("127.0.0.1", json.loads(await anext(frames))["port"])
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        number = json.loads(await anext(frames))["id"]
        lines.send_line(json.dumps({"t": "want", "id": number, "n": size}))
        await asyncio.sleep(0.5)  # more data is pending than the line accepts
        writer.close()
        while (frame := json.loads(await anext(frames)))["t"] != "cancel":
            assert frame["d"]
        empty = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while empty < 10:
                    empty += not json.loads(await anext(frames)).get("d", "x")
        assert not empty
    process.kill()
    await process.wait()


async def test_requests_survive_a_crash_of_the_platform(daemon: TunnelDaemon, agent: httpx.AsyncClient) -> None:
    """Waiting requests are served, unanswered ones are served again, and a response that had begun is cut off; so is a call
    of an MCP server, which may have had an effect."""
    asked, half, acted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def serve_forever(asking: TunnelRequest, answer: ResponseWriter) -> None:
        if asking.target == "/half":
            await answer.send_head(200, [("content-type", "text/plain")])
            await answer.send_data(b"half")
        elif asking.target == "/unanswered":
            asked.set()
        elif asking.target == "/mcp_1":
            acted.set()
        await asyncio.Event().wait()

    async def read_half() -> bytes:
        body = b""
        async with agent.stream("GET", f"{daemon.url}/half") as response:
            async for piece in response.aiter_bytes():
                body += piece
                half.set()
        return body

    async with daemon.attach(serve_forever):
        unanswered = asyncio.ensure_future(agent.post(f"{daemon.url}/unanswered", content=b"x" * 100_000))
        half_read = asyncio.ensure_future(read_half())
        mcp_call = asyncio.ensure_future(agent.post(f"{daemon.url}/mcp_1", content=b"act"))
        await asked.wait()
        await half.wait()
        await acted.wait()
    for failed in (half_read, mcp_call):
        with pytest.raises(httpx.RemoteProtocolError):
            await failed
    waiting = asyncio.ensure_future(agent.post(f"{daemon.url}/waiting", content=b"abc"))
    async with daemon.attach(echo):
        assert (await unanswered).json()[1:3] == ["/unanswered", 100_000]
        assert (await waiting).json()[1:3] == ["/waiting", 3]


async def test_the_newest_platform_takes_over(daemon: TunnelDaemon, agent: httpx.AsyncClient) -> None:
    async with daemon.attach(echo) as first, daemon.attach(echo):
        async with asyncio.timeout(20):
            await first
        assert (await agent.get(f"{daemon.url}/x")).status_code == 200


async def test_a_taken_port_is_replaced_and_the_replacement_is_kept(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    daemon = TunnelDaemon(tmp_path, port)
    try:
        async with daemon.attach(echo):
            first = daemon.port
        taken.close()
        daemon.kill()
        async with daemon.attach(echo):  # the daemon has died, and its leftover files do not mislead
            assert daemon.port == first != port
    finally:
        daemon.kill()


class HostileLines:
    """A sandbox that sends arbitrary frames."""

    def __init__(self, *frames: object) -> None:
        self._frames = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
        self.sent: list[dict[str, object]] = []

    async def read_lines(self) -> AsyncIterator[str]:
        for frame in self._frames:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield frame

    def send_line(self, line: str) -> None:
        self.sent.append(json.loads(line))

    async def drain(self) -> None:
        pass


REQUEST = {"t": "req", "id": 1, "method": "POST", "target": "/", "headers": [], "size": 100}


@pytest.mark.parametrize(
    "frames",
    [
        ["nonsense"],
        ["[" * 100_000],
        [[]],
        [{"t": "hello", "port": 70_000}],
        [{"t": "error", "text": "no room"}],
        [REQUEST, REQUEST],
        [{**REQUEST, "size": 1 << 40}],
        [{**REQUEST, "headers": [["a", "b"]] * 1000}],
        [REQUEST, {"t": "body", "id": 1, "d": "####"}],
        [REQUEST, {"t": "body", "id": 1, "d": "QUFB" * 100}],
        [REQUEST, {"t": "ack", "id": 1, "n": -5}],
        [REQUEST, {"t": "ack", "id": 1, "n": 1}],
    ],
)
async def test_invalid_frames_end_the_tunnel(frames: list[object]) -> None:
    with pytest.raises(TunnelError):
        await Tunnel(HostileLines(*frames), echo, RequestMemory(1 << 20), lambda port: None).run()


async def test_requests_over_the_limit_are_cut() -> None:
    many = HostileLines(*({**REQUEST, "id": number} for number in range(MAX_REQUESTS + 3)))
    await Tunnel(many, echo, RequestMemory(1 << 20), lambda port: None).run()
    assert [frame["id"] for frame in many.sent if frame["t"] == "cut"] == [
        MAX_REQUESTS,
        MAX_REQUESTS + 1,
        MAX_REQUESTS + 2,
    ]


class BurstLines(HostileLines):
    """All lines arrive at once, except the last."""

    async def read_lines(self) -> AsyncIterator[str]:
        *most, last = self._frames
        for frame in most:
            yield frame
        await asyncio.sleep(0.01)
        yield last
        await asyncio.sleep(0.01)


async def test_requests_cancelled_at_once_take_no_slot() -> None:
    cancelled = [({**REQUEST, "id": number}, {"t": "cancel", "id": number}) for number in range(MAX_REQUESTS)]
    burst = BurstLines(*(frame for pair in cancelled for frame in pair), {**REQUEST, "id": MAX_REQUESTS, "size": 0})
    await Tunnel(burst, echo, RequestMemory(1 << 20), lambda port: None).run()
    assert [(frame["t"], frame["id"]) for frame in burst.sent] == [
        (kind, MAX_REQUESTS) for kind in ("head", "data", "fin")
    ]
