"""Read history, status and diffs from a mirror or a checkout.

All data may come from a sandbox: names are arbitrary bytes, and messages and files have any size. Names are separated
by NUL bytes and shown with replacement characters if they are not Unicode.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from sandyard.platform.domain.git.errors import GitFailedError
from sandyard.platform.domain.git.model import (
    Change,
    Commit,
    Diff,
    FileDiff,
    Identity,
    Place,
    Status,
    StatusEntry,
)
from sandyard.platform.domain.git.raw import (
    CHANGES,
    DIFF,
    Counts,
    Listed,
    Raw,
    parse_numstat,
    parse_raw,
    parsed,
    read_patches,
    shown,
)

MAX_FILES = 1000
MAX_BYTES = 4 << 20
MAX_FILE_BYTES = 256 << 10
MAX_ENTRIES = 10_000
"""Maximum number of entries in a status."""
_MAX_LISTING_BYTES = 8 << 20
_MAX_STATUS_BYTES = 4 << 20
_MAX_HEADERS = 64
_FIELDS = 10
_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b"
_ID, _PARENTS, _PERSON, _DATE, _SUBJECT, _BODY = 64, 6500, 300, 20, 1000, 20_000
"""Maximum number of characters of each field to return, because a commit may have any number."""
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(text: str) -> bool:
    """Return whether the text has the form of a full commit id."""
    return _OID.fullmatch(text) is not None


# history --------------------------------------------------------------------------------------------------------------


async def history(place: Place, rev_range: str, *, limit: int, skip: int = 0) -> list[Commit]:
    """Return at most `limit` commits, newest first. Very long messages are truncated.

    Returns an empty list if there are no commits yet. Raises GitFailedError if the range names a missing commit.
    """
    try:
        output, truncated = await place.read(
            *(
                "log",
                "-z",
                f"--format={_FORMAT}",
                "--encoding=UTF-8",
                "--no-color",
                "--no-show-signature",
                "--no-notes",
            ),
            *(f"--max-count={limit}", f"--skip={skip}", "--end-of-options", rev_range, "--"),
            limit=_MAX_LISTING_BYTES,
        )
    except GitFailedError:
        if rev_range == "HEAD" and not await _has_commits(place):
            return []
        raise
    return await parsed(output, lambda output: _parse_commits(output, limit, truncated))


def _parse_commits(output: bytes, limit: int, truncated: bool) -> list[Commit]:
    fields = output.split(b"\0", max(limit, 0) * _FIELDS)
    whole = len(fields) // _FIELDS
    if truncated and whole and len(fields) == whole * _FIELDS:
        whole -= 1  # the body of the last commit may be cut off
    return [_parse_commit(fields[at : at + _FIELDS]) for at in range(0, whole * _FIELDS, _FIELDS)]


async def _has_commits(place: Place) -> bool:
    try:
        await place.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
    except GitFailedError:
        return False
    return True


def _parse_commit(fields: Sequence[bytes]) -> Commit:
    return Commit(
        id=_decode(fields[0], _ID),
        parents=tuple(_decode(fields[1], _PARENTS).split()),
        author=Identity(_decode(fields[2], _PERSON), _decode(fields[3], _PERSON)),
        committer=Identity(_decode(fields[5], _PERSON), _decode(fields[6], _PERSON)),
        authored_at=_parse_date(_decode(fields[4], _DATE)),
        committed_at=_parse_date(_decode(fields[7], _DATE)),
        subject=_decode(fields[8], _SUBJECT),
        body=_decode(fields[9].strip(b"\n"), _BODY),
    )


def _decode(field: bytes, most: int) -> str:
    return field[: most * 4].decode(errors="replace")[:most]


def _parse_date(text: str) -> datetime:
    """Parse a date. Commits may contain any date; one that cannot be represented becomes the epoch."""
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


# status ---------------------------------------------------------------------------------------------------------------


def parse_status(porcelain_v2_z: bytes, *, under_way: str | None = None, truncated: bool = False) -> Status:
    """Parse the output of `git status --porcelain=v2 -z --branch`.

    A last entry that was cut off is omitted. Entries beyond MAX_ENTRIES are omitted and make the status truncated. The
    time is bounded, however long the output is.
    """
    # an entry has at most two fields
    *output, left = porcelain_v2_z[:_MAX_STATUS_BYTES].split(b"\0", MAX_ENTRIES * 2 + _MAX_HEADERS)
    truncated = truncated or len(porcelain_v2_z) > _MAX_STATUS_BYTES or b"\0" in left
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
            if name == b"branch.oid" and is_commit(value.decode("ascii", "replace")):
                head = value.decode()
            elif name == b"branch.head" and value != b"(detached)":
                branch = shown(value)
        elif kind == b"?":
            entries.append(StatusEntry(shown(rest), worktree=Change.UNTRACKED))
        elif kind in (b"1", b"2", b"u"):
            entry = _parse_entry(kind, rest, fields)
            if entry is not None:
                entries.append(entry)
    return Status(branch, head, tuple(entries), under_way=under_way and under_way[:_ID], truncated=truncated)


def _parse_entry(kind: bytes, rest: bytes, fields: Iterator[bytes]) -> StatusEntry | None:
    before = {b"1": 7, b"2": 8, b"u": 9}[kind]
    parts = rest.split(b" ", before)
    if len(parts) <= before:
        return None
    path, letters = shown(parts[before]), parts[0].decode("ascii", "replace")
    if kind == b"u":
        return StatusEntry(path, index=Change.CONFLICTED, worktree=Change.CONFLICTED)
    old = next(fields, None) if kind == b"2" else None
    return StatusEntry(
        path,
        index=CHANGES.get(letters[:1]),
        worktree=CHANGES.get(letters[1:2]),
        old_path=None if old is None else shown(old),
    )


async def status_between(
    place: Place, commit: str, *, branch: str | None, as_of: datetime | None = None, limit: int = _MAX_LISTING_BYTES
) -> Status:
    """Return the status of a paused sandbox from the commit of its work tree.

    Staged changes are the differences between HEAD and the index; the other changes are those between the index and the
    files. Equals the output of `git status`, except for conflicts.
    """
    output, _ = await place.read("rev-parse", "--verify", "--end-of-options", f"{commit}^1")
    staged, cut = await place.read(*DIFF, "-z", "--raw", "-M", f"{commit}^1", f"{commit}^2", "--", limit=limit)
    loose, cut_too = await place.read(*DIFF, "-z", "--raw", "--no-renames", f"{commit}^2", commit, "--", limit=limit)
    staged_ones = await parsed(staged, lambda output: parse_raw(output, MAX_ENTRIES))
    loose_ones = await parsed(loose, lambda output: parse_raw(output, MAX_ENTRIES))
    entries: dict[bytes, StatusEntry] = {}
    for found in staged_ones.found:
        old = None if found.old is None else shown(found.old)
        entries[found.path] = StatusEntry(shown(found.path), index=found.change, old_path=old)
    for found in loose_ones.found:
        untracked = found.change is Change.ADDED
        change = Change.UNTRACKED if untracked else found.change
        known = entries.get(found.path)
        if known is None or (untracked and known.index is not None):
            # a file that was removed from the index and still exists is listed twice, as in git
            key = found.path if known is None else found.path + b"\0"
            entries[key] = StatusEntry(shown(found.path), worktree=change)
        else:
            entries[found.path] = replace(known, worktree=change)
    ordered = sorted(entries.values(), key=lambda entry: (entry.worktree is Change.UNTRACKED, entry.path))
    return Status(
        branch=branch,
        head=output.decode("ascii", "replace").strip(),
        entries=tuple(ordered[:MAX_ENTRIES]),
        truncated=cut or cut_too or staged_ones.cut or loose_ones.cut or len(ordered) > MAX_ENTRIES,
        live=False,
        as_of=as_of,
    )


# diffs ----------------------------------------------------------------------------------------------------------------


async def diff(
    place: Place,
    base: str,
    head: str,
    *,
    paths: Sequence[str] = (),
    patches: bool = True,
    context: int = 3,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    max_file_bytes: int = MAX_FILE_BYTES,
) -> Diff:
    """Return the changes from `base` to `head`, which are commits or trees. Detects renames and copies.

    Patches have at most `max_file_bytes` per file and `max_bytes` in total. Files beyond `max_files` are counted but
    not listed.
    """
    ends = ("--end-of-options", base, head, "--")
    output, cut = await place.read(
        *DIFF, "-z", "--raw", "--numstat", "-M", "-C", *ends, *paths, limit=_MAX_LISTING_BYTES
    )
    listed, counts = await parsed(output, lambda output: _parse_listing(output, max_files))
    found = listed.found
    files = [_to_file_diff(raw, counts.each.get(raw.key)) for raw in found]
    if patches:
        wanted = [
            raw.key
            for raw, file in zip(found, files, strict=True)
            if not file.binary and (file.added or 0) + (file.removed or 0) <= max_file_bytes // 2
        ]
        texts = await read_patches(place, ends, wanted, context=context, limit=max_bytes, each=max_file_bytes)
        files = [_with_patch(file, texts.get(raw.key)) for raw, file in zip(found, files, strict=True)]
    return Diff(
        base,
        head,
        tuple(files),
        added=counts.added,
        removed=counts.removed,
        truncated=cut or listed.cut,
    )


def _parse_listing(output: bytes, most: int) -> tuple[Listed, Counts]:
    listed = parse_raw(output, most)
    return listed, parse_numstat(output, listed)


def _to_file_diff(raw: Raw, count: tuple[int | None, int | None] | None) -> FileDiff:
    added, removed = count or (None, None)
    return FileDiff(
        path=shown(raw.path),
        change=raw.change,
        old_path=None if raw.old is None else shown(raw.old),
        added=added,
        removed=removed,
        binary=count is not None and added is None,
        old_mode=None if raw.old_mode == "000000" else raw.old_mode,
        new_mode=None if raw.new_mode == "000000" else raw.new_mode,
    )


def _with_patch(file: FileDiff, text: bytes | None) -> FileDiff:
    if file.binary:
        return file
    if text is None:
        return replace(file, truncated=True)
    return replace(file, patch=text.decode(errors="replace"))
