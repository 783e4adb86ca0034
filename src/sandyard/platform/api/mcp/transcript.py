"""Session transcripts in pieces of a size suitable for a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from sandyard.platform.api.schema import Instant, Model, example
from sandyard.platform.db.models import Message
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
        entries = [_make_entry(row, part) for part in row.parts if isinstance(part, dict)]
        left -= sum(len(entry.text) for entry in entries)
        if left < 0 and count:
            return Transcript(items=items, next_cursor=rows.items[count - 1].id)
        items += entries
    return Transcript(items=items, next_cursor=rows.next_cursor)


def get_turn(rows: Sequence[Message], turn_id: str) -> Transcript:
    """Return the messages of a turn, without its prompt."""
    of_turn = [row for row in rows if row.turn_id == turn_id and row.role != "user"]
    return get_page(Listing(of_turn))


def _make_entry(row: Message, part: dict[str, Any]) -> Said:
    text = _render_part(part)
    status = part.get("status")
    return Said(
        id=row.id,
        turn_id=row.turn_id,
        role=row.role,  # type: ignore[arg-type]  # one of these in the database
        type=str(part.get("type")),
        text=text[:PART_LIMIT],
        status=status if isinstance(status, str) else None,
        truncated=len(text) > PART_LIMIT,
        created_at=row.created_at,
    )


def _render_part(part: dict[str, Any]) -> str:
    kind = part.get("type")
    if kind == "plan":
        entries = [entry for entry in part.get("entries") or [] if isinstance(entry, dict)]
        return "\n".join(f"[{entry.get('status')}] {entry.get('content')}" for entry in entries)
    if kind == "tool_call":
        return "\n".join(line for line in _render_tool_call(part) if line)
    if kind == "image":
        return f"{part.get('mimeType')}, {part.get('bytes')} bytes"
    return str(part.get("text") or "")


def _render_tool_call(part: dict[str, Any]) -> list[str]:
    lines = [str(part.get("title") or part.get("kind") or "")]
    lines += [str(one.get("path")) for one in part.get("locations") or [] if isinstance(one, dict)]
    for one in part.get("content") or []:
        if isinstance(one, dict) and one.get("type") == "diff":
            lines.append(f"changed {one.get('path')}:\n{one.get('newText') or ''}")
        elif isinstance(one, dict):
            lines.append(str(one.get("text") or ""))
    if not part.get("content"):
        lines += [json.dumps(part[name], ensure_ascii=False) for name in ("input", "output") if part.get(name)]
    return lines
