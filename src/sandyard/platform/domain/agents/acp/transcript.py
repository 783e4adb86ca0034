"""Turn an agent's updates into messages of typed parts. Pure: `take_changes` returns what to write.

Consecutive chunks of text form one message; a tool call is one message that changes. Unknown kinds of updates are
ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models.message_parts import (
    ImagePart,
    MessagePart,
    PlanPart,
    TextPart,
    ThoughtPart,
    ToolCallContent,
    ToolCallFields,
    ToolCallPart,
)
from sandyard.platform.db.models.sessions import TurnUsage
from sandyard.platform.domain.agents.json_columns import RunOptions, SlashCommand

PART_LIMIT = 256 << 10
"""Characters of a text. Longer texts continue in a new message."""
VALUE_LIMIT = 64 << 10
"""Characters of each piece of a tool call. The rest is cut off and marked."""
CALL_LIMIT = 512 << 10
"""Characters stored of one tool call in total."""
PIECES = 200
EVENT_LIMIT = 4096
CUT = "… (cut)"
_TEXT_UPDATES: dict[str, Literal["text", "thought"]] = {"agent_message_chunk": "text", "agent_thought_chunk": "thought"}
_KINDS = frozenset(("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"))
_STATUSES = frozenset(("pending", "in_progress", "completed", "failed"))
OPEN_CALLS = ("pending", "in_progress")
"""Statuses of open tool calls. Besides those of the protocol there is `cancelled`, for calls whose turn ended before
they did."""
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(slots=True)
class TranscriptEntry:
    """A message of the agent with one part. `delta` is the text added since the last call of `take_changes`."""

    id: str
    part: MessagePart
    new: bool = True
    changed: bool = False
    delta: str = ""
    agent_message_id: str | None = None  # the agent's id of the message this belongs to
    weight: int = 0


@dataclass(frozen=True, slots=True)
class ReportedState:
    """The content of an update that is not part of the transcript: options of the agent, and its own usage counts."""

    options: RunOptions = field(default_factory=RunOptions)
    usage: TurnUsage = field(default_factory=TurnUsage)


def next_message_id(after: str) -> str:
    """Return a new id that sorts after `after`, even within the same millisecond."""
    made = make_ordered_id("msg_")
    if made > after:
        return made
    number = int(after[4:14], 36) + 1
    digits = ""
    for _ in range(10):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return made[:4] + digits + made[14:]


class Transcript:
    """The transcript of one turn. `last` is the newest message id of its session; `known` are the turn's messages,
    oldest first."""

    def __init__(self, last: str = "", known: Iterable[tuple[str, MessagePart]] = ()) -> None:
        self._entries = [TranscriptEntry(id, part, new=False, weight=compute_json_size(part)) for id, part in known]
        self.weight = sum(entry.weight for entry in self._entries)
        """Approximate number of characters stored."""
        self.changes_stored = self.characters_stored_again = 0
        """How often messages that were stored before have been stored again, and approximately how many characters."""
        self._calls = {entry.part["toolCallId"]: entry for entry in self._entries if entry.part["type"] == "tool_call"}
        self._plan = next((entry for entry in reversed(self._entries) if entry.part["type"] == "plan"), None)
        self._last = max([last, *(entry.id for entry in self._entries)])
        self._open = self._entries[-1] if self._entries else None
        self._changed_entries: dict[str, TranscriptEntry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def apply(self, update: dict[str, Any]) -> ReportedState | None:
        """Apply one `session/update`. Returns what it contains besides."""
        kind = update.get("sessionUpdate")
        if not isinstance(kind, str):
            return None
        if kind in _TEXT_UPDATES:
            self._add_chunk(_TEXT_UPDATES[kind], update)
        elif kind in ("tool_call", "tool_call_update"):
            self._update_call(update)
        elif kind in ("plan", "plan_update"):
            self._update_plan(update)
        elif kind == "current_mode_update" and isinstance(update.get("currentModeId"), str):
            return ReportedState(options={"currentMode": update["currentModeId"][:100]})
        elif kind == "config_option_update" and isinstance(update.get("configOptions"), list):
            return ReportedState(options={"configOptions": limit_json(update["configOptions"], VALUE_LIMIT)})
        elif kind == "available_commands_update" and isinstance(update.get("availableCommands"), list):
            return ReportedState(options={"commands": _parse_commands(update["availableCommands"])})
        elif kind == "usage_update":
            return ReportedState(usage=_parse_usage(update))
        return None

    def call(self, key: Any) -> ToolCallFields:
        """Return the known fields of a tool call."""
        entry = self._calls.get(key[:300]) if isinstance(key, str) else None
        return entry.part if entry is not None and entry.part["type"] == "tool_call" else {}

    def end_text(self) -> None:
        """Put text from now on into a new message."""
        self._open = None

    def close_calls(self, status: str) -> None:
        """Set the status of open tool calls, without recording a change: the caller, which ends the turn, writes it."""
        for entry in self._calls.values():
            if entry.part["type"] == "tool_call" and entry.part["status"] in OPEN_CALLS:
                entry.part = {**entry.part, "status": status}

    def take_changes(self) -> Sequence[TranscriptEntry]:
        """Return the entries that are new or have changed since the last call, in order."""
        changed, self._changed_entries = list(self._changed_entries.values()), {}
        for entry in changed:
            if not entry.new:
                self.changes_stored += 1
                self.characters_stored_again += entry.weight
        return changed

    def mark_written(self) -> None:
        """Mark the entries of `take_changes` as written."""
        for entry in self._entries:
            entry.new, entry.changed, entry.delta = False, False, ""

    # parts -------------------------------------------------------------------------------------------------------------

    def _add_chunk(self, part_type: Literal["text", "thought"], update: dict[str, Any]) -> None:
        content = update.get("content")
        if not isinstance(content, dict):
            return
        text, agent_message_id = _block_text(content), update.get("messageId")
        if text is None:
            if content.get("type") in ("image", "audio"):
                data = content.get("data")
                size = len(data) * 3 // 4 if isinstance(data, str) else 0
                part: ImagePart = {
                    "type": "image",
                    "mimeType": truncate(str(content.get("mimeType") or ""), 100),
                    "bytes": size,
                }
                self._add_entry(part)
            return
        while text:
            entry = self._open
            follows = entry is not None and agent_message_id in (None, entry.agent_message_id, "")
            known = _get_text(entry.part, part_type) if follows and entry is not None else None
            if entry is None or known is None or len(known) >= PART_LIMIT:
                entry, known = self._add_entry(_make_text_part(part_type, "")), ""
                entry.agent_message_id = agent_message_id if isinstance(agent_message_id, str) else None
            room = PART_LIMIT - len(known)
            piece, text = text[:room], text[room:]
            entry.part = _make_text_part(part_type, known + piece)
            entry.delta += piece
            self._set_weight(entry, entry.weight + len(piece))
            self._mark_changed(entry)

    def _update_plan(self, update: dict[str, Any]) -> None:
        plan = update.get("plan") if update.get("sessionUpdate") == "plan_update" else update
        entries = plan.get("entries") if isinstance(plan, dict) else None
        if not isinstance(entries, list):
            return
        part: PlanPart = {
            "type": "plan",
            "entries": [
                {
                    "content": truncate(str(entry.get("content") or ""), 2000),
                    "priority": truncate(str(entry.get("priority") or "medium"), 20),
                    "status": truncate(str(entry.get("status") or "pending"), 20),
                }
                for entry in entries[:PIECES]
                if isinstance(entry, dict)
            ],
        }
        if self._plan is None:
            self._plan = self._add_entry(part)
        elif self._plan.part != part:
            self._plan.part = part
            self._set_weight(self._plan, compute_json_size(part))
            self._mark_changed(self._plan)

    def _update_call(self, update: dict[str, Any]) -> None:
        key = update.get("toolCallId")
        if not isinstance(key, str) or not key:
            return
        key = key[:300]
        entry = self._calls.get(key)
        if entry is None:
            blank: ToolCallPart = {"type": "tool_call", "toolCallId": key, "title": "", "kind": "other", "status": "pending",
                     "locations": [], "content": [], "input": None, "output": None}  # fmt: skip
            entry = self._calls[key] = self._add_entry(blank)
        fields = _parse_call_fields(update)
        if all(entry.part.get(name) == new for name, new in fields.items()):
            return
        # only what changes is measured: a small update of a large call must be cheap
        size = entry.weight + sum(
            compute_json_size(new) - compute_json_size(entry.part.get(name)) for name, new in fields.items()
        )
        assert entry.part["type"] == "tool_call"
        part: ToolCallPart = {**entry.part, **fields}
        if size > CALL_LIMIT:
            part = _limit_size(part)
            size = compute_json_size(part)
        entry.part = part
        self._set_weight(entry, size)
        self._mark_changed(entry)

    def _add_entry(self, part: MessagePart) -> TranscriptEntry:
        self._last = next_message_id(self._last)
        entry = TranscriptEntry(self._last, part)
        self._entries.append(entry)
        self._open = entry
        self._set_weight(entry, compute_json_size(part))
        self._mark_changed(entry)
        return entry

    def _set_weight(self, entry: TranscriptEntry, weight: int) -> None:
        self.weight += weight - entry.weight
        entry.weight = weight

    def _mark_changed(self, entry: TranscriptEntry) -> None:
        entry.changed = True
        self._changed_entries.setdefault(entry.id, entry)


def _make_text_part(part_type: Literal["text", "thought"], text: str) -> TextPart | ThoughtPart:
    return {"type": "text", "text": text} if part_type == "text" else {"type": "thought", "text": text}


def _get_text(part: MessagePart, part_type: Literal["text", "thought"]) -> str | None:
    """Return the text of a part of this type, None for other parts."""
    if part["type"] == "text" or part["type"] == "thought":
        return part["text"] if part["type"] == part_type else None
    return None


def _block_text(block: Any) -> str | None:
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if kind == "text" and isinstance(block.get("text"), str):
        return str(block["text"])
    if kind == "resource_link" and isinstance(block.get("uri"), str):
        return f"[{block.get('name') or block['uri']}]({block['uri']})"
    if kind == "resource" and isinstance(block.get("resource"), dict):
        text = block["resource"].get("text")
        return text if isinstance(text, str) else None
    return None


_CODEX_BOOKKEEPING = frozenset(
    "call_id process_id turn_id started_at_ms completed_at_ms parsed_cmd source auto_approved changes "
    "stdout stderr aggregated_output formatted_output".split()
)


def _parse_call_fields(update: dict[str, Any]) -> ToolCallFields:
    """Return the fields that this update contains. The others keep their values."""
    fields: ToolCallFields = {}
    if isinstance(update.get("title"), str):
        fields["title"] = truncate(update["title"], 2000)
    if isinstance(update.get("kind"), str) and update["kind"] in _KINDS:
        fields["kind"] = update["kind"]
    if isinstance(update.get("status"), str) and update["status"] in _STATUSES:
        fields["status"] = update["status"]
    if isinstance(update.get("locations"), list):
        fields["locations"] = [
            {
                "path": truncate(location["path"], 2000),
                "line": location.get("line") if isinstance(location.get("line"), int) else None,
            }
            for location in update["locations"][:PIECES]
            if isinstance(location, dict) and isinstance(location.get("path"), str)
        ]
    if isinstance(update.get("content"), list):
        fields["content"] = [
            piece for block in update["content"][:PIECES] if (piece := _parse_content(block)) is not None
        ]
    output = update.get("rawOutput")
    printed = output.get("aggregated_output") if isinstance(output, dict) else None
    if isinstance(printed, str) and not fields.get("content"):  # Codex sends the output only here
        fields["content"] = [{"type": "text", "text": truncate(printed, VALUE_LIMIT)}] if printed else []
    if update.get("rawInput") is not None:
        fields["input"] = limit_json(_without_codex_bookkeeping(update["rawInput"]), VALUE_LIMIT)
    if output is not None:
        fields["output"] = limit_json(_without_codex_bookkeeping(output), VALUE_LIMIT)
    return fields


def _without_codex_bookkeeping(value: Any) -> Any:
    """Drop what Codex repeats in every raw value: ids, times, the diff, and the output of a command (four times)."""
    if not isinstance(value, dict) or "call_id" not in value or "turn_id" not in value:
        return value
    kept = {name: item for name, item in value.items() if name not in _CODEX_BOOKKEEPING}
    match kept.get("command"):
        case [str(shell), "-lc" | "-c", str(command)] if shell.endswith("sh"):
            kept["command"] = command
    return kept


def _parse_content(block: Any) -> ToolCallContent | None:
    if not isinstance(block, dict):
        return None
    kind = block.get("type")
    if kind == "content":
        text = _block_text(block.get("content"))
        return None if text is None else {"type": "text", "text": truncate(text, VALUE_LIMIT)}
    if kind == "diff" and isinstance(block.get("path"), str) and isinstance(block.get("newText"), str):
        old = block.get("oldText")
        return {
            "type": "diff",
            "path": truncate(block["path"], 2000),
            "oldText": truncate(old, VALUE_LIMIT) if isinstance(old, str) else None,
            "newText": truncate(block["newText"], VALUE_LIMIT),
        }
    if kind == "terminal" and isinstance(block.get("terminalId"), str):
        return {"type": "terminal", "terminalId": truncate(block["terminalId"], 300)}
    return None


def _limit_size(part: ToolCallPart) -> ToolCallPart:
    """Drop the least important fields of a part that is too large."""
    if part["output"] is not None and compute_json_size(part) > CALL_LIMIT:
        part = {**part, "output": CUT}
    if part["input"] is not None and compute_json_size(part) > CALL_LIMIT:
        part = {**part, "input": CUT}
    kept: list[ToolCallContent] = []
    left = CALL_LIMIT - compute_json_size({**part, "content": []})
    for block in part["content"]:
        left -= compute_json_size(block) + 2 * bool(kept)
        if left < 0:
            break
        kept.append(block)
    return {**part, "content": kept}


def _parse_usage(update: dict[str, Any]) -> TurnUsage:
    found: dict[str, Any] = {name: update[name] for name in ("used", "size") if isinstance(update.get(name), int)}
    cost = update.get("cost")
    if isinstance(cost, dict) and isinstance(cost.get("amount"), int | float):
        found["cost"] = {"amount": cost["amount"], "currency": truncate(str(cost.get("currency") or "USD"), 10)}
    return {"context": found} if found else {}


def _parse_commands(commands: list[Any]) -> list[SlashCommand]:
    return [
        {"name": truncate(command["name"], 100), "description": truncate(str(command.get("description") or ""), 500)}
        for command in commands[:PIECES]
        if isinstance(command, dict) and isinstance(command.get("name"), str)
    ]


def compute_json_size(value: Any) -> int:
    return len(json.dumps(value, ensure_ascii=False))


def truncate(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - len(CUT)] + CUT


def limit_json(value: Any, limit: int) -> Any:
    """Return the value if it is small enough, or the beginning of its JSON."""
    try:
        written = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return CUT
    return value if len(written) <= limit else truncate(written, limit)


def to_event_part(part: MessagePart) -> Mapping[str, Any]:
    """Return a part as an event contains it."""
    if compute_json_size(part) <= EVENT_LIMIT:
        return part
    small: dict[str, Any] = {**part, "cut": True}
    for name in ("output", "input"):
        if name in small:
            small[name] = None
    if isinstance(small.get("text"), str):
        small["text"] = truncate(small["text"], EVENT_LIMIT // 4)
    for name in ("content", "locations", "entries"):
        while small.get(name) and compute_json_size(small) > EVENT_LIMIT:
            small[name] = small[name][: len(small[name]) // 2]
    if isinstance(small.get("title"), str):
        small["title"] = truncate(small["title"], 300)
    return small


def split_into_deltas(text: str) -> Sequence[str]:
    """Split a text into pieces that fit into events."""
    size = EVENT_LIMIT if text.isascii() else EVENT_LIMIT // 4
    return [text[at : at + size] for at in range(0, len(text), size)]
