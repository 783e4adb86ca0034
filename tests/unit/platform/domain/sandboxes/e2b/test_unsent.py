"""Programs in a sandbox that never read, never stop, or still send after cancellation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandyard.platform.domain.sandboxes.e2b import EngineError, streams
from sandyard.platform.domain.sandboxes.e2b.relay import RelayStream


async def test_limits_unread_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNSENT", 1000)
    transport: Any = None
    stream = streams.LineStream(transport)
    for _ in range(100):
        stream.send_line("x" * 100)
    assert len(stream.unsent) == 11
    await stream.process.receive("anything\n")
    with pytest.raises(EngineError, match="does not read"):
        await anext(stream.read_lines())
    assert len(stream.take_batch()) == 11 * 101
    assert stream.unsent_size == 0


async def test_busy_stream_yields_to_others() -> None:
    transport: Any = None
    stream = streams.LineStream(transport)
    await stream.process.receive(f":: {stream.mark}\n" + "x\n" * 10_000)
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    received = stream.read_lines()
    for _ in range(10_000):
        await anext(received)
    task.cancel()
    assert turns >= 10_000 // streams.LINES_AT_ONCE - 1


@pytest.mark.parametrize("kind", ["lines", "frames"])
async def test_data_arriving_with_cancellation_does_not_undo_it(kind: str) -> None:
    transport: Any = None
    stream = streams.LineStream(transport) if kind == "lines" else RelayStream(transport, 30)
    received = stream.read_lines() if isinstance(stream, streams.LineStream) else stream.frames()

    async def hear() -> None:
        async for _ in received:
            pass

    hearing = asyncio.create_task(hear())
    await asyncio.sleep(0)
    await stream.process.receive("anything\n")
    hearing.cancel()
    await asyncio.wait((hearing,), timeout=5)
    assert hearing.cancelled()
