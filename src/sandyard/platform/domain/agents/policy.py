"""What a project lets agents do without asking a person."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from sandyard.platform.domain.projects.model import PermissionSettings
from sandyard.platform.domain.projects.patterns import run_in_thread, search

Decision = Literal["allow", "allow_always", "reject", "reject_always"]
KINDS: dict[Decision, tuple[str, ...]] = {
    "allow": ("allow_once", "allow_always"),
    "allow_always": ("allow_always", "allow_once"),
    "reject": ("reject_once", "reject_always"),
    "reject_always": ("reject_always", "reject_once"),
}
"""Which of an agent's options are meant, best first: their ids differ from agent to agent."""
READS = frozenset(("read", "search", "think"))
SEARCHED, PIECE = 256 << 10, 16
"""How much of what an agent wants to do is looked at. What is longer matches no promise: a person is asked, unless all is allowed."""


_ASKS = ("This project asks before everything.", "This project asks before everything but reading.")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`decision` None: a person decides. `pattern`: the one of the project's that denies it."""

    decision: Decision | None
    reason: str
    pattern: str | None = None


def decide(settings: PermissionSettings, tool_call: dict[str, Any]) -> Verdict:
    """`tool_call` as the agent has described it, joined with what it told of it before. With patterns it takes its time: use
    `Verdicts`."""
    if settings.deny:
        pieces, complete = _cut(searched(tool_call))
        denied = search(settings.deny, pieces)
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
    return Verdict(None, _ASKS[settings.mode == "allow_reads"])


class UndecidedError(Exception):
    """A verdict is needed that takes too long for a transaction."""

    def __init__(self, settings: PermissionSettings, tool_call: dict[str, Any]) -> None:
        super().__init__("The verdict has to be reached outside of the transaction.")
        self.settings = settings
        self.tool_call = tool_call


class Verdicts:
    """Decides outside of transactions what takes its time: `get` raises UndecidedError, `decide` settles it, `get` knows it then."""

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


def _cut(pieces: list[str]) -> tuple[list[str], bool]:
    """As much as is looked at, and whether that is all."""
    room, kept = SEARCHED, []
    for piece in pieces:
        kept.append(piece[:room])
        room -= len(piece) + PIECE
        if room < 0:
            return kept, False
    return kept, True


def searched(tool_call: dict[str, Any]) -> list[str]:
    """Title, paths and all texts of the input, each for itself; an argv as one line, and the input as JSON besides."""
    found = [str(tool_call.get("title") or "")]
    locations, content = tool_call.get("locations"), tool_call.get("content")
    for one in locations if isinstance(locations, list) else ():
        if isinstance(one, dict):
            found.append(str(one.get("path") or ""))
    for one in content if isinstance(content, list) else ():
        if isinstance(one, dict) and one.get("type") == "diff":
            found.append(str(one.get("path") or ""))
    given = tool_call.get("rawInput", tool_call.get("input"))
    if given is not None:
        _texts(given, found)
        found.append(json.dumps(given, ensure_ascii=False))
    return found


def _texts(value: Any, found: list[str], depth: int = 0) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, dict | list) and depth < 20:
        items = value.values() if isinstance(value, dict) else value
        if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            found.append(" ".join(value))  # an argv
        for one in items:
            _texts(one, found, depth + 1)


def choose(options: list[dict[str, Any]], decision: Decision) -> dict[str, Any] | None:
    """The option that means this; None when the agent offers none such."""
    for kind in KINDS[decision]:
        for option in options:
            if option.get("kind") == kind:
                return option
    return None
