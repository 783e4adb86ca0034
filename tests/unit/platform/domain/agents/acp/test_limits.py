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
    counter, made = MessageCounter(), Transcript()
    for key in "ab":
        assert counter.find_exceeded_limit(made) is None
        made.apply({"sessionUpdate": "tool_call", "toolCallId": key})
    assert "1 messages" in str(counter.find_exceeded_limit(made))
    monkeypatch.setattr(limits, "MAX_REQUEST_BYTES", 10)
    counter.count(wire.Notification("x", {}), 100)
    assert counter.find_exceeded_limit(Transcript()) is None
    counter.count(wire.Request("1", "x", {}), 11)
    assert counter.find_exceeded_limit(Transcript()) is not None


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("MAX_REQUESTS", wire.Notification("$/cancel_request", {})),
        ("MAX_REQUESTS", wire.Response(1, {})),
        ("MAX_REQUESTS", wire.ErrorResponse(1, 0, "x")),
        ("MAX_NOTIFICATIONS", wire.Notification("_x", {})),
    ],
)
def test_limits_other_messages(monkeypatch: pytest.MonkeyPatch, limit: str, message: wire.Incoming) -> None:
    monkeypatch.setattr(limits, limit, 1)
    counter = MessageCounter()
    for _ in range(3):
        counter.count(wire.Notification("session/update", {}), 1)
    counter.count(message, 1)
    assert counter.find_exceeded_limit(Transcript()) is None
    counter.count(message, 1)
    assert "more than 1 " in str(counter.find_exceeded_limit(Transcript()))


def test_changes_of_what_was_stored_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is written again, with an event that is kept."""
    monkeypatch.setattr(limits, "MAX_CHANGES", 10)
    transcript, counter = Transcript(), MessageCounter()

    def update(status: str) -> int:
        call = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "title": "t", "status": status}
        transcript.apply(call)
        changes = len(transcript.take_changes())
        transcript.mark_written()
        return changes

    assert [update("pending"), update("pending")] == [1, 0], "nothing has changed"
    for number in range(10):
        assert update("in_progress" if number % 2 == 0 else "pending") == 1
        assert counter.find_exceeded_limit(transcript) is None
    update("completed")
    assert "more than 10 changes" in str(counter.find_exceeded_limit(transcript))
