"""WebSockets, and other upgrades, into a sandbox."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from sandyard.kit.secret import Secret
from tests.unit.engine.e2b.support import Bench, answer, answer_head, reply, request, sandbox
from tests.unit.engine.e2b.test_relay import MOST_PARTS, Reader, Writer
from tests.unit.turns import count_parts

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def upgrade(*lines: str, port: int = 8000, kind: str = "websocket") -> bytes:
    return request("GET", "/ws?a=b", "Connection: Upgrade", f"Upgrade: {kind}", *lines, port=port)


async def shout(reader: Reader, writer: Writer) -> None:
    """Agrees, greets at once, then says everything back in capitals."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"GET /ws?a=b HTTP/1.1\r\n")
    writer.write(UPGRADED + b"welcome")
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("kind", ["websocket", "echo"])
async def test_bytes_flow_both_ways(gate: Bench, kind: str) -> None:
    await gate.sockets.listen(shout, port=8000)
    reader, writer = await gate.connect()
    writer.write(upgrade(kind=kind))
    assert (await answer_head(reader))[0] == 101
    assert await reader.readexactly(7) == b"welcome"
    for size in (5, 3_000_000):
        writer.write(b"a" * size)
        assert await reader.readexactly(size) == b"A" * size
    writer.close()


async def test_it_ends_when_either_side_does(gate: Bench) -> None:
    ended = asyncio.Event()

    async def server(reader: Reader, writer: Writer) -> None:
        await shout(reader, writer)
        ended.set()

    await gate.sockets.listen(server, port=8000)
    reader, writer = await gate.connect()
    writer.write(upgrade())
    await reader.readuntil(b"welcome")
    writer.close()
    await asyncio.wait_for(ended.wait(), 5)

    async def brief(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(UPGRADED + b"bye")
        await writer.drain()
        writer.close()

    await gate.sockets.listen(brief, port=8001)
    reader, writer = await gate.connect()
    writer.write(upgrade(port=8001))
    await answer_head(reader)
    assert await asyncio.wait_for(reader.read(), 5) == b"bye"


async def test_it_ends_with_its_sandbox(gate: Bench) -> None:
    await gate.sockets.listen(shout, port=8000)
    reader, writer = await gate.connect()
    writer.write(upgrade())
    await reader.readuntil(b"welcome")
    gate.sockets.interrupt()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)


async def test_a_sandbox_that_pauses_while_it_is_dialled(gate: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would cut the connection any more, and a frozen server never answers."""
    dial = gate.sockets.dial

    async def too_late(sandbox_id: str, port: int) -> socket.socket:
        sock = await dial(sandbox_id, port)
        gate.sockets.interrupt(reason="paused")
        return sock

    async def frozen(reader: Reader, writer: Writer) -> None:
        await reader.read()

    monkeypatch.setattr(gate.sockets, "dial", too_late)
    await gate.sockets.listen(frozen, port=8000)
    status, _, body = await asyncio.wait_for(gate.ask(upgrade()), 10)
    assert (status, json.loads(body)["message"]) == (502, "The sandbox was not found")
    assert gate.gateway.pool.sandboxes() == set()


async def test_who_may_not_come_in(gate: Bench) -> None:
    gate.sockets.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    await gate.sockets.listen(shout, port=8000)
    assert (await gate.ask(upgrade()))[0] == 403
    reader, writer = await gate.connect()
    writer.write(upgrade("E2b-Traffic-Access-Token: traffic"))
    assert (await answer_head(reader))[0] == 101
    status, headers, body = await gate.ask(upgrade().replace(b"iabc", b"inone"))
    assert (status, headers["connection"]) == (502, "close")
    assert json.loads(body)["message"] == "The sandbox was not found"


async def test_where_nothing_is_there_to_upgrade(gate: Bench) -> None:
    assert (await gate.ask(upgrade(port=9)))[0] == 502
    asked = b"GET /ws HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert (await gate.ask(asked))[0] == 404


async def test_a_refusal_is_the_last_thing_on_the_connection(gate: Bench) -> None:
    """Else the next request, with somebody's token in it, would go to a server that only ever refused."""
    seen = b""

    async def refuse(reader: Reader, writer: Writer) -> None:
        nonlocal seen
        seen += await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"no sockets here", "426 Upgrade Required", "x-mine: 1"))
        seen += await reader.read()

    await gate.sockets.listen(refuse, port=8000)
    reader, writer = await gate.connect()
    writer.write(upgrade())
    writer.write(b"GET / HTTP/1.1\r\nX-Secret: 1\r\n\r\n")
    status, headers, body = await answer(reader)
    assert (status, headers["x-mine"], headers["connection"], body) == (426, "1", "close", b"no sockets here")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert b"X-Secret" not in seen


@pytest.mark.parametrize("junk", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 101" + b"x" * 100_000])
async def test_what_is_no_answer(gate: Bench, junk: bytes) -> None:
    async def other(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(junk)
        await writer.drain()
        writer.close()

    await gate.sockets.listen(other, port=8000)
    assert (await asyncio.wait_for(gate.ask(upgrade()), 5))[0] == 502


async def test_h2c_is_an_offer_that_may_be_passed_over(gate: Bench) -> None:
    asked = b"GET / HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    assert (await gate.ask(asked))[2] == b"control"


@pytest.mark.parametrize("ended", [True, False])
async def test_a_refusal_in_chunks_of_one_byte(gate: Bench, ended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count_parts(monkeypatch)

    async def refuse(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000)
        writer.write(b"0\r\n\r\n" if ended else b"")
        writer.close()

    await gate.sockets.listen(refuse, port=8000)
    status, _, body = await asyncio.wait_for(gate.ask(upgrade()), 20)
    assert (status, body) == ((403, b"x" * 20_000) if ended else (502, body))
    assert max(turns) <= MOST_PARTS
