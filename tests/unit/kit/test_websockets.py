"""WebSockets of the platform's server: floods of frames, and raw connections whose frames are passed on unparsed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect

from sandyard.kit import websockets as bounded
from sandyard.kit.pacing import PARTS
from sandyard.kit.websockets import ABORT, RAW, SLICE_BYTES, BoundedWebSocket, FrameTracker
from tests.harness.websocket_frames import CLOSE, PING, PONG, TEXT, UPGRADE, frame, serving
from tests.unit.turns import count_parts


async def collect(scope: Any, receive: Any, send: Any) -> None:
    """Count messages, and send the count when the message is `end`."""
    await receive()
    await send({"type": "websocket.accept"})
    count = 0
    while (message := await receive())["type"] == "websocket.receive":
        count += 1
        if message.get("text") == "end":
            await send({"type": "websocket.send", "text": str(count)})


async def echo_raw(scope: Any, receive: Any, send: Any) -> None:
    assert RAW in scope["extensions"]
    await receive()
    await send({"type": RAW, "headers": [(b"Sec-WebSocket-Accept", b"whatever")]})
    while (message := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": message["bytes"]})


async def upgrade(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(UPGRADE)
    return reader, writer, await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize("opcode", [TEXT, PING])
async def test_a_flood_of_frames_is_parsed_in_turns(opcode: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = count_parts(monkeypatch)
    async with serving(collect) as port, asyncio.timeout(20):
        reader, writer, _ = await upgrade(port)
        writer.write(frame(opcode) * 2000 + frame(TEXT, b"end"))
        count = b"2001" if opcode == TEXT else b"1"
        await reader.readuntil(frame(TEXT, count, masked=False))
        writer.close()
    assert sum(turns) >= 2001
    assert max(turns) <= PARTS + SLICE_BYTES // len(frame(opcode))


async def test_a_client_that_does_not_read_gets_one_pong_for_many_pings() -> None:
    class FakeTransport(asyncio.Transport):
        written = b""

        def is_closing(self) -> bool:
            return False

        def is_reading(self) -> bool:
            return True

        def get_write_buffer_size(self) -> int:
            return 0

        def close(self) -> None:
            pass

        def write(self, data: Any) -> None:
            self.written += data

    config = uvicorn.Config(collect, ws=BoundedWebSocket, lifespan="off", log_config=None)
    config.load()
    transport, protocol = FakeTransport(), BoundedWebSocket(config, uvicorn.server.ServerState(), {})
    protocol.connection_made(transport)
    protocol.data_received(UPGRADE)
    await asyncio.sleep(0)
    transport.written = b""
    protocol.pause_writing()
    protocol.data_received(frame(PING, b"1") + frame(PING, b"2"))
    protocol.data_received(frame(PING, b"3"))
    assert transport.written == b""
    protocol.resume_writing()
    assert transport.written == frame(PONG, b"3", masked=False)
    protocol.data_received(frame(PING, b"4"))
    assert transport.written.endswith(frame(PONG, b"4", masked=False))
    protocol.connection_lost(None)


async def test_ordinary_clients_can_exchange_messages() -> None:
    async def echo(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({**message, "type": "websocket.send"})

    async with serving(echo) as port, connect(f"ws://127.0.0.1:{port}", max_size=None) as client, asyncio.timeout(20):
        for message in ("", "hello", b"\x00\xff", b"x" * 300_000):
            await client.send(message)
            assert await client.recv() == message
        await client.ping()


async def test_raw_bytes_are_passed_on_unchanged() -> None:
    async with serving(echo_raw) as port, asyncio.timeout(20):
        reader, writer, head = await upgrade(port)
        assert head.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Accept: whatever\r\n" in head
        for data in (b"no frame at all", frame(TEXT) * 10_000, bytes(3_000_000)):
            writer.write(data)
            assert await reader.readexactly(len(data)) == data
        writer.close()


async def test_raw_connections_get_pings_between_frames() -> None:
    message = frame(TEXT, b"hello", masked=False)
    continue_sending = asyncio.Event()

    async def pause_within_frame(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": RAW, "headers": []})
        await send({"type": "websocket.send", "bytes": message[:3]})
        await continue_sending.wait()
        await send({"type": "websocket.send", "bytes": message[3:]})
        await receive()

    async with serving(pause_within_frame, ws_ping_interval=0.02) as port, asyncio.timeout(20):
        reader, writer, _ = await upgrade(port)
        assert await reader.readexactly(3) == message[:3]
        await asyncio.sleep(0.1)
        continue_sending.set()
        assert await reader.readexactly(len(message) - 3) == message[3:], "no ping within a frame"
        assert await reader.readexactly(2) == frame(PING, masked=False)
        writer.close()


async def test_a_raw_connection_ends_with_its_application() -> None:
    async def send_and_end(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": RAW, "headers": []})
        await send({"type": "websocket.send", "bytes": b"bye"})

    async with serving(send_and_end) as port, asyncio.timeout(20):
        reader, _, _ = await upgrade(port)
        assert await reader.read() == b"bye"


@pytest.mark.parametrize(("step", "size"), [(1, 300), (2, 300), (7, 300), (1000, 70_000)])
def test_frame_boundaries_are_tracked(step: int, size: int) -> None:
    messages = frame(TEXT, b"a" * 100) + frame(0x02, bytes(size), masked=False) + frame(TEXT)
    control = frame(PING, b"1234") + frame(PONG) + frame(CLOSE, b"\x03\xe8", masked=False)
    for data, found in ((messages, True), (control, False), (messages, True)):
        tracker = FrameTracker()
        pieces = [data[at : at + step] for at in range(0, len(data), step)]
        seen = [tracker.feed(piece) for piece in pieces[:-1]]
        assert not tracker.between_frames or not pieces[:-1]
        assert any([*seen, tracker.feed(pieces[-1])]) is found
        assert tracker.between_frames


def test_tracking_stops_during_a_flood_of_frames() -> None:
    now = 0.0
    tracker = FrameTracker(lambda: now)
    for _ in range(15):
        assert not tracker.feed(frame(PONG) * bounded.FRAMES_PER_SECOND)
        now += 1
    assert tracker.between_frames, "this rate is normal for a busy connection"
    assert tracker.feed(frame(PONG) * (bounded.FRAMES_AT_ONCE + 1))
    assert tracker.lost
    assert tracker.feed(frame(PONG))
    assert not tracker.between_frames


async def test_an_application_can_abort_a_connection_whose_client_does_not_read() -> None:
    aborted, size = asyncio.Event(), 64 << 20

    async def send_and_abort(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.send", "bytes": bytes(size)})
        scope["extensions"][ABORT]()
        aborted.set()

    async with asyncio.timeout(30), serving(send_and_abort) as port:
        reader, _, _ = await upgrade(port)
        await aborted.wait()
        received = 0
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 20):
                received += len(data)
        assert received < size, "what was not read is dropped"
