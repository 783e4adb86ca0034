"""ZeroMQ's wire protocol against a peer that behaves like libzmq."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sandyard.engine.interpreter import zmtp

READY = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER\x08Identity\x00\x00\x00\x00"


async def test_frames_are_sent_and_received(tmp_path: Path) -> None:
    received: asyncio.Queue[zmtp.Frames] = asyncio.Queue()
    peer_received: asyncio.Queue[bytes] = asyncio.Queue()

    async def kernel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        greeting = await reader.readexactly(64)
        assert greeting[:1] + greeting[9:10] == b"\xff\x7f"
        greeting_and_ready = zmtp.GREETING + zmtp.encode_frame(READY, flags=zmtp.COMMAND)
        for position in range(0, len(greeting_and_ready), 7):  # in pieces, as a network may deliver it
            writer.write(greeting_and_ready[position : position + 7])
            await writer.drain()
        await peer_received.put(await reader.readexactly(2 + 6 + 12 + 4 + 6))
        long = b"x" * 70_000
        writer.write(
            zmtp.encode_frame(b"a", more=True)
            + zmtp.encode_frame(long)
            + zmtp.encode_frame(b"\x04PING\x00\x05hi", flags=zmtp.COMMAND)
        )
        await peer_received.put(await reader.readexactly(2 + 5 + 2))
        await peer_received.put(await reader.readexactly(2 + 3 + 9 + 300))
        writer.close()

    path = str(tmp_path / "kernel")
    async with await asyncio.start_unix_server(kernel, path):
        peer = await zmtp.connect(path, "DEALER", received.put_nowait)
        assert await peer_received.get() == b"\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        assert await asyncio.wait_for(received.get(), 5) == [b"a", b"x" * 70_000]
        assert await peer_received.get() == b"\x04\x07\x04PONGhi"
        peer.send([b"one", b"y" * 300])
        assert await peer_received.get() == b"\x01\x03one" + b"\x02" + (300).to_bytes(8, "big") + b"y" * 300
        peer.close()
