"""Decide what agents may do without asking a person, by the project's policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sandyard.platform.domain.agents.json_columns import AskOption
from sandyard.platform.domain.projects.model import PermissionSettings
from sandyard.platform.domain.projects.patterns import run_in_thread, search_patterns

Decision = Literal["allow", "allow_always", "reject", "reject_always"]
OPTION_KINDS: dict[Decision, tuple[str, ...]] = {
    "allow": ("allow_once", "allow_always"),
    "allow_always": ("allow_always", "allow_once"),
    "reject": ("reject_once", "reject_always"),
    "reject_always": ("reject_always", "reject_once"),
}
"""Kinds of options that express a decision, best first. The option ids differ between agents."""
READS = frozenset(("read", "search", "think"))
SEARCHED_CHARACTERS, PIECE_CHARACTERS = 256 << 10, 16
"""How much of a tool call is checked. A longer one cannot be checked completely: a person is asked, unless nothing is
denied."""


_ASK_REASONS = ("This project asks before everything.", "This project asks before everything but reading.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`decision` is None if a person has to decide. `pattern` is the project's pattern that denies the call."""

    decision: Decision | None
    reason: str
    pattern: str | None = None


def decide(settings: PermissionSettings, tool_call: dict[str, Any]) -> Verdict:
    """Decide about a tool call, given as everything the agent has reported about it. Slow with patterns: use
    `Verdicts`."""
    if settings.deny:
        pieces, complete = _truncate(list_searched_texts(tool_call))
        denied = search_patterns(settings.deny, pieces)
        if denied.match is not None:
            return Verdict("reject", f"The project's policy denies what matches {denied.match!r}.", denied.match)
        if denied.unchecked is not None:
            return Verdict(None, f"A person has to decide: {denied.unchecked}")
        if not complete:
            return Verdict(None, "The request is too long to be checked against the project's rules.")
    if settings.mode == "allow_all":
        return Verdict("allow", "The project's policy allows everything in the sandbox.")
    kind = tool_call.get("kind")
    if settings.mode == "allow_reads" and isinstance(kind, str) and kind in READS:
        return Verdict("allow", "The project's policy allows reading.")
    return Verdict(None, _ASK_REASONS[settings.mode == "allow_reads"])


class UndecidedError(Exception):
    """A verdict is needed that takes too long for a transaction."""

    def __init__(self, settings: PermissionSettings, tool_call: dict[str, Any]) -> None:
        super().__init__("The verdict has to be reached outside of the transaction.")
        self.settings = settings
        self.tool_call = tool_call


class Verdicts:
    """Reach slow verdicts outside of transactions: `get` raises UndecidedError, `decide` settles it, then `get` returns
    it."""

    def __init__(self) -> None:
        self._last: tuple[PermissionSettings, dict[str, Any], Verdict] | None = None

    def get(self, settings: PermissionSettings, tool_call: dict[str, Any]) -> Verdict:
        if not settings.deny:
            return decide(settings, tool_call)
        if self._last is None or self._last[:2] != (settings, tool_call):
            raise UndecidedError(settings, tool_call)
        return self._last[2]

    async def decide(self, wanted: UndecidedError) -> None:
        verdict = await run_in_thread(decide, wanted.settings, wanted.tool_call)
        self._last = (wanted.settings, wanted.tool_call, verdict)


def _truncate(pieces: list[str]) -> tuple[list[str], bool]:
    """Return the part that is checked, and whether that is everything."""
    room, kept = SEARCHED_CHARACTERS, []
    for piece in pieces:
        kept.append(piece[:room])
        room -= len(piece) + PIECE_CHARACTERS
        if room < 0:
            return kept, False
    return kept, True


def list_searched_texts(tool_call: dict[str, Any]) -> list[str]:
    """Return the title, the paths and all texts of the input separately, plus each argv as one line and the input as
    JSON."""
    found = [str(tool_call.get("title") or "")]
    locations, content = tool_call.get("locations"), tool_call.get("content")
    for location in locations if isinstance(locations, list) else ():
        if isinstance(location, dict):
            found.append(str(location.get("path") or ""))
    for block in content if isinstance(content, list) else ():
        if isinstance(block, dict) and block.get("type") == "diff":
            found.append(str(block.get("path") or ""))
    given = tool_call.get("rawInput", tool_call.get("input"))
    if given is not None:
        _collect_texts(given, found)
        found.append(json.dumps(given, ensure_ascii=False))
    return found


def _collect_texts(value: Any, found: list[str], depth: int = 0) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict | list) and depth < 20:
        items = value.values() if isinstance(value, dict) else value
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            found.append(" ".join(value))  # an argv
        for item in items:
            _collect_texts(item, found, depth + 1)


def find_option(options: Sequence[AskOption], decision: Decision) -> AskOption | None:
    """Return the option that expresses this decision, or None if the agent offers none."""
    for kind in OPTION_KINDS[decision]:
        for option in options:
            if option.get("kind") == kind:
                return option
    return None
