"""Limits for the messages of an agent."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.agents import measure, wire
from sandyard.platform.domain.agents.measure import Measure, batches
from sandyard.platform.domain.agents.transcript import Transcript


def test_splits_lines_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "LINES", 2)
    monkeypatch.setattr(measure, "BYTES", 10)
    lines = [(2, b"a"), (4, b"b"), (17, b"c" * 12), (19, b"d")]
    assert list(batches(lines, 30)) == [(lines[:2], 4), (lines[2:3], 17), (lines[3:], 30)]
    assert list(batches(lines[:2], 30)) == [(lines[:2], 30)]
    assert list(batches([], 30)) == []


def test_reports_exceeded_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "MESSAGES", 1)
    told, made = Measure(), Transcript()
    for key in "ab":
        assert told.fault(made) is None
        made.apply({"sessionUpdate": "tool_call", "toolCallId": key})
    assert "1 messages" in str(told.fault(made))
    monkeypatch.setattr(measure, "REQUESTED", 10)
    told.count(wire.Notice("x", {}), 100)
    assert told.fault(Transcript()) is None
    told.count(wire.Request("1", "x", {}), 11)
    assert told.fault(Transcript()) is not None


@pytest.mark.parametrize(
    ("limit", "one"),
    [
        ("REQUESTS", wire.Notice("$/cancel_request", {})),
        ("REQUESTS", wire.Answer(1, {})),
        ("REQUESTS", wire.Refusal(1, 0, "x")),
        ("NOTICES", wire.Notice("_x", {})),
    ],
)
def test_limits_other_messages(monkeypatch: pytest.MonkeyPatch, limit: str, one: wire.Incoming) -> None:
    monkeypatch.setattr(measure, limit, 1)
    told = Measure()
    for _ in range(3):
        told.count(wire.Notice("session/update", {}), 1)
    told.count(one, 1)
    assert told.fault(Transcript()) is None
    told.count(one, 1)
    assert "more than 1 " in str(told.fault(Transcript()))
