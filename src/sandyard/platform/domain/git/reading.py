"""History, status and differences, read out of any repository: a mirror or a checkout.

All of it may come from a sandbox: names are bytes of any kind, messages and files of any size. Names are told apart by zero
bytes and shown with replacement characters where they are not Unicode.
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
"""Of a status."""
_LISTED = 8 << 20
_STATUS = 4 << 20
_HEADERS = 64
_FIELDS = 10
_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b"
_ID, _PARENTS, _PERSON, _DATE, _SUBJECT, _BODY = 64, 6500, 300, 20, 1000, 20_000
"""Characters of each field that are told: a commit may have any number."""
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(text: str) -> bool:
    """Whether it is written as the whole id of one."""
    return _OID.fullmatch(text) is not None


# history -----------------------------------------------------------------------------------------------------------------


async def history(place: Place, rev_range: str, *, limit: int, skip: int = 0) -> list[Commit]:
    """Newest first, never more than `limit`, whatever git answers; of very long messages the beginning. None where there is
    no commit yet. GitFailedError when the range names what is not there."""
    try:
        told, truncated = await place.read(
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
            limit=_LISTED,
        )
    except GitFailedError:
        if rev_range == "HEAD" and not await _born(place):
            return []
        raise
    return await parsed(told, lambda told: _commits(told, limit, truncated))


def _commits(told: bytes, limit: int, truncated: bool) -> list[Commit]:
    fields = told.split(b"\0", max(limit, 0) * _FIELDS)
    whole = len(fields) // _FIELDS
    if truncated and whole and len(fields) == whole * _FIELDS:
        whole -= 1  # the last one's body ends where the reading did
    return [_commit(fields[at : at + _FIELDS]) for at in range(0, whole * _FIELDS, _FIELDS)]


async def _born(place: Place) -> bool:
    try:
        await place.read("rev-parse", "-q", "--verify", "HEAD^{commit}")
    except GitFailedError:
        return False
    return True


def _commit(fields: Sequence[bytes]) -> Commit:
    return Commit(
        id=_text(fields[0], _ID),
        parents=tuple(_text(fields[1], _PARENTS).split()),
        author=Identity(_text(fields[2], _PERSON), _text(fields[3], _PERSON)),
        committer=Identity(_text(fields[5], _PERSON), _text(fields[6], _PERSON)),
        authored_at=_moment(_text(fields[4], _DATE)),
        committed_at=_moment(_text(fields[7], _DATE)),
        subject=_text(fields[8], _SUBJECT),
        body=_text(fields[9].strip(b"\n"), _BODY),
    )


def _text(field: bytes, most: int) -> str:
    return field[: most * 4].decode(errors="replace")[:most]


def _moment(text: str) -> datetime:
    """Anybody may write any date into a commit: one that cannot be told is the beginning of time."""
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


# status ------------------------------------------------------------------------------------------------------------------


def parse_status(porcelain_v2_z: bytes, *, under_way: str | None = None, truncated: bool = False) -> Status:
    """Of `git status --porcelain=v2 -z --branch`. A last entry that was cut off is left out. What is more than MAX_ENTRIES is
    left out too, and makes it truncated; however much was told, this takes a moment."""
    # an entry has two fields at most
    *told, left = porcelain_v2_z[:_STATUS].split(b"\0", MAX_ENTRIES * 2 + _HEADERS)
    truncated = truncated or len(porcelain_v2_z) > _STATUS or b"\0" in left
    fields = iter(told)
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
            entry = _entry(kind, rest, fields)
            if entry is not None:
                entries.append(entry)
    return Status(branch, head, tuple(entries), under_way=under_way and under_way[:_ID], truncated=truncated)


def _entry(kind: bytes, rest: bytes, fields: Iterator[bytes]) -> StatusEntry | None:
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
    place: Place, commit: str, *, branch: str | None, as_of: datetime | None = None, limit: int = _LISTED
) -> Status:
    """The status of a sandbox that sleeps, out of the commit of its work tree: what was staged is what its index has and HEAD
    has not, the rest is what the files have and the index has not. As `git status` had shown it, conflicts apart."""
    told, _ = await place.read("rev-parse", "--verify", "--end-of-options", f"{commit}^1")
    staged, cut = await place.read(*DIFF, "-z", "--raw", "-M", f"{commit}^1", f"{commit}^2", "--", limit=limit)
    loose, cut_too = await place.read(*DIFF, "-z", "--raw", "--no-renames", f"{commit}^2", commit, "--", limit=limit)
    staged_ones = await parsed(staged, lambda told: parse_raw(told, MAX_ENTRIES))
    loose_ones = await parsed(loose, lambda told: parse_raw(told, MAX_ENTRIES))
    entries: dict[bytes, StatusEntry] = {}
    for found in staged_ones.found:
        old = None if found.old is None else shown(found.old)
        entries[found.path] = StatusEntry(shown(found.path), index=found.change, old_path=old)
    for found in loose_ones.found:
        untracked = found.change is Change.ADDED
        change = Change.UNTRACKED if untracked else found.change
        known = entries.get(found.path)
        if known is None or (untracked and known.index is not None):
            # one that was removed from the index and is still there is told twice, as git does
            key = found.path if known is None else found.path + b"\0"
            entries[key] = StatusEntry(shown(found.path), worktree=change)
        else:
            entries[found.path] = replace(known, worktree=change)
    ordered = sorted(entries.values(), key=lambda entry: (entry.worktree is Change.UNTRACKED, entry.path))
    return Status(
        branch=branch,
        head=told.decode("ascii", "replace").strip(),
        entries=tuple(ordered[:MAX_ENTRIES]),
        truncated=cut or cut_too or staged_ones.cut or loose_ones.cut or len(ordered) > MAX_ENTRIES,
        live=False,
        as_of=as_of,
    )


# differences -------------------------------------------------------------------------------------------------------------


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
    """What has to be done to `base` to have `head`, which are commits or trees. Renames and copies are found. Of each file no
    more than `max_file_bytes` of patch, of all together `max_bytes`; files beyond `max_files` are counted and not told."""
    ends = ("--end-of-options", base, head, "--")
    told, cut = await place.read(*DIFF, "-z", "--raw", "--numstat", "-M", "-C", *ends, *paths, limit=_LISTED)
    listed, counts = await parsed(told, lambda told: _listed(told, max_files))
    found = listed.found
    files = [_file(raw, counts.each.get(raw.key)) for raw in found]
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


def _listed(told: bytes, most: int) -> tuple[Listed, Counts]:
    listed = parse_raw(told, most)
    return listed, parse_numstat(told, listed)


def _file(raw: Raw, count: tuple[int | None, int | None] | None) -> FileDiff:
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
