"""Limits for the messages of an agent."""

from __future__ import annotations

import pytest

from sandyard.platform.domain.agents.acp import limits, wire
from sandyard.platform.domain.agents.acp.limits import MessageCounter, split_into_batches
from sandyard.platform.domain.agents.acp.transcript import Transcript


def test_splits_lines_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_LINES", 2)
    monkeypatch.setattr(limits, "BATCH_BYTES", 10)
    lines = [(2, b"a"), (4, b"b"), (17, b"c" * 12), (19, b"d")]
    assert list(split_into_batches(lines, 30)) == [(lines[:2], 4), (lines[2:3], 17), (lines[3:], 30)]
    assert list(split_into_batches(lines[:2], 30)) == [(lines[:2], 30)]
    assert list(split_into_batches([], 30)) == []


def test_reports_exceeded_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_MESSAGES", 1)
    told, made = MessageCounter(), Transcript()
    for key in "ab":
        assert told.find_exceeded_limit(made) is None
        made.apply({"sessionUpdate": "tool_call", "toolCallId": key})
    assert "1 messages" in str(told.find_exceeded_limit(made))
    monkeypatch.setattr(limits, "MAX_REQUEST_BYTES", 10)
    told.count(wire.Notification("x", {}), 100)
    assert told.find_exceeded_limit(Transcript()) is None
    told.count(wire.Request("1", "x", {}), 11)
    assert told.find_exceeded_limit(Transcript()) is not None


@pytest.mark.parametrize(
    ("limit", "one"),
    [
        ("MAX_REQUESTS", wire.Notification("$/cancel_request", {})),
        ("MAX_REQUESTS", wire.Response(1, {})),
        ("MAX_REQUESTS", wire.ErrorResponse(1, 0, "x")),
        ("MAX_NOTIFICATIONS", wire.Notification("_x", {})),
    ],
)
def test_limits_other_messages(monkeypatch: pytest.MonkeyPatch, limit: str, one: wire.Incoming) -> None:
    monkeypatch.setattr(limits, limit, 1)
    told = MessageCounter()
    for _ in range(3):
        told.count(wire.Notification("session/update", {}), 1)
    told.count(one, 1)
    assert told.find_exceeded_limit(Transcript()) is None
    told.count(one, 1)
    assert "more than 1 " in str(told.find_exceeded_limit(Transcript()))
