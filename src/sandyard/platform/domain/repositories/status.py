"""Read the status of a work tree, from git's output or from a commit that stores the work tree.

All data may come from a sandbox: names are arbitrary bytes, separated by NUL bytes and shown with replacement
characters if they are not Unicode.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

from sandyard.platform.domain.repositories.diff import CHANGES, DIFF, parse_raw
from sandyard.platform.domain.repositories.model import Change, RepositoryReader, Status, StatusEntry
from sandyard.platform.domain.repositories.output import decode_name, is_commit_id, parse_output

MAX_ENTRIES = 10_000
"""Maximum number of entries in a status."""
_MAX_LISTING_BYTES = 8 << 20
_MAX_STATUS_BYTES = 4 << 20
_MAX_HEADERS = 64
_MAX_STATE_LENGTH = 64


def parse_status(porcelain_v2_z: bytes, *, under_way: str | None = None, truncated: bool = False) -> Status:
    """Parse the output of `git status --porcelain=v2 -z --branch`.

    A last entry that was cut off is omitted. Entries beyond MAX_ENTRIES are omitted and make the status truncated. The
    time is bounded, however long the output is.
    """
    # an entry has at most two fields
    *output, remainder = porcelain_v2_z[:_MAX_STATUS_BYTES].split(b"\0", MAX_ENTRIES * 2 + _MAX_HEADERS)
    truncated = truncated or len(porcelain_v2_z) > _MAX_STATUS_BYTES or b"\0" in remainder
    fields = iter(output)
    branch = head = None
    entries: list[StatusEntry] = []
    for field in fields:
        kind, _, rest = field.partition(b" ")
        if len(entries) == MAX_ENTRIES:
            truncated = True
            break
        if kind == b"#":
            name, _, value = rest.partition(b" ")
            if name == b"branch.oid" and is_commit_id(value.decode("ascii", "replace")):
                head = value.decode()
            elif name == b"branch.head" and value != b"(detached)":
                branch = decode_name(value)
        elif kind == b"?":
            entries.append(StatusEntry(decode_name(rest), worktree=Change.UNTRACKED))
        elif kind in (b"1", b"2", b"u"):
            entry = _parse_entry(kind, rest, fields)
            if entry is not None:
                entries.append(entry)
    return Status(
        branch, head, tuple(entries), under_way=under_way and under_way[:_MAX_STATE_LENGTH], truncated=truncated
    )


def _parse_entry(kind: bytes, rest: bytes, fields: Iterator[bytes]) -> StatusEntry | None:
    path_index = {b"1": 7, b"2": 8, b"u": 9}[kind]
    parts = rest.split(b" ", path_index)
    if len(parts) <= path_index:
        return None
    path, letters = decode_name(parts[path_index]), parts[0].decode("ascii", "replace")
    if kind == b"u":
        return StatusEntry(path, index=Change.CONFLICTED, worktree=Change.CONFLICTED)
    old = next(fields, None) if kind == b"2" else None
    return StatusEntry(
        path,
        index=CHANGES.get(letters[:1]),
        worktree=CHANGES.get(letters[1:2]),
        old_path=None if old is None else decode_name(old),
    )


async def read_stored_status(
    repository: RepositoryReader,
    commit: str,
    *,
    branch: str | None,
    as_of: datetime | None = None,
    limit: int = _MAX_LISTING_BYTES,
) -> Status:
    """Return the status of a paused sandbox from the commit of its work tree.

    Staged changes are the differences between HEAD and the index; the other changes are those between the index and the
    files. Equals the output of `git status`, except for conflicts.
    """
    output, _ = await repository.read("rev-parse", "--verify", "--end-of-options", f"{commit}^1")
    staged_output, staged_truncated = await repository.read(
        *DIFF, "-z", "--raw", "-M", f"{commit}^1", f"{commit}^2", "--", limit=limit
    )
    unstaged_output, unstaged_truncated = await repository.read(
        *DIFF, "-z", "--raw", "--no-renames", f"{commit}^2", commit, "--", limit=limit
    )
    staged = await parse_output(staged_output, lambda output: parse_raw(output, MAX_ENTRIES))
    unstaged = await parse_output(unstaged_output, lambda output: parse_raw(output, MAX_ENTRIES))
    entries: dict[bytes, StatusEntry] = {}
    for raw in staged.changes:
        old = None if raw.old is None else decode_name(raw.old)
        entries[raw.path] = StatusEntry(decode_name(raw.path), index=raw.change, old_path=old)
    for raw in unstaged.changes:
        untracked = raw.change is Change.ADDED
        change = Change.UNTRACKED if untracked else raw.change
        known = entries.get(raw.path)
        if known is None or (untracked and known.index is not None):
            # a file that was removed from the index and still exists is listed twice, as in git
            key = raw.path if known is None else raw.path + b"\0"
            entries[key] = StatusEntry(decode_name(raw.path), worktree=change)
        else:
            entries[raw.path] = replace(known, worktree=change)
    ordered = sorted(entries.values(), key=lambda entry: (entry.worktree is Change.UNTRACKED, entry.path))
    return Status(
        branch=branch,
        head=output.decode("ascii", "replace").strip(),
        entries=tuple(ordered[:MAX_ENTRIES]),
        truncated=staged_truncated
        or unstaged_truncated
        or staged.is_truncated
        or unstaged.is_truncated
        or len(ordered) > MAX_ENTRIES,
        live=False,
        as_of=as_of,
    )
