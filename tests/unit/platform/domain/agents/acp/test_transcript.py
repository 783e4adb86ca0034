"""Messages from the updates of an agent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandyard.platform.domain.agents.acp import client, transcript
from sandyard.platform.domain.agents.acp.transcript import CALL_LIMIT, EVENT_LIMIT, PART_LIMIT, VALUE_LIMIT, Transcript


def text(words: str, kind: str = "agent_message_chunk", **more: Any) -> dict[str, Any]:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": words}, **more}


def parts(made: Transcript) -> list[dict[str, Any]]:
    return [entry.part for entry in made.take_changes()]


def test_consecutive_chunks_form_one_message() -> None:
    made = Transcript()
    for update in (text("a"), text("b"), text("c", "agent_thought_chunk"), text("d"), text("e", messageId="2")):
        made.apply(update)
    found = made.take_changes()
    assert [(entry.part["type"], entry.part["text"], entry.delta) for entry in found] == [
        ("text", "ab", "ab"),
        ("thought", "c", "c"),
        ("text", "d", "d"),
        ("text", "e", "e"),
    ]
    assert [entry.id for entry in found] == sorted(entry.id for entry in found)
    made.mark_written()
    made.apply(text("f", messageId="2"))
    (entry,) = made.take_changes()
    assert (entry.new, entry.part["text"], entry.delta) == (False, "ef", "f")


def test_continues_known_messages() -> None:
    first = Transcript("msg_0")
    first.apply({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "make"})
    first.apply(text("abc"))
    known = [(entry.id, entry.part) for entry in first.take_changes()]
    second = Transcript("", known)
    second.apply(text("def"))
    second.apply({"sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed"})
    found = {entry.id: entry for entry in second.take_changes()}
    assert set(found) == {id_ for id_, _ in known}
    assert found[known[1][0]].part["text"] == "abcdef"
    assert (found[known[0][0]].part["title"], found[known[0][0]].part["status"]) == ("make", "completed")


def test_tool_call_keeps_fields_missing_in_update() -> None:
    made = Transcript()
    made.apply(
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "t",
            "title": "Edit",
            "kind": "edit",
            "locations": [{"path": "a.py", "line": 3}, {"no": 1}],
            "content": [{"type": "diff", "path": "a.py", "oldText": None, "newText": "x"}, {"type": "strange"}],
            "rawInput": {"a": 1},
        }
    )
    made.apply(
        {
            "sessionUpdate": "tool_call_update",
            "toolCallId": "t",
            "status": "completed",
            "kind": None,
            "content": [
                {"type": "content", "content": {"type": "text", "text": "done"}},
                {"type": "terminal", "terminalId": "1"},
            ],
        }
    )
    (part,) = parts(made)
    assert part == {
        "type": "tool_call",
        "toolCallId": "t",
        "title": "Edit",
        "kind": "edit",
        "status": "completed",
        "locations": [{"path": "a.py", "line": 3}],
        "content": [{"type": "text", "text": "done"}, {"type": "terminal", "terminalId": "1"}],
        "input": {"a": 1},
        "output": None,
    }


def test_codex_command_has_output() -> None:
    made = Transcript()
    common = {"call_id": "c", "turn_id": "t", "process_id": "1", "command": ["/bin/bash", "-lc", "ls"], "cwd": "/w"}
    begun = {"sessionUpdate": "tool_call", "toolCallId": "c", "title": "ls", "kind": "execute", "rawInput": common}
    printed = {"stdout": "a.py\n", "aggregated_output": "a.py\n", "formatted_output": "a.py\n", "stderr": ""}
    ended = {"sessionUpdate": "tool_call_update", "toolCallId": "c", "rawOutput": {**common, **printed, "exit_code": 0}}
    made.apply(begun)
    made.apply(ended)
    (part,) = parts(made)
    assert part["content"] == [{"type": "text", "text": "a.py\n"}]
    assert part["input"] == {"command": "ls", "cwd": "/w"}
    assert part["output"] == {"command": "ls", "cwd": "/w", "exit_code": 0}


def test_returns_facts_and_ignores_unknown_updates() -> None:
    made = Transcript()
    mode = made.apply({"sessionUpdate": "current_mode_update", "currentModeId": "plan"})
    assert mode is not None
    assert mode.options == {"currentMode": "plan"}
    used = made.apply({"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 0.5}})
    assert used is not None
    assert used.usage == {"context": {"used": 1, "size": 2, "cost": {"amount": 0.5, "currency": "USD"}}}
    strange: list[dict[str, Any]] = [
        {},
        {"sessionUpdate": 3},
        {"sessionUpdate": "of tomorrow"},
        {"sessionUpdate": "agent_message_chunk", "content": "text"},
        {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": 5}},
        {"sessionUpdate": "tool_call"},
        {"sessionUpdate": "plan", "entries": "none"},
        {"sessionUpdate": "usage_update", "used": "many"},
        {"sessionUpdate": "config_option_update", "configOptions": 1},
    ]
    for update in strange:
        facts = made.apply(update)
        assert facts is None or not (facts.options or facts.usage)
    assert parts(made) == []


def test_limits_size_of_parts() -> None:
    made = Transcript()
    made.apply(text("x" * (PART_LIMIT + 5)))
    made.apply(
        {
            "sessionUpdate": "tool_call",
            "toolCallId": "t",
            "rawInput": {"a": "y" * 10_000_000},
            "content": [{"type": "content", "content": {"type": "text", "text": "z" * 60_000}}] * 100,
        }
    )
    one, two, call = parts(made)
    assert (len(one["text"]), len(two["text"])) == (PART_LIMIT, 5)
    assert len(json.dumps(call)) < CALL_LIMIT * 1.1
    for part in (one, call):
        assert len(json.dumps(transcript.to_event_part(part))) <= EVENT_LIMIT * 1.1
    assert "".join(transcript.split_into_deltas("ä" * 5000)) == "ä" * 5000


@pytest.mark.parametrize("pieces", [10, 100])
def test_cuts_content_at_last_piece_that_fits(monkeypatch: pytest.MonkeyPatch, pieces: int) -> None:
    """It is serialized only a few times, however many pieces it has, because that blocks the loop."""
    written, dumps = 0, json.dumps

    def count_and_dump(value: Any, **options: Any) -> str:
        nonlocal written
        made = dumps(value, **options)
        written += len(made)
        return made

    monkeypatch.setattr(json, "dumps", count_and_dump)
    made = Transcript()
    content = [{"type": "content", "content": {"type": "text", "text": "z" * VALUE_LIMIT}}] * pieces
    made.apply({"sessionUpdate": "tool_call", "toolCallId": "t", "content": content})
    assert written < 5 * len(dumps(content))
    (call,) = parts(made)
    one = call["content"][0]
    assert call["content"] == [one] * len(call["content"])
    assert len(dumps(call)) <= CALL_LIMIT < len(dumps({**call, "content": [*call["content"], one]}))


def test_ids_within_a_millisecond_are_ordered() -> None:
    last = "msg_00zzzzzzzzaaaaaaaaaa"
    for _ in range(3):
        made = transcript.next_message_id(last)
        assert made > last
        assert len(made) == len(last)
        last = made


def test_summary_contains_last_messages() -> None:
    conversation = [("user", [{"type": "text", "text": f"question {n} " + "x" * 1000}]) for n in range(100)]
    conversation.append(("agent", [{"type": "tool_call", "title": "make", "status": "completed"}]))
    summary = client.write_summary(conversation)
    assert summary is not None
    assert len(summary) < client.SUMMARY_LIMIT * 1.1
    assert "question 99" in summary
    assert "question 3 " not in summary
    assert "You did: make (completed)" in summary
    assert client.write_summary([]) is None


def test_ignores_values_of_wrong_type() -> None:
    made = Transcript()
    made.apply({"sessionUpdate": ["tool_call"]})
    made.apply({"sessionUpdate": {}})
    made.apply(
        {"sessionUpdate": "tool_call", "toolCallId": "t", "kind": [], "status": {}, "locations": 5, "content": "x"}
    )
    (part,) = parts(made)
    assert (part["kind"], part["status"]) == ("other", "pending")


def test_tracks_weight() -> None:
    made = Transcript()
    for _ in range(3):
        made.apply({"sessionUpdate": "tool_call", "toolCallId": "t", "rawInput": "x" * 1000})
    made.apply(text("y" * 500))
    assert len(made) == 2
    assert 1500 < made.weight < 2500
    again = Transcript(known=[(entry.id, entry.part) for entry in made.take_changes()])
    assert abs(again.weight - made.weight) < 100


def test_small_update_of_large_call_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    made, encoded = Transcript(), list[int]()
    content = [{"type": "content", "content": {"type": "text", "text": "x" * 60_000}}] * 8
    made.apply({"sessionUpdate": "tool_call", "toolCallId": "t", "content": content})

    def measure(value: Any) -> int:
        encoded.append(real(value))
        return encoded[-1]

    real = transcript.compute_json_size
    monkeypatch.setattr(transcript, "compute_json_size", measure)
    for number in range(10):
        made.apply({"sessionUpdate": "tool_call_update", "toolCallId": "t", "title": f"step {number}"})
    assert sum(encoded) < 1000
    (part,) = parts(made)
    assert part["title"] == "step 9"
    assert made.weight == real(part)
