"""Format the parts of messages as lines: prompts, replies, thoughts, plans and tool calls. Control characters are escaped."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandyard.cli.output import escape, escape_line, pluralize

FINISHED = {"completed", "failed", "cancelled"}
MARKS = {"completed": "✓", "failed": "✗", "cancelled": "⊘", "in_progress": "…", "pending": "…"}
PLAN_MARKS = {"completed": "☑", "in_progress": "▶", "pending": "☐"}
MAX_TITLE_LENGTH, MAX_SHOWN_CHANGES, MAX_SHOWN_ERROR_LINES = 160, 8, 4
WORKSPACE = "/home/user/workspace/"
"""The directory of checkouts, omitted from displayed paths."""
MAX_COMPARED_CHARACTERS = 200_000
"""Longer texts are not compared line by line, because that takes too long."""


@dataclass(frozen=True, slots=True)
class Line:
    """A styled line. `style` holds arguments of click.style."""

    text: str
    style: Mapping[str, Any] = field(default_factory=dict)


DIM: dict[str, Any] = {"dim": True}
STRONG: dict[str, Any] = {"bold": True}
TOOL_STYLES: dict[str, dict[str, Any]] = {"completed": {"fg": "cyan"}, "failed": {"fg": "red"}}


def format_prompt(text: str) -> Iterator[Line]:
    """Yield the prompt to the agent: `» Fix the login.`"""
    first, *rest = text.strip().split("\n") or [""]
    yield Line(f"» {escape_line(first)}", STRONG)
    yield from (Line(f"  {escape_line(line)}".rstrip(), STRONG) for line in rest)


def format_text(line: str) -> Line:
    return Line(escape_line(line))


def format_thought(line: str) -> Line:
    return Line(f"  {escape_line(line)}", DIM)


def format_notice(part: Mapping[str, Any]) -> Iterator[Line]:
    for number, line in enumerate(str(part.get("text") or part.get("code") or "").strip().split("\n")):
        yield Line(f"{'  ' if number else '! '}{escape_line(line)}", {"fg": "yellow"})


def format_image(part: Mapping[str, Any]) -> Line:
    return Line(f"[{escape(str(part.get('mimeType') or 'image'))}, {part.get('bytes') or 0} bytes]", DIM)


def format_plan_entry(entry: Mapping[str, Any]) -> Line:
    mark = PLAN_MARKS.get(str(entry.get("status")), "☐")
    return Line(f"  {mark} {_truncate(escape(str(entry.get('content') or '')))}", DIM if mark == "☑" else {})


def get_tool_name(part: Mapping[str, Any]) -> str:
    """Return, for example, `edit src/login.py`."""
    title = escape(str(part.get("title") or ""))
    if not title:
        title = ", ".join(escape(str(location.get("path"))) for location in part.get("locations") or [])
    kind = str(part.get("kind") or "")
    omits_kind = kind in {"", "other"} or title.lower().startswith(kind)
    return _truncate(title if omits_kind else f"{escape(kind)}  {title}".rstrip())


def format_tool_call(part: Mapping[str, Any]) -> Iterator[Line]:
    """Yield a line for the call, a few for its changes and, if it failed, the end of its output."""
    status = str(part.get("status") or "")
    tail = "" if status in {"completed", "failed"} else f"  ({escape(status.replace('_', ' '))})" if status else ""
    yield Line(f"{MARKS.get(status, '·')} {get_tool_name(part)}{tail}", TOOL_STYLES.get(status, {}))
    for content in part.get("content") or []:
        if content.get("type") == "diff":
            yield from format_changes(content)
    if status == "failed":
        yield from (Line(f"    {escape_line(line)}", DIM) for line in _get_last_output(part))


def format_changes(content: Mapping[str, Any]) -> Iterator[Line]:
    """Yield `    src/login.py  +3 -1` and the first changed lines."""
    path = escape(str(content.get("path") or "")).removeprefix(WORKSPACE)
    old, new = content.get("oldText"), str(content.get("newText") or "")
    if old is None:
        yield Line(f"    {path}  new, {pluralize(len(new.splitlines()), 'line')}", DIM)
        return
    if len(old) + len(new) > MAX_COMPARED_CHARACTERS:
        yield Line(f"    {path}  changed", DIM)
        return
    delta = list(difflib.unified_diff(str(old).splitlines(), new.splitlines(), lineterm="", n=0))[2:]
    changed = [line for line in delta if not line.startswith("@@")]
    added = sum(line.startswith("+") for line in changed)
    yield Line(f"    {path}  +{added} -{len(changed) - added}", DIM)
    for line in changed[:MAX_SHOWN_CHANGES]:
        yield Line(f"    {escape_line(line)}", {"fg": "green" if line.startswith("+") else "red"})
    if len(changed) > MAX_SHOWN_CHANGES:
        yield Line(f"    … {len(changed) - MAX_SHOWN_CHANGES} more", DIM)


def _get_last_output(part: Mapping[str, Any]) -> list[str]:
    texts = [str(content.get("text") or "") for content in part.get("content") or [] if content.get("type") == "text"]
    lines = [line for text in texts for line in text.strip().splitlines() if line.strip()]
    return lines[-MAX_SHOWN_ERROR_LINES:]


def _truncate(text: str) -> str:
    return text if len(text) <= MAX_TITLE_LENGTH else f"{text[: MAX_TITLE_LENGTH - 1]}…"
