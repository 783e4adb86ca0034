"""Summarize the earlier conversation for an agent that does not remember it."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncSession

from sandyard.platform.db.models import Message
from sandyard.platform.domain.agents.transcript import cut

LIMIT = 24_000
EACH = 2_000
MESSAGES = 400
HEAD = (
    "This conversation started earlier, and you do not remember it. The files are as they were left. A record of it follows, "
    "newest last; continue from there.\n\n"
)
TAIL = "\n\nEnd of the record. What is asked of you now:\n"


async def of_session(session: AsyncSession, session_id: str, before: str) -> str | None:
    """Summarize the messages before this one. Returns None if there are none."""
    query = select(Message).where(Message.session_id == session_id, Message.id < before)
    found = list(await session.scalars(query.order_by(Message.id.desc()).limit(MESSAGES)))
    return write([(row.role, row.parts) for row in reversed(found)])


def write(messages: list[tuple[str, list[Any]]]) -> str | None:
    """Write as many of the last messages as fit into the limit."""
    lines: list[str] = []
    room = LIMIT
    for role, parts in reversed(messages):
        told = [line for part in parts if isinstance(part, dict) and (line := _format_part(role, part))]
        size = sum(len(line) + 1 for line in told)
        if size > room:
            lines.append("(Earlier messages are left out.)")
            break
        room -= size
        lines.extend(reversed(told))
    return HEAD + "\n".join(reversed(lines)) + TAIL if lines else None


def _format_part(role: str, part: dict[str, Any]) -> str | None:
    kind = part.get("type")
    if kind == "text":
        return f"{'User' if role == 'user' else 'You'}: {cut(str(part.get('text') or ''), EACH)}"
    if kind == "tool_call":
        return f"You did: {cut(str(part.get('title') or part.get('kind')), 300)} ({part.get('status')})"
    return None
