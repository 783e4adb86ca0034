"""Requests into a sandbox and their replies, through the real server, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from sandyard.engine.contract import AGENT_PORT
from sandyard.engine.e2b.server import EngineProtocol
from sandyard.kit.pacing import PARTS
from sandyard.kit.server import SLICE_BYTES
from tests.unit.engine.e2b.support import (
    API_KEY,
    GatewayHarness,
    read_chunk,
    read_reply,
    read_reply_head,
    read_request,
    reply,
    request,
)
from tests.unit.turns import count_parts

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\ntransfer-encoding: chunked\r\n\r\n"
ENVELOPE = b"\0\0\0\0\x02{}"
MOST_PARTS = PARTS + SLICE_BYTES // len(b"1\r\nx\r\n")
"""The most parts that one turn may parse when chunks have one byte."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def echo(reader: Reader, writer: Writer) -> None:
    """Reply to each request with its own content until the connection ends."""
    try:
        while True:
            line, headers, body = await read_request(reader)
            request_head = "\n".join([line, *(f"{name}: {value}" for name, value in headers.items())])
            writer.write(reply(request_head.encode() + b"\n\n" + body))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def test_requests_without_a_sandbox_go_to_the_control_api(harness: GatewayHarness) -> None:
    assert (await harness.send_request(b"GET /sandboxes HTTP/1.1\r\nHost: engine\r\n\r\n"))[2] == b"control"


async def test_a_request_arrives_unchanged(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    sent = request("POST", "/a%2Fb/%C3%BC?x=%20y", "Te: gzip", "X-Mine: 1", "X-Mine: 2", body=b"hi")
    status, _, body = await harness.send_request(sent)
    assert status == 200
    head, _, payload = body.partition(b"\n\n")
    lines = head.decode().split("\n")
    assert lines[0] == "POST /a%2Fb/%C3%BC?x=%20y HTTP/1.1"
    assert "x-mine: 2" in lines
    assert "host: engine" in lines
    assert "content-length: 2" in lines
    assert "connection: keep-alive" in lines
    assert not [line for line in lines if line.startswith(("te:", "x-access-token:"))]
    assert payload == b"hi"


async def test_the_connection_header_cannot_remove_content_length(harness: GatewayHarness) -> None:
    """`Connection` may list headers to drop, but not the one that delimits the request body."""
    received: list[bytes] = []

    async def server(reader: Reader, writer: Writer) -> None:
        line, _, body = await read_request(reader)
        received.extend((line.encode(), body))
        writer.write(reply(b"well"))
        received.append(await reader.read(1))  # nothing follows: the body was not parsed as a second request
        writer.close()

    await harness.sandboxes.listen(server)
    inner = request("POST", "/process.Process/Start", body=b"{}")
    head = f"GET /health HTTP/1.1\r\nHost: 49983-iabc.localhost\r\nConnection: content-length, close\r\nContent-Length: {len(inner)}\r\n\r\n"
    status, _, _ = await harness.send_request(head.encode() + inner)
    assert status == 200
    harness.gateway.close()
    async with asyncio.timeout(5):
        while len(received) < 3:
            await asyncio.sleep(0.01)
    assert received == [b"GET /health HTTP/1.1", inner, b""]


async def test_header_names_are_sent_in_the_usual_capitalization(harness: GatewayHarness) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        writer.write(reply(await reader.readuntil(b"\r\n\r\n")))
        writer.close()

    await harness.sandboxes.listen(server)
    _, _, body = await harness.send_request(request("GET", "/", "x-mine: 1"))
    assert b"\r\nHost: engine\r\n" in body
    assert b"\r\nX-Mine: 1\r\n" in body


async def test_hop_by_hop_headers_are_not_forwarded(harness: GatewayHarness) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        _, headers, _ = await read_request(reader)
        assert "x-hop" not in headers
        writer.write(reply(b"", "200 OK", "connection: close, x-own", "x-own: 1", "keep-alive: 5", "x-kept: 1"))
        writer.close()

    await harness.sandboxes.listen(server)
    status, headers, _ = await harness.send_request(request("GET", "/", "Connection: keep-alive, x-hop", "X-Hop: 1"))
    assert status == 200
    assert headers["x-kept"] == "1"
    assert not {"x-own", "keep-alive"} & set(headers)


@pytest.mark.parametrize(
    ("port", "line", "is_forwarded"),
    [
        (AGENT_PORT, f"X-API-Key: {API_KEY}", False),
        (AGENT_PORT, "Cookie: a=b", False),
        (AGENT_PORT, "Authorization: Bearer other", False),
        (AGENT_PORT, "Authorization: Basic dXNlcjo=", True),
        (8000, f"X-API-Key: {API_KEY}", False),
        (8000, f"Authorization: bearer  {API_KEY}", False),
        (8000, f"Authorization: Basic dXNlcjo=\r\nAuthorization: Bearer {API_KEY}", False),
        (8000, "Authorization: Bearer other", True),
        (8000, "Authorization: Basic dXNlcjo=", True),
        (8000, "Cookie: a=b", True),
    ],
)
async def test_credentials_of_clients_are_not_forwarded(
    harness: GatewayHarness, port: int, line: str, is_forwarded: bool
) -> None:
    await harness.sandboxes.listen(echo, port=port)
    _, _, body = await harness.send_request(request("GET", "/x", line, port=port))
    received = body.decode().split("\n")
    assert any(name in received for name in (line, line[0].lower() + line[1:])) is is_forwarded
    if not is_forwarded:
        assert API_KEY not in body.decode()


async def test_a_chunked_upload_stays_chunked(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    reader, writer = await harness.connect()
    writer.write(request("POST", "/up", "Transfer-Encoding: chunked") + chunk(b"one "))
    await asyncio.sleep(0.02)
    writer.write(chunk(b"two") + b"0\r\n\r\n")
    _, _, body = await read_reply(reader)
    assert body.endswith(b"\n\none two")
    assert b"transfer-encoding: chunked" in body
    assert b"content-length" not in body


async def test_a_client_may_wait_for_100_continue(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    reader, writer = await harness.connect()
    writer.write(request("POST", "/up", "Expect: 100-continue", "Content-Length: 4"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    _, _, body = await read_reply(reader)
    assert body.endswith(b"\n\nbody")
    assert b"expect" not in body


async def test_connections_to_the_agent_are_reused_and_those_to_user_ports_are_not(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    await harness.sandboxes.listen(echo, port=8000)
    reader, writer = await harness.connect()
    for _ in range(3):
        writer.write(request("POST", "/", body=b"x"))
        await read_reply(reader)
    assert harness.sandboxes.dials == 1
    writer.write(request("GET", "/", port=8000))
    _, _, body = await read_reply(reader)
    assert b"connection: close" in body
    writer.write(request("GET", "/", port=8000))
    await read_reply(reader)
    assert harness.sandboxes.dials == 3


async def test_concurrent_requests_get_their_own_replies(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    bodies = [os.urandom(1000 * number + 1) for number in range(30)]
    gathered = await asyncio.gather(*(harness.send_request(request("POST", "/", body=body)) for body in bodies))
    for body, (_, _, echoed) in zip(bodies, gathered, strict=True):
        assert echoed.partition(b"\n\n")[2] == body


async def test_large_bodies_are_relayed_in_both_directions(harness: GatewayHarness) -> None:
    data = os.urandom(20_000_000)
    await harness.sandboxes.listen(echo)
    status, _, body = await harness.send_request(request("POST", "/", body=data))
    assert status == 200
    assert hashlib.sha256(body.partition(b"\n\n")[2]).digest() == hashlib.sha256(data).digest()


async def test_a_slow_client_slows_down_the_sandbox(harness: GatewayHarness) -> None:
    written = 0
    size = 200_000_000

    async def flood(reader: Reader, writer: Writer) -> None:
        nonlocal written
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(bytes(100_000))
            await writer.drain()
            written += 100_000

    await harness.sandboxes.listen(flood)
    _, writer = await harness.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request())
    before = -1
    while not written or written != before:
        before = written
        await asyncio.sleep(0.1)
    assert 0 < written < 30_000_000, "the rest must wait in the sandbox, not in the engine's memory"


async def test_a_slow_sandbox_slows_down_its_client(harness: GatewayHarness) -> None:
    release = asyncio.Event()

    async def read_headers_only(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()

    await harness.sandboxes.listen(read_headers_only)
    _, writer = await harness.connect()
    writer.write(request("POST", "/", "Content-Length: 200000000"))
    sent, stalled = 0, False
    while sent < 200_000_000 and not stalled:
        writer.write(bytes(100_000))
        sent += 100_000
        try:
            await asyncio.wait_for(writer.drain(), 0.3)
        except TimeoutError:
            stalled = True
    release.set()
    assert stalled
    assert sent < 30_000_000


async def test_an_early_reply_reaches_a_client_that_is_still_sending(harness: GatewayHarness) -> None:
    async def reject_early(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"full", "507 Insufficient Storage"))

    await harness.sandboxes.listen(reject_early)
    reader, writer = await harness.connect()
    writer.write(request("POST", "/files", "Content-Length: 1000000") + b"x" * 1000)
    status, _, body = await read_reply(reader)
    assert (status, body) == (507, b"full")
    writer.write(b"x" * 999_000 + request("GET", "/next"))
    await asyncio.wait_for(read_reply(reader), 5)
    assert harness.sandboxes.dials == 2, "a connection with an unfinished request must not be reused"


async def test_a_client_that_disconnects_ends_the_request(harness: GatewayHarness) -> None:
    disconnected = asyncio.Event()

    async def stream_until_closed(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(ENVELOPE))
        assert await reader.read() == b""
        disconnected.set()

    await harness.sandboxes.listen(stream_until_closed)
    reader, writer = await harness.connect()
    writer.write(request("POST", "/process.Process/Start", body=b"x"))
    await read_reply_head(reader)
    assert await read_chunk(reader) == ENVELOPE
    writer.close()
    await asyncio.wait_for(disconnected.wait(), 5)


async def test_a_connection_that_waits_for_a_delivery_receipt_is_not_reused(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client disconnects while the last piece is sent. The agent would read the next request as the receipt."""

    async def fail_to_send(_: EngineProtocol) -> bool:
        return False

    monkeypatch.setattr(EngineProtocol, "wait_until_sent", fail_to_send)
    connections: list[Writer] = []

    async def server(reader: Reader, writer: Writer) -> None:
        connections.append(writer)
        try:
            while True:
                await read_request(reader)
                head = STREAM.replace(b"chunked\r\n", b"chunked\r\nx-delivery-receipts: 1\r\n")
                writer.write(head + chunk(ENVELOPE) + b"0\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    await harness.sandboxes.listen(server)
    for _ in range(2):
        await harness.send_request(request("POST", "/process.Process/Start", body=b"{}"))
    assert len(connections) == 2


async def test_a_client_that_disconnects_before_its_body_uses_no_connection(harness: GatewayHarness) -> None:
    await harness.sandboxes.listen(echo)
    for _ in range(3):
        _, writer = await harness.connect()
        writer.write(request("POST", "/", "Content-Length: 10"))
        await asyncio.sleep(0.02)
        writer.close()
    await harness.send_request(request())
    assert harness.sandboxes.dials == 1


@pytest.mark.parametrize(
    "partial_reply",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"only this"),
        STREAM + chunk(ENVELOPE),
        STREAM + chunk(ENVELOPE + b"\0\0\0\0\x05on"),
    ],
)
async def test_a_truncated_reply_never_looks_complete(harness: GatewayHarness, partial_reply: bytes) -> None:
    async def send_partial_reply(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(partial_reply)
        await writer.drain()
        writer.close()

    await harness.sandboxes.listen(send_partial_reply)
    with pytest.raises(asyncio.IncompleteReadError):
        await harness.send_request(request())


async def test_a_reply_without_a_length_ends_with_its_connection(harness: GatewayHarness) -> None:
    async def reply_without_length(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    await harness.sandboxes.listen(reply_without_length, port=8000)
    assert (await harness.send_request(request(port=8000)))[2] == b"hello"


@pytest.mark.parametrize("reason", ["killed", "paused", "died"])
async def test_open_streams_are_cut_when_their_sandbox_ends(harness: GatewayHarness, reason: str) -> None:
    async def stream_without_end(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(ENVELOPE))
        await reader.read()

    await harness.sandboxes.listen(stream_without_end)
    reader, writer = await harness.connect()
    writer.write(request())
    await read_reply_head(reader)
    assert await read_chunk(reader) == ENVELOPE
    harness.sandboxes.interrupt(reason=reason)
    assert await asyncio.wait_for(reader.read(), 5) == b"", "the stream must be cut without its final chunk"
    status, _, body = await harness.send_request(request())
    assert status == 502
    assert b"was not found" in body


async def test_pooled_connections_are_closed_by_a_pause(harness: GatewayHarness) -> None:
    ended = asyncio.Event()

    async def echo_and_report_end(reader: Reader, writer: Writer) -> None:
        await echo(reader, writer)
        ended.set()

    await harness.sandboxes.listen(echo_and_report_end)
    await harness.send_request(request())
    assert harness.gateway.pool.list_sandboxes() == {"iabc"}
    harness.sandboxes.interrupt(reason="paused")
    await asyncio.wait_for(ended.wait(), 5)
    assert harness.gateway.pool.list_sandboxes() == set()


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
async def test_only_safe_requests_are_retried_when_a_pooled_connection_died(
    harness: GatewayHarness, method: str, status: int
) -> None:
    """A request that is safe to repeat is retried. For any other the client gets an error and decides."""

    async def reply_once(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(reply(b"ok"))
        await read_request(reader)  # closes after reading the second request
        writer.close()

    await harness.sandboxes.listen(reply_once)
    await harness.send_request(request())
    assert (await harness.send_request(request(method)))[0] == status


@pytest.mark.parametrize("garbage", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000, b"\0" * 10])
async def test_a_reply_that_is_not_http_is_a_bad_gateway(harness: GatewayHarness, garbage: bytes) -> None:
    async def send_garbage(reader: Reader, writer: Writer) -> None:
        writer.write(garbage)
        await reader.read()

    await harness.sandboxes.listen(send_garbage, port=22)
    status, _, body = await harness.send_request(request(port=22))
    assert status == 502
    assert b'"code": 502' in body


async def test_unsolicited_data_closes_the_connection(harness: GatewayHarness) -> None:
    answered = asyncio.Event()

    async def send_unsolicited_reply(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(reply(b"ok"))
        await answered.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        await reader.read()
        writer.close()

    await harness.sandboxes.listen(send_unsolicited_reply)
    assert (await harness.send_request(request()))[2] == b"ok"
    (idle_connection,) = harness.gateway.pool.idle["iabc"]
    answered.set()
    async with asyncio.timeout(10):
        while idle_connection.usable:
            await asyncio.sleep(0.01)
    answered.clear()
    assert (await harness.send_request(request()))[2] == b"ok"
    assert harness.sandboxes.dials == 2


async def test_replies_without_a_body_are_relayed(harness: GatewayHarness) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        line, _, _ = await read_request(reader)
        if line.startswith("HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await read_request(reader)
        writer.write(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 1234\r\netag: x\r\n\r\n")

    await harness.sandboxes.listen(server)
    reader, writer = await harness.connect()
    writer.write(request("HEAD", "/file"))
    status, headers = await read_reply_head(reader)
    assert (status, headers["content-length"]) == (200, "1234")
    writer.write(request("GET", "/health"))
    status, headers = await read_reply_head(reader)
    assert status == 204
    assert "transfer-encoding" not in headers
    writer.write(request("GET", "/cached"))
    status, headers = await read_reply_head(reader)
    assert (status, headers["etag"]) == (304, "x")
    assert harness.sandboxes.dials == 2, "a reply without a body must leave its connection usable"


@pytest.mark.parametrize("ended", [True, False])
async def test_a_reply_in_chunks_of_one_byte_is_parsed_in_turns(
    harness: GatewayHarness, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count_parts(monkeypatch)

    async def send_tiny_chunks(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"x") * 20_000 + (b"0\r\n\r\n" if ended else b""))
        writer.close()

    await harness.sandboxes.listen(send_tiny_chunks, port=8000)
    if ended:
        assert (await asyncio.wait_for(harness.send_request(request(port=8000)), 20))[2] == b"x" * 20_000
    else:
        with pytest.raises(asyncio.IncompleteReadError) as broken:
            await asyncio.wait_for(harness.send_request(request(port=8000)), 20)
        assert broken.value.partial == b""
    assert sum(turns) >= 20_000
    assert max(turns) <= MOST_PARTS


async def test_a_request_in_chunks_of_one_byte_is_parsed_in_turns(
    harness: GatewayHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count_parts(monkeypatch)
    await harness.sandboxes.listen(echo)
    sent = request("POST", "/x", "Transfer-Encoding: chunked") + chunk(b"x") * 20_000 + b"0\r\n\r\n"
    reader, writer = await harness.connect()
    writer.write(sent + request())
    body = (await asyncio.wait_for(read_reply(reader), 20))[2]
    assert body.endswith(b"\n\n" + b"x" * 20_000)
    assert (await asyncio.wait_for(read_reply(reader), 20))[0] == 200, (
        "the next request on the connection must be handled"
    )
    assert sum(turns) >= 20_000
    assert max(turns) <= MOST_PARTS


async def test_a_slow_reader_of_tiny_chunks_gets_them_all(harness: GatewayHarness) -> None:
    """The data exceeds the read-ahead, so parsing has to stop and continue."""

    async def send_tiny_chunks(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(40):
            writer.write(chunk(b"x" * 50) * 2000 + chunk(bytes(60_000)))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    await harness.sandboxes.listen(send_tiny_chunks, port=8000)
    reader, writer = await harness.connect()
    writer.write(request(port=8000))
    await read_reply_head(reader)
    await asyncio.sleep(0.1)
    size = 0
    async with asyncio.timeout(20):
        while piece := await read_chunk(reader):
            size += len(piece)
    assert size == 40 * 160_000
