from __future__ import annotations

import base64
import json
import struct
from collections.abc import AsyncIterator

import pytest

from sandyard.engine.sandboxes.agent import read_envelopes, split_output
from sandyard.kit.errors import UnreachableError


async def envelopes(*texts: bytes) -> AsyncIterator[bytes]:
    for text in texts:
        yield struct.pack(">BI", 0, len(text)) + text


async def test_agent_messages_are_parsed() -> None:
    data = {"event": {"data": {"stdout": "A" * 100_000}}}
    assert [envelope async for envelope in read_envelopes(envelopes(json.dumps(data).encode(), b"[]"))] == [
        (0, data),
        (0, {}),
    ]


@pytest.mark.parametrize("text", [b"{", b"[" * 100_000, b"[" + b"{}," * 10_000 + b"0]", b"\xff"])
async def test_an_invalid_agent_message_fails_the_call(text: bytes) -> None:
    with pytest.raises(UnreachableError, match="not valid JSON"):
        assert [envelope async for envelope in read_envelopes(envelopes(text))]


def test_output_with_many_lines_is_split_into_small_pieces() -> None:
    few, many = b"x" * 100_000 + b"\n", b"\n" * 100_000
    event_data = {"stdout": base64.b64encode(few).decode(), "stderr": base64.b64encode(many).decode()}
    pieces = list(split_output(event_data))
    assert pieces[0] == ("stdout", few)
    assert b"".join(piece for stream, piece in pieces if stream == "stderr") == many
    assert max(piece.count(b"\n") for _, piece in pieces) <= 512
    assert list(split_output({"stdout": ""})) == []
    with pytest.raises(UnreachableError):
        list(split_output({"stdout": "A"}))
