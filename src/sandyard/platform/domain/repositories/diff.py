"""Read the changes between two commits: a listing of the changed files, and patches matched to their names.

All data may come from a sandbox. Names and file contents may hold any bytes; only NUL bytes and git's quoting separate
them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sandyard.platform.domain.repositories.model import Change, Diff, FileDiff, RepositoryReader
from sandyard.platform.domain.repositories.output import decode_name, parse_output

CHANGES = {
    "A": Change.ADDED,
    "M": Change.MODIFIED,
    "D": Change.DELETED,
    "R": Change.RENAMED,
    "C": Change.COPIED,
    "T": Change.TYPE,
    "U": Change.CONFLICTED,
}
DIFF = ("--literal-pathspecs", "diff-tree", "-r", "--no-ext-diff", "--no-textconv", "--no-color", "-l1000")
"""Plumbing command, which ignores user configuration for diffs."""
MAX_FILES = 1000
MAX_BYTES = 4 << 20
MAX_FILE_BYTES = 256 << 10
_MAX_LISTING_BYTES = 8 << 20
# An entry has about a hundred bytes at least, which bounds the number of entries in the output and thus the parsing time.
_RAW_ENTRY = re.compile(
    rb":([0-7]{6}) ([0-7]{6}) [0-9a-f]{40,64} [0-9a-f]{40,64} "
    rb"(?:([RC])[0-9]{0,3}\0([^\0]*)\0|([AMDTUX])[0-9]{0,3}\0)([^\0]*)\0"
)
# Longer numbers than any line count are not parsed, because they could have any length.
_NUMSTAT_ENTRY = re.compile(rb"([0-9]+|-)\t([0-9]+|-)\t(?:\0([^\0]*)\0([^\0]*)|([^\0]+))\0")
_MAX_DIGITS = 12
_MAX_PATHS_BYTES = 512 << 10
_MAX_ROUNDS = 4
_MAX_LINES = 20_000
_PATCH_START = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_QUOTED_NAME = re.compile(rb'"(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*+"')

Key = tuple[bytes | None, bytes]
"""The previous name of a file if it was renamed or copied, and its current name."""


@dataclass(frozen=True, slots=True)
class RawChange:
    path: bytes
    change: Change
    old: bytes | None
    old_mode: str
    new_mode: str

    @property
    def key(self) -> Key:
        return self.old, self.path


@dataclass(frozen=True, slots=True)
class RawListing:
    """The first entries of a listing, their total number, and the offset where the listing ends."""

    changes: list[RawChange]
    count: int
    end: int

    @property
    def is_truncated(self) -> bool:
        return self.count > len(self.changes)


@dataclass(frozen=True, slots=True)
class LineCounts:
    """Total added and removed lines, and those of each requested file. None for binary files."""

    added: int
    removed: int
    by_file: dict[Key, tuple[int | None, int | None]]


async def read_diff(
    repository: RepositoryReader,
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
    revisions = ("--end-of-options", base, head, "--")
    output, truncated = await repository.read(
        *DIFF, "-z", "--raw", "--numstat", "-M", "-C", *revisions, *paths, limit=_MAX_LISTING_BYTES
    )
    listing, counts = await parse_output(output, lambda output: _parse_listing(output, max_files))
    changes = listing.changes
    files = [_to_file_diff(raw, counts.by_file.get(raw.key)) for raw in changes]
    if patches:
        keys = [
            raw.key
            for raw, file in zip(changes, files, strict=True)
            if not file.binary and (file.added or 0) + (file.removed or 0) <= max_file_bytes // 2
        ]
        texts = await read_patches(
            repository, revisions, keys, context=context, limit=max_bytes, file_limit=max_file_bytes
        )
        files = [_add_patch(file, texts.get(raw.key)) for raw, file in zip(changes, files, strict=True)]
    return Diff(
        base,
        head,
        tuple(files),
        added=counts.added,
        removed=counts.removed,
        truncated=truncated or listing.is_truncated,
    )


def _parse_listing(output: bytes, max_changes: int) -> tuple[RawListing, LineCounts]:
    listing = parse_raw(output, max_changes)
    return listing, parse_numstat(output, listing)


def _to_file_diff(raw: RawChange, count: tuple[int | None, int | None] | None) -> FileDiff:
    added, removed = count or (None, None)
    return FileDiff(
        path=decode_name(raw.path),
        change=raw.change,
        old_path=None if raw.old is None else decode_name(raw.old),
        added=added,
        removed=removed,
        binary=count is not None and added is None,
        old_mode=None if raw.old_mode == "000000" else raw.old_mode,
        new_mode=None if raw.new_mode == "000000" else raw.new_mode,
    )


def _add_patch(file: FileDiff, text: bytes | None) -> FileDiff:
    if file.binary:
        return file
    if text is None:
        return replace(file, truncated=True)
    return replace(file, patch=text.decode(errors="replace"))


def parse_raw(output: bytes, max_changes: int) -> RawListing:
    """Parse the entries of `--raw -z` and keep the first `max_changes`. Ignores a truncated entry and whatever follows."""
    changes: list[RawChange] = []
    count = position = 0
    while (entry := _RAW_ENTRY.match(output, position)) is not None:
        position = entry.end()
        letter = (entry[3] or entry[5]).decode()
        if letter not in CHANGES:
            continue
        count += 1
        if len(changes) < max_changes:
            changes.append(RawChange(entry[6], CHANGES[letter], entry[4], entry[1].decode(), entry[2].decode()))
    return RawListing(changes, count, position)


def parse_numstat(output: bytes, listing: RawListing) -> LineCounts:
    """Parse the `--numstat -z` part that follows the raw listing and has the same number of entries."""
    keys = {raw.key for raw in listing.changes}
    by_file: dict[Key, tuple[int | None, int | None]] = {}
    added = removed = 0
    position = listing.end
    for _ in range(listing.count):
        entry = _NUMSTAT_ENTRY.match(output, position)
        if entry is None:
            break
        position = entry.end()
        file_added, file_removed = _parse_count(entry[1]), _parse_count(entry[2])
        added, removed = added + (file_added or 0), removed + (file_removed or 0)
        key: Key = (None, entry[5]) if entry[5] else (entry[3], entry[4])
        if key in keys:
            by_file[key] = file_added, file_removed
    return LineCounts(added, removed, by_file)


def _parse_count(digits: bytes) -> int | None:
    return int(digits) if digits != b"-" and len(digits) <= _MAX_DIGITS else None


async def read_patches(
    repository: RepositoryReader,
    revisions: Sequence[str],
    keys: Sequence[Key],
    *,
    context: int,
    limit: int,
    file_limit: int,
) -> dict[Key, bytes]:
    """Return the patches of these files, at most `limit` bytes in total.

    A patch longer than `file_limit` is omitted; the patches after it are not.
    """
    found: dict[Key, bytes] = {}
    remaining = list(keys)
    for _ in range(_MAX_ROUNDS):
        names = list(_fit_names(remaining))
        if not names or limit <= 0:
            break
        order, sections, truncated = await _read_batch(repository, revisions, names, context, limit)
        sections_by_key: dict[Key, list[bytes]] = {}
        for key, section in zip(order, sections, strict=False):
            sections_by_key.setdefault(key, []).append(section)
        # its length is unknown because it was cut off, so it counts as too long
        unknown = order[len(sections) - 1] if truncated and sections_by_key else None
        for key, texts in sections_by_key.items():
            size = sum(map(len, texts))
            if key != unknown and size <= min(file_limit, limit):
                found[key] = b"".join(texts)
                limit -= size
        remaining = [key for key in remaining if key not in sections_by_key]
        if not truncated:
            break
    return found


async def _read_batch(
    repository: RepositoryReader, revisions: Sequence[str], names: Sequence[bytes], context: int, limit: int
) -> tuple[list[Key], list[bytes], bool]:
    """Return the keys of the patches, the patches, and whether the last patch was cut off.

    The raw listing before the patches gives their keys, in the same order: names cannot be parsed from patch headers
    reliably.
    """
    output, truncated = await repository.read(
        *("-c", "core.quotePath=true", *DIFF, "--patch-with-raw", "-M", "-C", f"-U{context}", "--submodule=short"),
        *("--src-prefix=a/", "--dst-prefix=b/", *revisions, *map(os.fsdecode, names)),
        limit=limit + sum(len(name) * 4 + 120 for name in names),
    )
    return *await parse_output(output, _split_patches), truncated


def _split_patches(output: bytes) -> tuple[list[Key], list[bytes]]:
    head, _, body = output.partition(b"\n\n")
    order = [key for line in head.split(b"\n", _MAX_LINES)[:_MAX_LINES] for key in _parse_keys(line)]
    return order, _PATCH_START.split(body, len(order))[1:] if order else []


def _fit_names(keys: Sequence[Key]) -> Iterator[bytes]:
    """Yield the names of these files, as many as fit into one command line."""
    size = 0
    for name in dict.fromkeys(name for key in keys for name in key if name):
        size += len(name) + 9
        if size > _MAX_PATHS_BYTES:
            return
        yield name


def _parse_keys(line: bytes) -> list[Key]:
    """Return the key of the next patch, twice for a type change, because git shows that as a deletion and an addition."""
    metadata, *names = line.split(b"\t")
    if not metadata.startswith(b":") or not names:
        return []
    plain = [_unquote(name) for name in names]
    key = (plain[0] if len(plain) == 2 else None, plain[-1])
    return [key, key] if metadata.rpartition(b" ")[2].startswith(b"T") else [key]


def _unquote(name: bytes) -> bytes:
    # git's escapes are a subset of Python's
    return name[1:-1].decode("unicode_escape").encode("latin-1") if _QUOTED_NAME.fullmatch(name) else name
