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
from sandyard.platform.domain.git.raw import CHANGES, DIFF, Raw, parse_numstat, parse_raw, read_patches, shown

MAX_FILES = 1000
MAX_BYTES = 4 << 20
MAX_FILE_BYTES = 256 << 10
_LISTED = 8 << 20
_FIELDS = 10
_FORMAT = "%H%x00%P%x00%an%x00%ae%x00%at%x00%cn%x00%ce%x00%ct%x00%s%x00%b"
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def is_commit(text: str) -> bool:
    """Whether it is written as the whole id of one."""
    return _OID.fullmatch(text) is not None


# history -----------------------------------------------------------------------------------------------------------------


async def history(place: Place, rev_range: str, *, limit: int, skip: int = 0) -> list[Commit]:
    """Newest first. None where there is no commit yet. GitFailedError when the range names what is not there."""
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
    fields = [field.decode(errors="replace") for field in told.split(b"\0")]
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


def _commit(fields: Sequence[str]) -> Commit:
    return Commit(
        id=fields[0],
        parents=tuple(fields[1].split()),
        author=Identity(fields[2], fields[3]),
        committer=Identity(fields[5], fields[6]),
        authored_at=_moment(fields[4]),
        committed_at=_moment(fields[7]),
        subject=fields[8],
        body=fields[9].strip("\n"),
    )


def _moment(text: str) -> datetime:
    """Anybody may write any date into a commit: one that cannot be told is the beginning of time."""
    try:
        return datetime.fromtimestamp(int(text), UTC)
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0, UTC)


# status ------------------------------------------------------------------------------------------------------------------


def parse_status(porcelain_v2_z: bytes, *, under_way: str | None = None, truncated: bool = False) -> Status:
    """Of `git status --porcelain=v2 -z --branch`. A last entry that was cut off is left out."""
    fields = iter(porcelain_v2_z.split(b"\0")[:-1])
    branch = head = None
    entries: list[StatusEntry] = []
    for field in fields:
        kind, _, rest = field.partition(b" ")
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
    return Status(branch, head, tuple(entries), under_way=under_way, truncated=truncated)


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
    entries: dict[bytes, StatusEntry] = {}
    for found in parse_raw(staged)[0]:
        old = None if found.old is None else shown(found.old)
        entries[found.path] = StatusEntry(shown(found.path), index=found.change, old_path=old)
    for found in parse_raw(loose)[0]:
        untracked = found.change is Change.ADDED
        change = Change.UNTRACKED if untracked else found.change
        known = entries.get(found.path)
        if known is None or (untracked and known.index is not None):
            # one that was removed from the index and is still there is told twice, as git does
            key = found.path if known is None else found.path + b"\0"
            entries[key] = StatusEntry(shown(found.path), worktree=change)
        else:
            entries[found.path] = replace(known, worktree=change)
    return Status(
        branch=branch,
        head=told.decode("ascii", "replace").strip(),
        entries=tuple(sorted(entries.values(), key=lambda entry: (entry.worktree is Change.UNTRACKED, entry.path))),
        truncated=cut or cut_too,
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
    found, rest = parse_raw(told)
    counts = parse_numstat(rest)
    files = [_file(raw, counts.get(raw.key)) for raw in found[:max_files]]
    if patches:
        wanted = [
            raw.key
            for raw, file in zip(found, files, strict=False)
            if not file.binary and (file.added or 0) + (file.removed or 0) <= max_file_bytes // 2
        ]
        texts = await read_patches(place, ends, wanted, context=context, limit=max_bytes, each=max_file_bytes)
        files = [_with_patch(file, texts.get(raw.key)) for raw, file in zip(found, files, strict=False)]
    return Diff(
        base,
        head,
        tuple(files),
        added=sum(added or 0 for added, _ in counts.values()),
        removed=sum(removed or 0 for _, removed in counts.values()),
        truncated=cut or len(found) > max_files,
    )


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
