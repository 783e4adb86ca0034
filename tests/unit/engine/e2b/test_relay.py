"""Requests into a sandbox and their replies, through the real server, over real sockets."""

from __future__ import annotations

import asyncio
import hashlib
import os

import pytest

from sandyard.engine.e2b.server import EngineProtocol
from sandyard.kit.pacing import PARTS
from sandyard.kit.server import SLICE_BYTES
from tests.unit.engine.e2b.support import Bench, answer, answer_chunk, answer_head, read_request, reply, request
from tests.unit.turns import count_parts

Reader, Writer = asyncio.StreamReader, asyncio.StreamWriter
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: application/connect+json\r\ntransfer-encoding: chunked\r\n\r\n"
ENVELOPE = b"\0\0\0\0\x02{}"
MOST_PARTS = PARTS + SLICE_BYTES // len(b"1\r\nx\r\n")
"""In one turn, of chunks of one byte."""


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def echo(reader: Reader, writer: Writer) -> None:
    """Says back what it was asked, for as long as it is asked."""
    try:
        while True:
            line, headers, body = await read_request(reader)
            shown = "\n".join([line, *(f"{name}: {value}" for name, value in headers.items())])
            writer.write(reply(shown.encode() + b"\n\n" + body))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def test_what_is_not_for_a_sandbox_is_for_the_control_api(gate: Bench) -> None:
    assert (await gate.ask(b"GET /sandboxes HTTP/1.1\r\nHost: engine\r\n\r\n"))[2] == b"control"


async def test_a_request_arrives_as_it_was_sent(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    sent = request("POST", "/a%2Fb/%C3%BC?x=%20y", "Te: gzip", "X-Mine: 1", "X-Mine: 2", body=b"hi")
    status, _, body = await gate.ask(sent)
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


async def test_no_header_hides_a_body_from_the_agent(gate: Bench) -> None:
    """`Connection` may name headers to be dropped: not the one that says where the request ends."""
    seen: list[bytes] = []

    async def server(reader: Reader, writer: Writer) -> None:
        line, _, body = await read_request(reader)
        seen.extend((line.encode(), body))
        writer.write(reply(b"well"))
        seen.append(await reader.read(1))  # nothing follows: no second request came out of the first
        writer.close()

    await gate.sockets.listen(server)
    inner = request("POST", "/process.Process/Start", body=b"{}")
    head = f"GET /health HTTP/1.1\r\nHost: 49983-iabc.localhost\r\nConnection: content-length, close\r\nContent-Length: {len(inner)}\r\n\r\n"
    status, _, _ = await gate.ask(head.encode() + inner)
    assert status == 200
    gate.gateway.close()
    async with asyncio.timeout(5):
        while len(seen) < 3:
            await asyncio.sleep(0.01)
    assert seen == [b"GET /health HTTP/1.1", inner, b""]


async def test_header_names_are_written_as_everybody_does(gate: Bench) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        writer.write(reply(await reader.readuntil(b"\r\n\r\n")))
        writer.close()

    await gate.sockets.listen(server)
    _, _, body = await gate.ask(request("GET", "/", "x-mine: 1"))
    assert b"\r\nHost: engine\r\n" in body
    assert b"\r\nX-Mine: 1\r\n" in body


async def test_headers_of_one_connection_stay_there(gate: Bench) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        _, headers, _ = await read_request(reader)
        assert "x-hop" not in headers
        writer.write(reply(b"", "200 OK", "connection: close, x-own", "x-own: 1", "keep-alive: 5", "x-kept: 1"))
        writer.close()

    await gate.sockets.listen(server)
    status, headers, _ = await gate.ask(request("GET", "/", "Connection: keep-alive, x-hop", "X-Hop: 1"))
    assert status == 200
    assert headers["x-kept"] == "1"
    assert not {"x-own", "keep-alive"} & set(headers)


async def test_a_chunked_upload_stays_chunked(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    reader, writer = await gate.connect()
    writer.write(request("POST", "/up", "Transfer-Encoding: chunked") + chunk(b"one "))
    await asyncio.sleep(0.02)
    writer.write(chunk(b"two") + b"0\r\n\r\n")
    _, _, body = await answer(reader)
    assert body.endswith(b"\n\none two")
    assert b"transfer-encoding: chunked" in body
    assert b"content-length" not in body


async def test_a_client_may_wait_for_100_continue(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    reader, writer = await gate.connect()
    writer.write(request("POST", "/up", "Expect: 100-continue", "Content-Length: 4"))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"body")
    _, _, body = await answer(reader)
    assert body.endswith(b"\n\nbody")
    assert b"expect" not in body


async def test_connections_to_the_agent_are_kept_and_those_to_users_are_not(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    await gate.sockets.listen(echo, port=8000)
    reader, writer = await gate.connect()
    for _ in range(3):
        writer.write(request("POST", "/", body=b"x"))
        await answer(reader)
    assert gate.sockets.dials == 1
    writer.write(request("GET", "/", port=8000))
    _, _, body = await answer(reader)
    assert b"connection: close" in body
    writer.write(request("GET", "/", port=8000))
    await answer(reader)
    assert gate.sockets.dials == 3


async def test_many_at_once_each_get_their_own(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    bodies = [os.urandom(1000 * number + 1) for number in range(30)]
    answers = await asyncio.gather(*(gate.ask(request("POST", "/", body=body)) for body in bodies))
    for body, (_, _, got) in zip(bodies, answers, strict=True):
        assert got.partition(b"\n\n")[2] == body


async def test_large_bodies_both_ways(gate: Bench) -> None:
    data = os.urandom(20_000_000)
    await gate.sockets.listen(echo)
    status, _, body = await gate.ask(request("POST", "/", body=data))
    assert status == 200
    assert hashlib.sha256(body.partition(b"\n\n")[2]).digest() == hashlib.sha256(data).digest()


async def test_a_slow_client_slows_the_sandbox_down(gate: Bench) -> None:
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

    await gate.sockets.listen(flood)
    _, writer = await gate.connect()
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(request())
    before = -1
    while not written or written != before:
        before = written
        await asyncio.sleep(0.1)
    assert 0 < written < 30_000_000, "the rest waits in the sandbox, not in the engine's memory"


async def test_a_slow_sandbox_slows_its_client_down(gate: Bench) -> None:
    release = asyncio.Event()

    async def lazy(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await release.wait()

    await gate.sockets.listen(lazy)
    _, writer = await gate.connect()
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


async def test_an_early_answer_reaches_a_client_that_still_sends(gate: Bench) -> None:
    async def full(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply(b"full", "507 Insufficient Storage"))

    await gate.sockets.listen(full)
    reader, writer = await gate.connect()
    writer.write(request("POST", "/files", "Content-Length: 1000000") + b"x" * 1000)
    status, _, body = await answer(reader)
    assert (status, body) == (507, b"full")
    writer.write(b"x" * 999_000 + request("GET", "/next"))
    await asyncio.wait_for(answer(reader), 5)
    assert gate.sockets.dials == 2, "a connection with half a request on it is not used again"


async def test_a_client_that_leaves_ends_the_exchange(gate: Bench) -> None:
    left = asyncio.Event()

    async def patient(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(ENVELOPE))
        assert await reader.read() == b""
        left.set()

    await gate.sockets.listen(patient)
    reader, writer = await gate.connect()
    writer.write(request("POST", "/process.Process/Start", body=b"x"))
    await answer_head(reader)
    assert await answer_chunk(reader) == ENVELOPE
    writer.close()
    await asyncio.wait_for(left.wait(), 5)


async def test_a_connection_that_waits_for_a_receipt_is_not_used_again(
    gate: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client is gone as the last piece is sent to it: the agent would take the next request for the receipt."""

    async def gone(_: EngineProtocol) -> bool:
        return False

    monkeypatch.setattr(EngineProtocol, "_wait_until_sent", gone)
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

    await gate.sockets.listen(server)
    for _ in range(2):
        await gate.ask(request("POST", "/process.Process/Start", body=b"{}"))
    assert len(connections) == 2


async def test_a_client_that_leaves_before_its_body_costs_nothing(gate: Bench) -> None:
    await gate.sockets.listen(echo)
    for _ in range(3):
        _, writer = await gate.connect()
        writer.write(request("POST", "/", "Content-Length: 10"))
        await asyncio.sleep(0.02)
        writer.close()
    await gate.ask(request())
    assert gate.sockets.dials == 1


@pytest.mark.parametrize(
    "begun",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nonly this",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + chunk(b"only this"),
        STREAM + chunk(ENVELOPE),
        STREAM + chunk(ENVELOPE + b"\0\0\0\0\x05on"),
    ],
)
async def test_a_reply_that_breaks_off_never_looks_whole(gate: Bench, begun: bytes) -> None:
    async def dying(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(begun)
        await writer.drain()
        writer.close()

    await gate.sockets.listen(dying)
    with pytest.raises(asyncio.IncompleteReadError):
        await gate.ask(request())


async def test_a_reply_without_a_length_ends_with_its_connection(gate: Bench) -> None:
    async def old(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.0 200 OK\r\n\r\nhello")
        await writer.drain()
        writer.close()

    await gate.sockets.listen(old, port=8000)
    assert (await gate.ask(request(port=8000)))[2] == b"hello"


@pytest.mark.parametrize("reason", ["killed", "paused", "died"])
async def test_open_streams_end_with_their_sandbox(gate: Bench, reason: str) -> None:
    async def silent(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(ENVELOPE))
        await reader.read()

    await gate.sockets.listen(silent)
    reader, writer = await gate.connect()
    writer.write(request())
    await answer_head(reader)
    assert await answer_chunk(reader) == ENVELOPE
    gate.sockets.interrupt(reason=reason)
    assert await asyncio.wait_for(reader.read(), 5) == b"", "cut, without the chunk that would end it well"
    status, _, body = await gate.ask(request())
    assert status == 502
    assert b"was not found" in body


async def test_pooled_connections_do_not_outlive_a_pause(gate: Bench) -> None:
    ended = asyncio.Event()

    async def watched(reader: Reader, writer: Writer) -> None:
        await echo(reader, writer)
        ended.set()

    await gate.sockets.listen(watched)
    await gate.ask(request())
    assert gate.gateway.pool.sandboxes() == {"iabc"}
    gate.sockets.interrupt(reason="paused")
    await asyncio.wait_for(ended.wait(), 5)
    assert gate.gateway.pool.sandboxes() == set()


@pytest.mark.parametrize(("method", "status"), [("GET", 200), ("POST", 502)])
async def test_a_pooled_connection_that_died_idle(gate: Bench, method: str, status: int) -> None:
    """What may be asked twice is asked again; what may not is left to the client to decide."""

    async def once(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(reply(b"ok"))
        await read_request(reader)  # dies with the second request in its hands
        writer.close()

    await gate.sockets.listen(once)
    await gate.ask(request())
    assert (await gate.ask(request(method)))[0] == status


@pytest.mark.parametrize("junk", [b"SSH-2.0-OpenSSH\r\n", b"HTTP/1.1 200 OK\r\nA: " + b"x" * 100_000, b"\0" * 10])
async def test_what_is_not_http_is_a_bad_gateway(gate: Bench, junk: bytes) -> None:
    async def other(reader: Reader, writer: Writer) -> None:
        writer.write(junk)
        await reader.read()

    await gate.sockets.listen(other, port=22)
    status, _, body = await gate.ask(request(port=22))
    assert status == 502
    assert b'"code": 502' in body


async def test_data_nobody_asked_for_ends_the_connection(gate: Bench) -> None:
    answered = asyncio.Event()

    async def chatty(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(reply(b"ok"))
        await answered.wait()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nforged")
        await reader.read()
        writer.close()

    await gate.sockets.listen(chatty)
    assert (await gate.ask(request()))[2] == b"ok"
    (kept,) = gate.gateway.pool._idle["iabc"]
    answered.set()
    async with asyncio.timeout(10):
        while kept.usable:
            await asyncio.sleep(0.01)
    answered.clear()
    assert (await gate.ask(request()))[2] == b"ok"
    assert gate.sockets.dials == 2


async def test_head_and_empty_replies(gate: Bench) -> None:
    async def server(reader: Reader, writer: Writer) -> None:
        line, _, _ = await read_request(reader)
        if line.startswith("HEAD"):
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1234\r\n\r\n")
            return
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await read_request(reader)
        writer.write(b"HTTP/1.1 304 Not Modified\r\ncontent-length: 1234\r\netag: x\r\n\r\n")

    await gate.sockets.listen(server)
    reader, writer = await gate.connect()
    writer.write(request("HEAD", "/file"))
    status, headers = await answer_head(reader)
    assert (status, headers["content-length"]) == (200, "1234")
    writer.write(request("GET", "/health"))
    status, headers = await answer_head(reader)
    assert status == 204
    assert "transfer-encoding" not in headers
    writer.write(request("GET", "/cached"))
    status, headers = await answer_head(reader)
    assert (status, headers["etag"]) == (304, "x")
    assert gate.sockets.dials == 2, "a reply without a body leaves its connection usable"


@pytest.mark.parametrize("ended", [True, False])
async def test_a_reply_in_chunks_of_one_byte_is_parsed_in_turns(
    gate: Bench, ended: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count_parts(monkeypatch)

    async def tiny(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM + chunk(b"x") * 20_000 + (b"0\r\n\r\n" if ended else b""))
        writer.close()

    await gate.sockets.listen(tiny, port=8000)
    if ended:
        assert (await asyncio.wait_for(gate.ask(request(port=8000)), 20))[2] == b"x" * 20_000
    else:
        with pytest.raises(asyncio.IncompleteReadError) as broken:
            await asyncio.wait_for(gate.ask(request(port=8000)), 20)
        assert broken.value.partial == b""
    assert sum(turns) >= 20_000
    assert max(turns) <= MOST_PARTS


async def test_a_request_in_chunks_of_one_byte_is_parsed_in_turns(gate: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count_parts(monkeypatch)
    await gate.sockets.listen(echo)
    sent = request("POST", "/x", "Transfer-Encoding: chunked") + chunk(b"x") * 20_000 + b"0\r\n\r\n"
    reader, writer = await gate.connect()
    writer.write(sent + request())
    body = (await asyncio.wait_for(answer(reader), 20))[2]
    assert body.endswith(b"\n\n" + b"x" * 20_000)
    assert (await asyncio.wait_for(answer(reader), 20))[0] == 200, "what follows is the next request"
    assert sum(turns) >= 20_000
    assert max(turns) <= MOST_PARTS


async def test_a_slow_reader_of_tiny_chunks_gets_them_all(gate: Bench) -> None:
    """More than is read ahead, so that parsing stops and goes on."""

    async def tiny(reader: Reader, writer: Writer) -> None:
        await read_request(reader)
        writer.write(STREAM)
        for _ in range(40):
            writer.write(chunk(b"x" * 50) * 2000 + chunk(bytes(60_000)))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        writer.close()

    await gate.sockets.listen(tiny, port=8000)
    reader, writer = await gate.connect()
    writer.write(request(port=8000))
    await answer_head(reader)
    await asyncio.sleep(0.1)
    size = 0
    async with asyncio.timeout(20):
        while piece := await answer_chunk(reader):
            size += len(piece)
    assert size == 40 * 160_000
