"""Parse the conflicts of a merge or rebase in a checkout, from git's messages and the unmerged index entries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sandyard.platform.domain.repositories.model import Conflict

_MAX_CONFLICTS, _MAX_MESSAGE_BYTES = 1000, 256 << 10
"""Maximum number of conflicts to report, and maximum size of git's messages about them."""
_CONFLICT_LINE = re.compile(r"CONFLICT \(([^)]{1,60})\): (.{0,4096})")
_MAX_SPACES = 30
"""Maximum number of spaces in a path at the end of one of git's sentences."""
_CONFLICT_BY_STAGES = {
    "123": ("content", "Both sides changed it."),
    "23": ("add/add", "Both sides added it with different content."),
    "12": ("modify/delete", "Our side changed it, their side deleted it."),
    "13": ("modify/delete", "Our side deleted it, their side changed it."),
    "1": ("rename/rename", "Both sides renamed it differently."),
    "2": ("rename/rename", "Only our side has this name."),
    "3": ("rename/rename", "Only their side has this name."),
}


def parse_conflicts(output: bytes) -> list[Conflict]:
    """Parse git's messages, a NUL byte, and the unmerged index entries."""
    messages, _, entries = output.partition(b"\0")
    lines = _CONFLICT_LINE.findall(messages[:_MAX_MESSAGE_BYTES].decode(errors="replace"))[:_MAX_CONFLICTS]
    stages: dict[str, str] = {}
    gitlinks: set[str] = set()
    for entry in entries.split(b"\0", 3 * _MAX_CONFLICTS)[: 3 * _MAX_CONFLICTS]:
        if not entry:
            continue
        fields, _, name = entry.partition(b"\t")
        path = name.decode(errors="replace")
        mode, _, stage = fields.decode("ascii", "replace").partition(" ")
        stages[path] = stages.get(path, "") + stage[-1:]
        if mode == "160000":
            gitlinks.add(path)
    reported: dict[str, tuple[str, str]] = {}
    for kind, message in lines:
        for path in _find_candidate_paths(message):
            if path in stages:
                reported.setdefault(path, (kind, message))
    conflicts = []
    for path, path_stages in stages.items():
        kind, detail = _CONFLICT_BY_STAGES.get(path_stages, ("content", ""))
        kind = "submodule" if path in gitlinks else kind
        kind, detail = reported.get(path, (kind, detail))
        conflicts.append(Conflict(path, kind, detail))
    return conflicts


def _find_candidate_paths(message: str) -> Iterator[str]:
    """Yield everything in the sentence that may be a path: each word, and each ending, because paths may contain spaces."""
    yield from re.split(r"[\s,;:]+", message.rstrip("."))
    end = len(message)
    for _ in range(_MAX_SPACES):
        end = message.rfind(" ", 0, end)
        if end < 0:
            return
        yield message[end + 1 :]
