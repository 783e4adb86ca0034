"""Generate the title and body of a pull request.

Commit messages are written by an agent: they must trigger nothing and must not look like our text (`markdown.py`). A task's description was
written by a person or comes from outside: it is quoted, and mentions and references in it work. The opener's text is used as is. Our part of
the body is between two marks. Only that part is ever changed, and only while nobody has edited it.

Of the checks that were run in the sandbox, only the name of a known tool is shown, because a command line may contain anything, including
secrets. A check is shown only if the exit code is its own: `pytest | tail` has the exit code of tail, and `pytest || true` always succeeds.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import PurePosixPath

from sqlalchemy import select

from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Command
from sandyard.platform.domain.forge.markdown import (
    ZERO_WIDTH_SPACE,
    disable_tags,
    format_code,
    format_line,
    neutralize,
    quote,
    truncate,
)
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.repositories.model import Change, Commit, Diff, FileDiff, Identity
from sandyard.platform.domain.sandboxes.model import CommandStatus

BEGIN, END = "<!-- sandyard:begin -->", "<!-- sandyard:end -->"
MAX_TITLE, MAX_BODY, MAX_GIVEN, MAX_SUMMARY = 120, 64_000, 60_000, 8_000
"""Maximum lengths in characters; `MAX_GIVEN` is that of the opener's text. GitHub accepts 65,536 for a body."""
MAX_FILES, MAX_COMMITS, MAX_AUTHORS = 30, 30, 20
_CHECKSUM = re.compile(r"<!-- sandyard:sum ([0-9a-f]{16}) -->\n?")
_MARK_START = re.compile(r"<!--\s*(?=sandyard:)", re.IGNORECASE)
_TYPES_BY_RANK = ("feat", "fix", "perf", "refactor", "revert", "build", "ci", "test", "docs", "style", "chore")
_WITHOUT_BRACKETS = str.maketrans({"[": "(", "]": ")", "\\": "/"})
_CHANGE_NAMES = {
    Change.ADDED: "new",
    Change.DELETED: "deleted",
    Change.RENAMED: "renamed",
    Change.COPIED: "copied",
    Change.TYPE: "type changed",
}
MAX_COMMANDS, MAX_CHECKS = 500, 10
"""Maximum number of commands that are searched for checks, and of checks that are shown."""
_REDIRECTION = re.compile(r"\s[012&]?>{1,2}\s?(&[12]|[\w./-]+)")
_AMBIGUOUS = re.compile(r"[|;\n\r`$()!<>\\'\"]|(?<!&)&(?!&)|\s--?(version|help|collect-only|co|dry-run)\b")
_CHECK = re.compile(
    r"\s*(?:[A-Za-z_]\w*=\S*\s+)*"  # variables
    r"(?:python3? -m |uv run |poetry run |pdm run |npx |\.venv/bin/|\./node_modules/\.bin/|\./)?"
    r"(?P<name>"
    r"pytest|tox|nox|mypy|pyright|ruff check|eslint|tsc|vitest run|jest|phpunit|rspec|ctest|shellcheck|golangci-lint run"
    r"|(?:npm|pnpm|yarn)(?: run)? (?:test|lint|build|typecheck|check)"
    r"|(?:cargo|go|mvn|gradle|dotnet|swift|mix|deno|bun) (?:test|check|clippy|vet|build|verify)"
    r"|make (?:test|check|lint|build|verify)"
    r")(?:\s.*)?"
)


@dataclass(frozen=True, slots=True)
class Origin:
    """The session and task that the work was done for. The task's text was written by a user."""

    session_id: str | None = None
    task_id: str | None = None
    task_title: str | None = None
    task_description: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A check that was run in the sandbox, and its result."""

    name: str
    exit_code: int


def generate_title(
    commits: Sequence[Commit], origin: Origin, *, given: str | None = None, conventional: bool = True
) -> str:
    """Return the given title, or the only commit's subject, or the task's title, or the most descriptive subject.

    `commits` must not be empty.
    """
    if given is not None and given.strip():
        return truncate(" ".join(given.split()), MAX_TITLE)
    own = _remove_merges(commits)
    if len(own) == 1:
        return format_line(own[0].subject, MAX_TITLE)
    if origin.task_title and origin.task_title.strip():
        title = " ".join(origin.task_title.split())
        return truncate(commit_messages.suggest_subject(title) if conventional else title, MAX_TITLE)
    return format_line(min(reversed(own), key=_get_rank).subject, MAX_TITLE)


def generate_body(
    commits: Sequence[Commit],
    diff: Diff,
    origin: Origin,
    *,
    given: str | None = None,
    checks: Sequence[Check] = (),
    web_url: str | None = None,
) -> str:
    """Return our part of the body, between its marks. `commits` are newest first. `web_url`: the platform's URL, for links."""
    own = _remove_merges(commits)
    sections = [
        _format_summary(own, given),
        _format_task(origin) if given is None else "",
        _format_changes(diff),
        _format_checks(checks),
        _format_links(origin, web_url),
        _format_authors(own),
    ]
    text = "\n\n".join(section for section in sections if section)
    return _add_marks(truncate(text, MAX_BODY))


def refresh_body(existing: str, block: str, *, ours: bool) -> str | None:
    """Return the body with our part updated.

    None if there is nothing to change: our part is current, or a person has edited or removed it (`ours`: this pull request had one).
    """
    text = existing.replace("\r\n", "\n")
    begin, end = text.find(BEGIN), text.rfind(END)
    if begin < 0 or end < begin:
        if ours:
            return None
        rest = text.rstrip()
        return f"{rest}\n\n{block}" if rest else block
    inner = text[begin + len(BEGIN) : end].strip("\n")
    found = _CHECKSUM.match(inner)
    if found is None or found[1] != _hash(inner[found.end() :]):
        return None
    changed = text[:begin] + block + text[end + len(END) :]
    return None if changed == text else changed


def describe_squash(commits: Sequence[Commit]) -> str:
    """Return the message of the squashed commit: one line per commit, and the authors. Does not close mentioned issues."""
    own = _remove_merges(commits)
    lines = [f"* {format_line(commit.subject, MAX_TITLE)}" for commit in reversed(own)] if len(own) > 1 else []
    return commit_messages.add_trailers("\n".join(lines[:MAX_COMMITS]), _list_co_authors(own)).strip()


def _remove_merges(commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits without merges, unless there are only merges."""
    return [commit for commit in commits if len(commit.parents) < 2] or list(commits)


def _get_rank(commit: Commit) -> tuple[bool, int]:
    """Return a sort key: breaking changes first, then by type."""
    kind = re.match(r"([a-z]+)(\([^)]*\))?(!?):", commit.subject)
    if kind is None or kind[1] not in _TYPES_BY_RANK:
        return True, len(_TYPES_BY_RANK)
    return not kind[3], _TYPES_BY_RANK.index(kind[1])


def _format_summary(commits: Sequence[Commit], given: str | None) -> str:
    if given is not None and given.strip():
        return truncate(_remove_marks(given.strip()), MAX_GIVEN)
    if len(commits) == 1:
        text = quote(truncate(neutralize(_get_first_paragraph(commits[0].body)), MAX_SUMMARY))
    else:
        subjects = [format_line(commit.subject, MAX_TITLE) for commit in reversed(commits)]
        more = [f"and {len(commits) - MAX_COMMITS} more commits"] if len(commits) > MAX_COMMITS else []
        text = "\n".join(f"- {subject}" for subject in [*subjects[:MAX_COMMITS], *more])
    return f"## Summary\n\n{text}" if text else ""


def _format_task(origin: Origin) -> str:
    text = (origin.task_description or "").strip()
    return f"## Task\n\n{quote(truncate(disable_tags(text), MAX_SUMMARY))}" if text else ""


def _get_first_paragraph(text: str) -> str:
    first = text.replace("\r\n", "\n").strip().split("\n\n", maxsplit=1)[0]
    return "" if re.match(r"[A-Za-z-]+-by: ", first) else first


def _format_changes(diff: Diff) -> str:
    if not diff.files:
        return ""
    count = f"{len(diff.files)}{'+' if diff.truncated else ''} {'file' if len(diff.files) == 1 else 'files'}"
    lines = [f"## Changes\n\n{count}, +{diff.added} -{diff.removed}\n"]
    shown = sorted(diff.files, key=lambda file: (str(PurePosixPath(file.path).parent), file.path))[:MAX_FILES]
    for folder, files in groupby(shown, key=lambda file: str(PurePosixPath(file.path).parent)):
        lines.append(f"- {format_code(truncate(folder, 200) + '/') if folder != '.' else 'top level'}")
        lines += [f"  - {_format_file(file)}" for file in files]
    if len(diff.files) > MAX_FILES:
        lines.append(f"- and {len(diff.files) - MAX_FILES} more")
    elif diff.truncated:
        lines.append("- and more")
    return "\n".join(lines)


def _format_file(file: FileDiff) -> str:
    name = format_code(truncate(PurePosixPath(file.path).name, 200))
    notes = [_CHANGE_NAMES[file.change]] if file.change in _CHANGE_NAMES else []
    if file.old_path and file.change in (Change.RENAMED, Change.COPIED):
        notes = [f"{notes[0]} from {format_code(truncate(file.old_path, 200))}"]
    if file.binary:
        notes.append("binary")
    elif file.added is not None and file.removed is not None:
        notes.append(f"+{file.added} -{file.removed}")
    return f"{name} ({', '.join(notes)})" if notes else name


def _format_checks(checks: Sequence[Check]) -> str:
    if not checks:
        return ""
    lines = [
        f"- {format_code(check.name)}: {'passed' if check.exit_code == 0 else f'failed (exit code {check.exit_code})'}"
        for check in checks
    ]
    return "## Checks\n\nAs last run in the sandbox:\n" + "\n".join(lines)


def _format_links(origin: Origin, web_url: str | None) -> str:
    if not web_url:
        return ""
    url = web_url.rstrip("/")
    links = []
    if origin.task_id:
        title = format_line(origin.task_title or "Task", MAX_TITLE).translate(_WITHOUT_BRACKETS)
        links.append(f"- Task: [{title}]({url}/tasks/{origin.task_id})")
    if origin.session_id:
        links.append(f"- [Session]({url}/sessions/{origin.session_id})")
    return "## Links\n\n" + "\n".join(links) if links else ""


def _format_authors(commits: Sequence[Commit]) -> str:
    names = [format_line(person.name, 100) for person in _list_co_authors(commits)[:MAX_AUTHORS]]
    return f"Co-authored by {', '.join(names)}." if names else ""


def _list_co_authors(commits: Sequence[Commit]) -> list[Identity]:
    """Return the co-authors named in the commits, each once."""
    found: dict[str, Identity] = {}
    for commit in reversed(commits):
        for person in commit_messages.parse_co_authors(commit.body):
            found.setdefault(person.email.lower(), person)
    return list(found.values())


def _add_marks(text: str) -> str:
    return f"{BEGIN}\n<!-- sandyard:sum {_hash(text)} -->\n{text}\n{END}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.strip("\n").encode(errors="replace")).hexdigest()[:16]


def _remove_marks(text: str) -> str:
    return _MARK_START.sub(f"<{ZERO_WIDTH_SPACE}!-- ", text)


async def list_checks(database: Database, sandbox_id: str) -> list[Check]:
    """Return the last result of each check, in the order they were last run."""
    query = select(Command.command, Command.exit_code)
    query = query.where(Command.sandbox_id == sandbox_id, Command.status == CommandStatus.EXITED)
    async with database.reading() as session:
        rows = (await session.execute(query.order_by(Command.id.desc()).limit(MAX_COMMANDS))).all()
    found: dict[str, Check] = {}
    for line, exit_code in rows:
        check = parse_check(line, exit_code) if exit_code is not None else None
        if check is not None:
            found.setdefault(check.name, check)
    return list(reversed(list(found.values())))[-MAX_CHECKS:]


def parse_check(line: str, exit_code: int) -> Check | None:
    """Return what this exit code says about checks. For a failed chain, the failing part is known only if all parts are checks."""
    plain = _REDIRECTION.sub("", line.strip())
    if _AMBIGUOUS.search(plain):
        return None
    parts = [_CHECK.fullmatch(part) for part in plain.split("&&")]
    names = [part["name"] for part in parts if part is not None]
    if not names or (exit_code != 0 and len(names) < len(parts)):
        return None
    return Check(" and ".join(dict.fromkeys(names)), exit_code)
