"""Lines of JSON-RPC, including hostile ones."""

from __future__ import annotations

import json

import pytest

from sandyard.platform.domain.agents.acp import wire


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"Welcome to bash",
        b"[1, 2]",
        b'{"id": 1',
        b'{"id": NaN, "result": {}}',
        b'{"id": true, "result": {}}',
        b'{"id": [1], "method": "x"}',
        b'{"id": "' + b"x" * 300 + b'", "method": "x"}',
        b'{"a":' * 100_000,
        b'{"id": 1.5, "result": {}}',
        b'{"id": ' + b"9" * 5000 + b', "result": {}}',
    ],
)
def test_ignores_lines_that_are_not_messages(line: bytes) -> None:
    assert wire.parse_line(line) is None


def test_parses_each_kind_of_message() -> None:
    assert wire.parse_line(b'{"id":3,"result":{"a":1}}') == wire.Response(3, {"a": 1})
    assert wire.parse_line(b'{"id":3,"result":null}') == wire.Response(3, {})
    assert wire.parse_line(b'{"id":"q","method":"m","params":[]}') == wire.Request('"q"', "m", {})
    assert wire.parse_line(b'{"method":"m","params":{"x":1e999}}') == wire.Notification("m", {"x": None})
    refused = wire.parse_line(b'{"id":3,"error":{"code":-1,"message":"No","data":{"details":"because"}}}')
    assert refused == wire.ErrorResponse(3, -1, "No: because")
    assert wire.parse_line(b'{"id":3,"error":"no"}') == wire.ErrorResponse(3, 0, "no")


def test_replaces_characters_that_cannot_be_stored() -> None:
    notification = wire.parse_line(b'{"method":"m","params":{"a":"x\\u0000\\ud800y"}}')
    assert notification == wire.Notification("m", {"a": "x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}y"})


def test_encodes_one_line_of_ascii() -> None:
    line = wire.encode_request(7, "session/prompt", {"text": "zwei\nZeilen \N{SNOWMAN}"})
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line)["params"]["text"] == "zwei\nZeilen \N{SNOWMAN}"
    assert json.loads(wire.encode_response('"q1"', {"a": 1})) == {"jsonrpc": "2.0", "id": "q1", "result": {"a": 1}}


def test_counts_lines_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_LINE_BYTES", 10)
    lines = wire.LineSplitter(100)
    assert lines.feed(b"ab") == []
    assert (lines.consumed, lines.seen) == (100, 102)
    assert lines.feed(b"c\nde\nf") == [(104, b"abc"), (107, b"de")]
    assert (lines.consumed, lines.seen) == (107, 108)
    assert lines.feed(b"x" * 30) == []  # longer than the limit
    assert (lines.consumed, lines.seen) == (107, 138)
    assert lines.feed(b"y" * 30 + b"\nok\n") == [(172, b"ok")]
    assert (lines.consumed, lines.seen) == (172, 172)


def test_ignores_line_with_too_many_values() -> None:
    assert wire.parse_line(b'{"method": "x", "params": {"a": [' + b"{}," * 600_000 + b"{}]}}") is None
    assert wire.parse_line(b'{"method": "x", "params": {"a": "' + b"y" * 600_000 + b'"}}') is not None
