from __future__ import annotations

from typing import Any

import pytest

from sandyard.engine.interpreter import messages, outputs
from sandyard.engine.interpreter.messages import BadMessageError, Message, Signer


def make_event(kind: str, **content: Any) -> outputs.Event | None:
    return outputs.make_event(Message(kind, "parent", content))


def test_results_are_converted() -> None:
    data = {"text/plain": "'it'", "text/html": "<b>", "e2b/data": {"a": [1.0, float("nan")]}, "application/x-own": 1}
    assert make_event("execute_result", data=data) == {
        "type": "result",
        "is_main_result": True,
        "text": "it",
        "html": "<b>",
        "data": {"a": [1.0, None]},
        "extra": {"application/x-own": 1},
    }
    assert make_event("display_data", data={"text/latex": "x"}) == {
        "type": "result",
        "is_main_result": False,
        "latex": "x",
    }


@pytest.mark.parametrize(
    ("given", "expected"), [("'a'", "a"), ('"it\'s"', "it's"), ("'", "'"), ("'a'b", "'a'b"), ("1", "1")]
)
def test_a_string_is_shown_without_its_quotes(given: str, expected: str) -> None:
    assert outputs.make_result({"text/plain": given}, is_main=True)["text"] == expected


def test_streams_and_errors_are_converted() -> None:
    out = make_event("stream", name="stdout", text="x")
    assert out is not None
    assert (out["type"], out["text"], isinstance(out["timestamp"], int)) == ("stdout", "x", True)
    assert make_event("error", ename="E", evalue="v", traceback=["a", "b"]) == outputs.make_error("E", "v", "a\nb")
    assert make_event("execute_input", execution_count=3) == {"type": "number_of_executions", "execution_count": 3}
    for kind in ("status", "clear_output", "comm_open", "stream"):
        assert make_event(kind) is None


def test_messages_are_written_and_parsed() -> None:
    request, frames = Signer("key").make_message("execute_request", messages.make_execute_content("1"), {"a": 1})
    message = messages.parse_message([b"topic", *frames])
    assert (message.kind, message.parent, message.content["code"]) == ("execute_request", "", "1")
    assert len(request) == 32
    for broken in (
        [],
        [b"x"],
        [messages.DELIMITER, b"sig", b"{}", b"{}"],
        [messages.DELIMITER, b"", b"[", b"", b"", b""],
    ):
        with pytest.raises(BadMessageError):
            messages.parse_message(broken)
