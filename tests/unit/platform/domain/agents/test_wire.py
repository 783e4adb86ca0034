"""Lines of JSON-RPC, also from programs that wish us no good."""

from __future__ import annotations

import json

import pytest

from sandyard.platform.domain.agents import wire


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
def test_what_is_no_message_is_nothing(line: bytes) -> None:
    assert wire.parse(line) is None


def test_messages_are_told_apart() -> None:
    assert wire.parse(b'{"id":3,"result":{"a":1}}') == wire.Answer(3, {"a": 1})
    assert wire.parse(b'{"id":3,"result":null}') == wire.Answer(3, {})
    assert wire.parse(b'{"id":"q","method":"m","params":[]}') == wire.Request('"q"', "m", {})
    assert wire.parse(b'{"method":"m","params":{"x":1e999}}') == wire.Notice("m", {"x": None})
    refused = wire.parse(b'{"id":3,"error":{"code":-1,"message":"No","data":{"details":"because"}}}')
    assert refused == wire.Refusal(3, -1, "No: because")
    assert wire.parse(b'{"id":3,"error":"no"}') == wire.Refusal(3, 0, "no")


def test_what_a_database_cannot_keep_is_replaced() -> None:
    told = wire.parse(b'{"method":"m","params":{"a":"x\\u0000\\ud800y"}}')
    assert told == wire.Notice("m", {"a": "x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}y"})


def test_what_is_said_is_one_line_of_ascii() -> None:
    line = wire.request(7, "session/prompt", {"text": "zwei\nZeilen \N{SNOWMAN}"})
    assert line.isascii()
    assert line.count("\n") == 1
    assert json.loads(line)["params"]["text"] == "zwei\nZeilen \N{SNOWMAN}"
    assert json.loads(wire.answer('"q1"', {"a": 1})) == {"jsonrpc": "2.0", "id": "q1", "result": {"a": 1}}


def test_lines_are_counted_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "LONGEST", 10)
    lines = wire.Lines(100)
    assert lines.feed(b"ab") == []
    assert (lines.consumed, lines.seen) == (100, 102)
    assert lines.feed(b"c\nde\nf") == [(104, b"abc"), (107, b"de")]
    assert (lines.consumed, lines.seen) == (107, 108)
    assert lines.feed(b"x" * 30) == []  # longer than it may be
    assert (lines.consumed, lines.seen) == (107, 138)
    assert lines.feed(b"y" * 30 + b"\nok\n") == [(172, b"ok")]
    assert (lines.consumed, lines.seen) == (172, 172)


def test_a_line_of_a_million_values_is_not_read() -> None:
    assert wire.parse(b'{"method": "x", "params": {"a": [' + b"{}," * 600_000 + b"{}]}}") is None
    assert wire.parse(b'{"method": "x", "params": {"a": "' + b"y" * 600_000 + b'"}}') is not None
