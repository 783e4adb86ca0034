"""Session transcripts in pieces of a size suitable for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.db.models import Message
from sandyard.platform.db.models.message_parts import MessagePart, ToolCallPart
from sandyard.platform.domain.paging import Listing

PART_LIMIT, PAGE_LIMIT = 8_000, 60_000


class Said(Model):
    model_config = example(id="msg_00mwhnkzc0a1b2c3d4e5", role="agent", type="text", text="The login works again.")

    id: str
    turn_id: str | None
    role: Literal["user", "agent", "system"]
    type: str = Field(description="text, thought, plan, tool_call, image or notice.")
    text: str = Field(description="The text; for a tool call, the call and its result. Long texts are cut.")
    status: str | None = Field(
        default=None, description="For a tool call: pending, in_progress, completed, failed or cancelled."
    )
    truncated: bool = Field(default=False, description="True if the text was cut.")
    created_at: Instant


class Transcript(Model):
    items: list[Said] = Field(description="Newest first.")
    next_cursor: str | None = Field(description="Send it as `cursor` for earlier messages. Null at the beginning.")


def get_page(rows: Listing[Message]) -> Transcript:
    """Return as many messages as fit. The cursor continues after the last one."""
    items: list[Said] = []
    left = PAGE_LIMIT
    for count, row in enumerate(rows.items):
        entries = [_make_entry(row, part) for part in row.parts]
        left -= sum(len(entry.text) for entry in entries)
        if left < 0 and count:
            return Transcript(items=items, next_cursor=rows.items[count - 1].id)
        items += entries
    return Transcript(items=items, next_cursor=rows.next_cursor)


def get_turn(rows: Sequence[Message], turn_id: str) -> Transcript:
    """Return the messages of a turn, without its prompt."""
    of_turn = [row for row in rows if row.turn_id == turn_id and row.role != "user"]
    return get_page(Listing(of_turn))


def _make_entry(row: Message, part: MessagePart) -> Said:
    text = _render_part(part)
    return Said(
        id=row.id,
        turn_id=row.turn_id,
        role=row.role,  # type: ignore[arg-type]  # one of these in the database
        type=part["type"],
        text=text[:PART_LIMIT],
        status=part["status"] if part["type"] == "tool_call" else None,
        truncated=len(text) > PART_LIMIT,
        created_at=row.created_at,
    )


def _render_part(part: MessagePart) -> str:
    if part["type"] == "plan":
        return "\n".join(f"[{entry['status']}] {entry['content']}" for entry in part["entries"])
    if part["type"] == "tool_call":
        return "\n".join(line for line in _render_tool_call(part) if line)
    if part["type"] == "image":
        return f"{part['mimeType']}, {part['bytes']} bytes"
    return part["text"]


def _render_tool_call(part: ToolCallPart) -> list[str]:
    lines = [part["title"] or part["kind"], *(location["path"] for location in part["locations"])]
    for content in part["content"]:
        if content["type"] == "diff":
            lines.append(f"changed {content['path']}:\n{content['newText']}")
        elif content["type"] == "text":
            lines.append(content["text"])
    if not part["content"]:
        lines += [json.dumps(value, ensure_ascii=False) for value in (part["input"], part["output"]) if value]
    return lines
