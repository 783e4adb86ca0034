from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator

import pytest

from sandyard.engine.sandboxes.agent import _envelopes
from sandyard.kit.errors import UnreachableError


async def body(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield struct.pack(">BI", 0, len(text)) + text


async def test_messages_of_the_agent() -> None:
    data = {"event": {"data": {"stdout": "A" * 100_000}}}
    assert [one async for one in _envelopes(body(json.dumps(data).encode(), b"[]"))] == [(0, data), (0, {})]


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"[" + b"{}," * 10_000 + b"0]", b"\xff"])
async def test_what_no_agent_says_ends_the_call(text: bytes) -> None:
    with pytest.raises(UnreachableError, match="not JSON"):
        assert [one async for one in _envelopes(body(text))]
