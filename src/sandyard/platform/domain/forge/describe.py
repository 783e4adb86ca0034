"""Generate the title and body of a pull request.

Commit messages are written by an agent: they must trigger nothing and must not look like our text (`quoting.py`). A task's description is a
person's or comes from outside: it is quoted, and mentions and references in it work. The opener's text is used as is. Our part of the body
is between two marks. Only that part is ever changed, and only while nobody has edited it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from sandyard.platform.domain.forge.quoting import GAP, code, cut, neutral, one_line, quoted, untagged
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.repositories.model import Change, Commit, Diff, FileDiff, Identity

BEGIN, END = "<!-- sandyard:begin -->", "<!-- sandyard:end -->"
TITLE, BODY, GIVEN, SUMMARY = 120, 64_000, 60_000, 8_000
"""Maximum lengths in characters. GitHub accepts 65,536 for a body."""
FILES, COMMITS, AUTHORS = 30, 30, 20
_SUM = re.compile(r"<!-- sandyard:sum ([0-9a-f]{16}) -->\n?")
_MARK = re.compile(r"<!--\s*(?=sandyard:)", re.IGNORECASE)
_TELLING = ("feat", "fix", "perf", "refactor", "revert", "build", "ci", "test", "docs", "style", "chore")
_UNBRACKETED = str.maketrans({"[": "(", "]": ")", "\\": "/"})
_CHANGED = {
    Change.ADDED: "new",
    Change.DELETED: "deleted",
    Change.RENAMED: "renamed",
    Change.COPIED: "copied",
    Change.TYPE: "type changed",
}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the work came from. The task's text was written by a person."""

    session_id: str | None = None
    task_id: str | None = None
    task_title: str | None = None
    task_description: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was run in the sandbox, and its result."""

    name: str
    exit_code: int


def title(commits: Sequence[Commit], origin: Origin, *, given: str | None = None, conventional: bool = True) -> str:
    """Return the given title, or the only commit's subject, or the task's title, or the most descriptive subject.

    `commits` must not be empty.
    """
    if given is not None and given.strip():
        return cut(" ".join(given.split()), TITLE)
    own = _own(commits)
    if len(own) == 1:
        return one_line(own[0].subject, TITLE)
    if origin.task_title and origin.task_title.strip():
        words = " ".join(origin.task_title.split())
        return cut(commit_messages.suggest(words) if conventional else words, TITLE)
    return one_line(min(reversed(own), key=_rank).subject, TITLE)


def body(
    commits: Sequence[Commit],
    diff: Diff,
    origin: Origin,
    *,
    given: str | None = None,
    checks: Sequence[Check] = (),
    web_url: str | None = None,
) -> str:
    """Return our part of the body, between its marks. `commits` are newest first. `web_url`: the platform's URL, for links."""
    own = _own(commits)
    sections = [
        _summary(own, given),
        _task(origin) if given is None else "",
        _changes(diff),
        _checks(checks),
        _links(origin, web_url),
        _authors(own),
    ]
    text = "\n\n".join(section for section in sections if section)
    return _marked(cut(text, BODY))


def refreshed(existing: str, block: str, *, ours: bool) -> str | None:
    """Return the body with our part updated.

    None if there is nothing to change: our part is current, or a person has edited or removed it (`ours`: this pull request had one).
    """
    text = existing.replace("\r\n", "\n")
    begin, end = text.find(BEGIN), text.rfind(END)
    if begin < 0 or end < begin:
        if ours:
            return None
        kept = text.rstrip()
        return f"{kept}\n\n{block}" if kept else block
    inner = text[begin + len(BEGIN) : end].strip("\n")
    found = _SUM.match(inner)
    if found is None or found[1] != _sum(inner[found.end() :]):
        return None
    changed = text[:begin] + block + text[end + len(END) :]
    return None if changed == text else changed


def squashed(commits: Sequence[Commit]) -> str:
    """Return the message of the squashed commit: one line per commit, and the authors. Does not close mentioned issues."""
    own = _own(commits)
    lines = [f"* {one_line(commit.subject, TITLE)}" for commit in reversed(own)] if len(own) > 1 else []
    return commit_messages.with_trailers("\n".join(lines[:COMMITS]), _people(own)).strip()


def _own(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits without merges, unless there are only merges."""
    return [commit for commit in commits if len(commit.parents) < 2] or list(commits)


def _rank(commit: Commit) -> tuple[bool, int]:
    kind = re.match(r"([a-z]+)(\([^)]*\))?(!?):", commit.subject)
    if kind is None or kind[1] not in _TELLING:
        return True, len(_TELLING)
    return not kind[3], _TELLING.index(kind[1])


def _summary(own: Sequence[Commit], given: str | None) -> str:
    if given is not None and given.strip():
        return cut(_unmarked(given.strip()), GIVEN)
    if len(own) == 1:
        text = quoted(cut(neutral(_first_paragraph(own[0].body)), SUMMARY))
    else:
        subjects = [one_line(commit.subject, TITLE) for commit in reversed(own)]
        more = [f"and {len(own) - COMMITS} more commits"] if len(own) > COMMITS else []
        text = "\n".join(f"- {subject}" for subject in [*subjects[:COMMITS], *more])
    return f"## Summary\n\n{text}" if text else ""


def _task(origin: Origin) -> str:
    text = (origin.task_description or "").strip()
    return f"## Task\n\n{quoted(cut(untagged(text), SUMMARY))}" if text else ""


def _first_paragraph(text: str) -> str:
    first = text.replace("\r\n", "\n").strip().split("\n\n", maxsplit=1)[0]
    return "" if re.match(r"[A-Za-z-]+-by: ", first) else first


def _changes(diff: Diff) -> str:
    if not diff.files:
        return ""
    count = f"{len(diff.files)}{'+' if diff.truncated else ''} {'file' if len(diff.files) == 1 else 'files'}"
    lines = [f"## Changes\n\n{count}, +{diff.added} -{diff.removed}\n"]
    shown = sorted(diff.files, key=lambda file: (str(PurePosixPath(file.path).parent), file.path))[:FILES]
    for folder, files in groupby(shown, key=lambda file: str(PurePosixPath(file.path).parent)):
        lines.append(f"- {code(cut(folder, 200) + '/') if folder != '.' else 'top level'}")
        lines += [f"  - {_file(file)}" for file in files]
    if len(diff.files) > FILES:
        lines.append(f"- and {len(diff.files) - FILES} more")
    elif diff.truncated:
        lines.append("- and more")
    return "\n".join(lines)


def _file(file: FileDiff) -> str:
    name = code(cut(PurePosixPath(file.path).name, 200))
    notes = [_CHANGED[file.change]] if file.change in _CHANGED else []
    if file.old_path and file.change in (Change.RENAMED, Change.COPIED):
        notes = [f"{notes[0]} from {code(cut(file.old_path, 200))}"]
    if file.binary:
        notes.append("binary")
    elif file.added is not None and file.removed is not None:
        notes.append(f"+{file.added} -{file.removed}")
    return f"{name} ({', '.join(notes)})" if notes else name


def _checks(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    lines = [
        f"- {code(check.name)}: {'passed' if check.exit_code == 0 else f'failed (exit code {check.exit_code})'}"
        for check in checks
    ]
    return "## Checks\n\nAs last run in the sandbox:\n" + "\n".join(lines)


def _links(origin: Origin, web_url: str | None) -> str:
    if not web_url:
        return ""
    url = web_url.rstrip("/")
    links = []
    if origin.task_id:
        words = one_line(origin.task_title or "Task", TITLE).translate(_UNBRACKETED)
        links.append(f"- Task: [{words}]({url}/tasks/{origin.task_id})")
    if origin.session_id:
        links.append(f"- [Session]({url}/sessions/{origin.session_id})")
    return "## Links\n\n" + "\n".join(links) if links else ""


def _authors(own: Sequence[Commit]) -> str:
    names = [one_line(person.name, 100) for person in _people(own)[:AUTHORS]]
    return f"Co-authored by {', '.join(names)}." if names else ""


def _people(own: Sequence[Commit]) -> list[Identity]:
    """Return the co-authors named in the commits, each once."""
    found: dict[str, Identity] = {}
    for commit in reversed(own):
        for person in commit_messages.co_authors(commit.body):
            found.setdefault(person.email.lower(), person)
    return list(found.values())


def _marked(text: str) -> str:
    return f"{BEGIN}\n<!-- sandyard:sum {_sum(text)} -->\n{text}\n{END}"


def _sum(text: str) -> str:
    return hashlib.sha256(text.strip("\n").encode(errors="replace")).hexdigest()[:16]


def _unmarked(text: str) -> str:
    return _MARK.sub(f"<{GAP}!-- ", text)
