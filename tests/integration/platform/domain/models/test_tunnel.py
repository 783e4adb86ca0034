"""The tunnel from end to end, with its real program: as a client sees it, and through the death of the platform's side."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandyard.kit.listen import free_port
from sandyard.platform.domain.models.tunnel import AT_ONCE, Answering, Asking, Room, Tunnel, TunnelError
from tests.integration.platform.domain.models.local import Guest, LocalLines


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    made = Guest(tmp_path, free_port())
    yield made
    made.end()


@pytest.fixture
async def agent() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as made:
        yield made


async def echo(asking: Asking, answer: Answering) -> None:
    said = json.dumps([asking.method, asking.target, len(asking.body), sum(asking.body)]).encode()
    await answer.head(200, [("content-type", "application/json"), ("content-length", str(len(said)))])
    await answer.data(said)
    await answer.end()


async def test_bodies_of_every_kind(guest: Guest, agent: httpx.AsyncClient) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(300):
            yield bytes([number % 256]) * 1000

    large = bytes(range(256)) * (20 << 10)  # 5 MiB, so that it waits in a file and comes in many windows
    async with guest.attached(echo):
        assert (await agent.get(f"{guest.url}/a?b=c")).json() == ["GET", "/a?b=c", 0, 0]
        assert (await agent.post(f"{guest.url}/p", content=b"hello")).json() == ["POST", "/p", 5, sum(b"hello")]
        chunked = (await agent.post(f"{guest.url}/p", content=pieces())).json()
        assert chunked == ["POST", "/p", 300_000, sum(number % 256 for number in range(300)) * 1000]
        assert (await agent.post(f"{guest.url}/p", content=large)).json() == ["POST", "/p", len(large), sum(large)]
        expecting = await agent.post(f"{guest.url}/p", content=b"x" * 10, headers={"Expect": "100-continue"})
        assert expecting.json()[2] == 10
        head = await agent.head(f"{guest.url}/h")
        assert (head.status_code, head.content) == (200, b"")
        assert int(head.headers["content-length"]) > 0
        assert (await agent.get(f"{guest.url}/after")).json()[1] == "/after"  # on the same connection


async def raw(guest: Guest, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", guest.port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_what_is_no_request_is_refused(guest: Guest) -> None:
    async with guest.attached(echo):
        assert b" 400 " in await raw(guest, b"hello\r\n\r\n")
        both = b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert b" 400 " in await raw(guest, both)
        assert b" 413 " in await raw(guest, b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n")
        assert b" 431 " in await raw(guest, b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000)
        closed = await raw(guest, b"GET /old HTTP/1.0\r\n\r\n")
        assert b"/old" in closed
        assert b"connection: close" in closed


async def test_a_stream_flows_piece_by_piece(guest: Guest, agent: httpx.AsyncClient) -> None:
    """Each piece is only sent when the agent has said that it has the one before: whoever gathers them waits for ever."""
    seen = [asyncio.Event() for _ in range(5)]

    async def serve(asking: Asking, answer: Answering) -> None:
        await answer.head(200, [("content-type", "text/event-stream")])
        for number, event in enumerate(seen):
            await answer.data(f"data: {number}\n\n".encode())
            await event.wait()
        await answer.end()

    async with guest.attached(serve), agent.stream("POST", f"{guest.url}/s", content=b"{}") as response:
        pieces = []
        async for piece in response.aiter_text():
            pieces.append(piece)
            seen[len(pieces) - 1].set()
    assert pieces == [f"data: {number}\n\n" for number in range(5)]


async def test_large_answers_wait_for_a_slow_agent(guest: Guest, agent: httpx.AsyncClient) -> None:
    sent, total = 0, 16 << 20

    async def serve(asking: Asking, answer: Answering) -> None:
        nonlocal sent
        await answer.head(200, [])
        while sent < total:
            await answer.data(b"%08d" % (sent // 65536) * 8192)
            sent += 65536
        await answer.end()

    async with guest.attached(serve), agent.stream("GET", f"{guest.url}/large") as response:
        before = -1
        while before != sent:  # until nothing moves any more
            before = sent
            await asyncio.sleep(0.5)
        assert sent < total
        body = b"".join([piece async for piece in response.aiter_bytes()])
    assert body == b"".join(b"%08d" % number * 8192 for number in range(total // 65536))


async def test_an_agent_that_leaves_cancels(guest: Guest, agent: httpx.AsyncClient) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def serve(asking: Asking, answer: Answering) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async with guest.attached(serve):
        asked = asyncio.ensure_future(agent.get(f"{guest.url}/"))
        await begun.wait()
        asked.cancel()
        async with asyncio.timeout(20):
            await cancelled.wait()


async def test_an_agent_that_leaves_while_the_line_is_slow_says_no_more(guest: Guest) -> None:
    process, size = await guest.bridge(limit=70_000), 900_000
    lines = LocalLines(process)
    heard = lines.lines()
    async with asyncio.timeout(60):
        _, agent = await asyncio.open_connection("127.0.0.1", json.loads(await anext(heard))["port"])
        agent.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % size + b"x" * size)
        number = json.loads(await anext(heard))["id"]
        lines.say(json.dumps({"t": "want", "id": number, "n": size}))
        await asyncio.sleep(0.5)  # more is under way than the line takes
        agent.close()
        while (frame := json.loads(await anext(heard)))["t"] != "cancel":
            assert frame["d"]
        empty = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                while empty < 10:
                    empty += not json.loads(await anext(heard)).get("d", "x")
        assert not empty
    process.kill()
    await process.wait()


async def test_the_platform_dies_and_returns(guest: Guest, agent: httpx.AsyncClient) -> None:
    """What waited is served, what was being served is served again, and an answer that had begun is cut off; so is a call of an MCP
    server, which may have done something."""
    asked, half, acted = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def never(asking: Asking, answer: Answering) -> None:
        if asking.target == "/half":
            await answer.head(200, [("content-type", "text/plain")])
            await answer.data(b"half")
        elif asking.target == "/unanswered":
            asked.set()
        elif asking.target == "/mcp_1":
            acted.set()
        await asyncio.Event().wait()

    async def half_read() -> bytes:
        body = b""
        async with agent.stream("GET", f"{guest.url}/half") as response:
            async for piece in response.aiter_bytes():
                body += piece
                half.set()
        return body

    async with guest.attached(never):
        unanswered = asyncio.ensure_future(agent.post(f"{guest.url}/unanswered", content=b"x" * 100_000))
        cut = asyncio.ensure_future(half_read())
        once = asyncio.ensure_future(agent.post(f"{guest.url}/mcp_1", content=b"act"))
        await asked.wait()
        await half.wait()
        await acted.wait()
    for ended in (cut, once):
        with pytest.raises(httpx.RemoteProtocolError):
            await ended
    waiting = asyncio.ensure_future(agent.post(f"{guest.url}/waiting", content=b"abc"))
    async with guest.attached(echo):
        assert (await unanswered).json()[1:3] == ["/unanswered", 100_000]
        assert (await waiting).json()[1:3] == ["/waiting", 3]


async def test_the_newest_platform_counts(guest: Guest, agent: httpx.AsyncClient) -> None:
    async with guest.attached(echo) as first, guest.attached(echo):
        async with asyncio.timeout(20):
            await first
        assert (await agent.get(f"{guest.url}/x")).status_code == 200


async def test_another_port_when_it_is_taken_and_the_same_one_again(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    guest = Guest(tmp_path, port)
    try:
        async with guest.attached(echo):
            first = guest.port
        taken.close()
        guest.end()
        async with guest.attached(echo):  # the daemon has died, and what it left behind does not deceive
            assert guest.port == first != port
    finally:
        guest.end()


class Hostile:
    """A sandbox that says what it likes."""

    def __init__(self, *frames: object) -> None:
        self._frames = [frame if isinstance(frame, str) else json.dumps(frame) for frame in frames]
        self.heard: list[dict[str, object]] = []

    async def lines(self) -> AsyncIterator[str]:
        for frame in self._frames:
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            yield frame

    def say(self, line: str) -> None:
        self.heard.append(json.loads(line))

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
async def test_what_makes_no_sense_ends_the_line(frames: list[object]) -> None:
    with pytest.raises(TunnelError):
        await Tunnel(Hostile(*frames), echo, Room(1 << 20), lambda port: None).run()


async def test_too_many_at_once_are_cut() -> None:
    many = Hostile(*({**REQUEST, "id": number} for number in range(AT_ONCE + 3)))
    await Tunnel(many, echo, Room(1 << 20), lambda port: None).run()
    assert [frame["id"] for frame in many.heard if frame["t"] == "cut"] == [AT_ONCE, AT_ONCE + 1, AT_ONCE + 2]


class Hasty(Hostile):
    """Whose lines come in one piece, but for the last."""

    async def lines(self) -> AsyncIterator[str]:
        *most, last = self._frames
        for frame in most:
            yield frame
        await asyncio.sleep(0.01)
        yield last
        await asyncio.sleep(0.01)


async def test_those_who_leave_at_once_take_nobodys_place() -> None:
    left = [({**REQUEST, "id": number}, {"t": "cancel", "id": number}) for number in range(AT_ONCE)]
    hasty = Hasty(*(frame for both in left for frame in both), {**REQUEST, "id": AT_ONCE, "size": 0})
    await Tunnel(hasty, echo, Room(1 << 20), lambda port: None).run()
    assert [(frame["t"], frame["id"]) for frame in hasty.heard] == [(kind, AT_ONCE) for kind in ("head", "data", "fin")]
