"""WebSockets and other protocol upgrades into a sandbox."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from sandyard.kit.secret import Secret
from tests.unit.engine.e2b.support import API_KEY, GatewayHarness, read_reply, read_reply_head, reply, request, sandbox
from tests.unit.engine.e2b.test_relay import MOST_PARTS, Reader, Writer
from tests.unit.turns import count_parts

UPGRADED = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"


def upgrade(*lines: str, port: int = 8000, kind: str = "websocket") -> bytes:
    return request("GET", "/ws?a=b", "Connection: Upgrade", f"Upgrade: {kind}", *lines, port=port)


async def echo_uppercase(reader: Reader, writer: Writer) -> None:
    """Accept the upgrade, send `welcome`, then echo everything in upper case."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"GET /ws?a=b HTTP/1.1\r\n")
    writer.write(UPGRADED + b"welcome")
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


@pytest.mark.parametrize("kind", ["websocket", "echo"])
async def test_bytes_are_relayed_in_both_directions(harness: GatewayHarness, kind: str) -> None:
    await harness.sandboxes.listen(echo_uppercase, port=8000)
    reader, writer = await harness.connect()
    writer.write(upgrade(kind=kind))
    assert (await read_reply_head(reader))[0] == 101
    assert await reader.readexactly(7) == b"welcome"
    for size in (5, 3_000_000):
        writer.write(b"a" * size)
        assert await reader.readexactly(size) == b"A" * size
    writer.close()


async def test_an_api_key_is_not_forwarded(harness: GatewayHarness) -> None:
    heads = asyncio.Queue[bytes]()

    async def server(reader: Reader, writer: Writer) -> None:
        heads.put_nowait(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    await harness.sandboxes.listen(server, port=8000)
    for credential in (API_KEY, "other"):
        await harness.send_request(upgrade(f"Authorization: Bearer {credential}", f"X-API-Key: {credential}"))
    assert API_KEY.encode() not in await heads.get()
    assert b"authorization: Bearer other\r\n" in await heads.get()


async def test_the_tunnel_ends_when_either_side_disconnects(harness: GatewayHarness) -> None:
    ended = asyncio.Event()

    async def server(reader: Reader, writer: Writer) -> None:
        await echo_uppercase(reader, writer)
        ended.set()

    await harness.sandboxes.listen(server, port=8000)
    reader, writer = await harness.connect()
    writer.write(upgrade())
    await reader.readuntil(b"welcome")
    writer.close()
    await asyncio.wait_for(ended.wait(), 5)

    async def send_and_close(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(UPGRADED + b"bye")
        await writer.drain()
        writer.close()

    await harness.sandboxes.listen(send_and_close, port=8001)
    reader, writer = await harness.connect()
    writer.write(upgrade(port=8001))
    await read_reply_head(reader)
    assert await asyncio.wait_for(reader.read(), 5) == b"bye"


async def test_the_tunnel_ends_with_its_sandbox(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo_uppercase, port=8000)
    reader, writer = await harness.connect()
    writer.write(upgrade())
    await reader.readuntil(b"welcome")
    harness.sandboxes.interrupt()
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await asyncio.wait_for(reader.readexactly(1), 5)


async def test_a_sandbox_that_pauses_while_it_is_dialled_is_not_found(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the check nothing would cut the connection, and a frozen server never replies."""
    dial = harness.sandboxes.dial

    async def dial_and_pause(sandbox_id: str, port: int) -> socket.socket:
        sock = await dial(sandbox_id, port)
        harness.sandboxes.interrupt(reason="paused")
        return sock

    async def frozen(reader: Reader, writer: Writer) -> None:
        await reader.read()

    monkeypatch.setattr(harness.sandboxes, "dial", dial_and_pause)
    await harness.sandboxes.listen(frozen, port=8000)
    status, _, body = await asyncio.wait_for(harness.send_request(upgrade()), 10)
    assert (status, json.loads(body)["message"]) == (502, "The sandbox was not found")
    assert harness.gateway.pool.list_sandboxes() == set()


async def test_upgrades_need_the_same_authorization_as_requests(harness: GatewayHarness) -> None:
    harness.sandboxes.records["iabc"] = sandbox(traffic_token=Secret("traffic"))
    await harness.sandboxes.listen(echo_uppercase, port=8000)
    assert (await harness.send_request(upgrade()))[0] == 403
    reader, writer = await harness.connect()
    writer.write(upgrade("E2b-Traffic-Access-Token: traffic"))
    assert (await read_reply_head(reader))[0] == 101
    status, headers, body = await harness.send_request(upgrade().replace(b"iabc", b"inone"))
    assert (status, headers["connection"]) == (502, "close")
    assert json.loads(body)["message"] == "The sandbox was not found"


async def test_an_upgrade_without_a_server_fails(harness: GatewayHarness) -> None:
    assert (await harness.send_request(upgrade(port=9)))[0] == 502
    upgrade_request = b"GET /ws HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert (await harness.send_request(upgrade_request))[0] == 404


async def test_the_connection_is_closed_after_a_refused_upgrade(harness: GatewayHarness) -> None:
    """Otherwise the next request, possibly with a token, would go to a server that refused the upgrade."""
    received = b""

    async def refuse(reader: Reader, writer: Writer) -> None:
        nonlocal received
        received += await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"no sockets here", "426 Upgrade Required", "x-mine: 1"))
        received += await reader.read()

    await harness.sandboxes.listen(refuse, port=8000)
    reader, writer = await harness.connect()
    writer.write(upgrade())
    writer.write(b"GET / HTTP/1.1\r\nX-Secret: 1\r\n\r\n")
    status, headers, body = await read_reply(reader)
    assert (status, headers["x-mine"], headers["connection"], body) == (426, "1", "close", b"no sockets here")
    assert await asyncio.wait_for(reader.read(), 5) == b""
    assert b"X-Secret" not in received


@pytest.mark.parametrize("invalid_reply", [b"", b"garbage\r\n\r\n", b"HTTP/1.1 101" + b"x" * 100_000])
async def test_an_invalid_upgrade_reply_is_a_bad_gateway(harness: GatewayHarness, invalid_reply: bytes) -> None:
    async def send_invalid_reply(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(invalid_reply)
        await writer.drain()
        writer.close()

    await harness.sandboxes.listen(send_invalid_reply, port=8000)
    assert (await asyncio.wait_for(harness.send_request(upgrade()), 5))[0] == 502


async def test_an_h2c_upgrade_offer_is_ignored(harness: GatewayHarness) -> None:
    upgrade_request = b"GET / HTTP/1.1\r\nHost: engine\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n"
    assert (await harness.send_request(upgrade_request))[2] == b"control"


@pytest.mark.parametrize("ended", [True, False])
async def test_a_refusal_in_chunks_of_one_byte_is_parsed_in_turns(
    harness: GatewayHarness, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count_parts(monkeypatch)

    async def refuse(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 20_000)
        writer.write(b"0\r\n\r\n" if ended else b"")
        writer.close()

    await harness.sandboxes.listen(refuse, port=8000)
    status, _, body = await asyncio.wait_for(harness.send_request(upgrade()), 20)
    assert (status, body) == ((403, b"x" * 20_000) if ended else (502, body))
    assert max(turns) <= MOST_PARTS
