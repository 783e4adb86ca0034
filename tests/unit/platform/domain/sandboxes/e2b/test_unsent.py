"""A program in a sandbox that never reads."""

from __future__ import annotations

from typing import Any

import pytest

from sandyard.platform.domain.sandboxes.e2b import EngineError, streams


async def test_what_is_not_read_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "UNSENT", 1000)
    gate: Any = None
    stream = streams.LineStream(gate)
    for _ in range(100):
        stream.say("x" * 100)
    assert len(stream._unsent) == 11
    stream._queue.put_nowait("anything\n")
    with pytest.raises(EngineError, match="does not read"):
        await anext(stream.lines())
    assert len(stream._packed()) == 11 * 101
    assert stream._waiting == 0
