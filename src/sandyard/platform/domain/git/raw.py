"""Parse git's raw listings of changed files: names as bytes, and patches matched to their names.

Names and file contents may hold any bytes; only NUL bytes and git's quoting separate them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sandyard.platform.domain.git.model import Change, Place

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
_THREAD_THRESHOLD = 256 << 10
_MAX_NAME_BYTES = 4096
"""Maximum number of bytes of a name to show. No file system can open a longer one."""
# An entry has about a hundred bytes at least, which bounds the number of entries in the output and thus the parsing
# time.
_ENTRY = re.compile(
    rb":([0-7]{6}) ([0-7]{6}) [0-9a-f]{40,64} [0-9a-f]{40,64} "
    rb"(?:([RC])[0-9]{0,3}\0([^\0]*)\0|([AMDTUX])[0-9]{0,3}\0)([^\0]*)\0"
)
# Longer numbers than any line count are not parsed, because they could have any length.
_COUNT = re.compile(rb"([0-9]+|-)\t([0-9]+|-)\t(?:\0([^\0]*)\0([^\0]*)|([^\0]+))\0")
_MAX_DIGITS = 12
_MAX_PATHS_BYTES = 512 << 10
_MAX_ROUNDS = 4
_MAX_LINES = 20_000
_PATCH = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*+"')

Key = tuple[bytes | None, bytes]
"""The previous name of a file if it was renamed or copied, and its current name."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Raw:
    path: bytes
    change: Change
    old: bytes | None
    old_mode: str
    new_mode: str

    @property
    def key(self) -> Key:
        return self.old, self.path


@dataclass(frozen=True, slots=True)
class Listed:
    """The first entries of a listing, their total number, and the offset where the listing ends."""

    found: list[Raw]
    count: int
    end: int

    @property
    def cut(self) -> bool:
        return self.count > len(self.found)


@dataclass(frozen=True, slots=True)
class Counts:
    """Total added and removed lines, and those of each requested file. None for binary files."""

    added: int
    removed: int
    each: dict[Key, tuple[int | None, int | None]]


async def parsed(output: bytes, parse: Callable[[bytes], T]) -> T:
    """Parse output, in a thread if it is long: a sandbox may send any amount, which would block the event loop."""
    return await asyncio.to_thread(parse, output) if len(output) > _THREAD_THRESHOLD else parse(output)


def parse_raw(output: bytes, most: int) -> Listed:
    """Parse the entries of `--raw -z` and keep the first `most`. Ignores a truncated entry and whatever follows the
    listing."""
    found: list[Raw] = []
    count = at = 0
    while (entry := _ENTRY.match(output, at)) is not None:
        at = entry.end()
        letter = (entry[3] or entry[5]).decode()
        if letter not in CHANGES:
            continue
        count += 1
        if len(found) < most:
            found.append(Raw(entry[6], CHANGES[letter], entry[4], entry[1].decode(), entry[2].decode()))
    return Listed(found, count, at)


def parse_numstat(output: bytes, listed: Listed) -> Counts:
    """Parse the `--numstat -z` part that follows the raw listing and has the same number of entries."""
    wanted = {raw.key for raw in listed.found}
    each: dict[Key, tuple[int | None, int | None]] = {}
    added = removed = 0
    at = listed.end
    for _ in range(listed.count):
        entry = _COUNT.match(output, at)
        if entry is None:
            break
        at = entry.end()
        more, less = _parse_count(entry[1]), _parse_count(entry[2])
        added, removed = added + (more or 0), removed + (less or 0)
        key: Key = (None, entry[5]) if entry[5] else (entry[3], entry[4])
        if key in wanted:
            each[key] = more, less
    return Counts(added, removed, each)


def _parse_count(digits: bytes) -> int | None:
    return int(digits) if digits != b"-" and len(digits) <= _MAX_DIGITS else None


async def read_patches(
    place: Place, ends: Sequence[str], wanted: Sequence[Key], *, context: int, limit: int, each: int
) -> dict[Key, bytes]:
    """Return the patches of the files `wanted`, at most `limit` bytes in total.

    A patch longer than `each` is omitted; the patches after it are not.
    """
    found: dict[Key, bytes] = {}
    left = list(wanted)
    for _ in range(_MAX_ROUNDS):
        names = list(_fit_names(left))
        if not names or limit <= 0:
            break
        order, sections, cut = await _read_batch(place, ends, names, context, limit)
        got: dict[Key, list[bytes]] = {}
        for key, section in zip(order, sections, strict=False):
            got.setdefault(key, []).append(section)
        # its length is unknown because it was cut off, so it counts as too long
        unknown = order[len(sections) - 1] if cut and got else None
        for key, texts in got.items():
            size = sum(map(len, texts))
            if key != unknown and size <= min(each, limit):
                found[key] = b"".join(texts)
                limit -= size
        left = [key for key in left if key not in got]
        if not cut:
            break
    return found


async def _read_batch(
    place: Place, ends: Sequence[str], names: Sequence[bytes], context: int, limit: int
) -> tuple[list[Key], list[bytes], bool]:
    """Return the keys of the patches, the patches, and whether the last patch was cut off.

    The raw listing before the patches gives their keys, in the same order: names cannot be parsed from patch headers
    reliably.
    """
    output, cut = await place.read(
        *("-c", "core.quotePath=true", *DIFF, "--patch-with-raw", "-M", "-C", f"-U{context}", "--submodule=short"),
        *("--src-prefix=a/", "--dst-prefix=b/", *ends, *map(os.fsdecode, names)),
        limit=limit + sum(len(name) * 4 + 120 for name in names),
    )
    return *await parsed(output, _split_patches), cut


def _split_patches(output: bytes) -> tuple[list[Key], list[bytes]]:
    head, _, body = output.partition(b"\n\n")
    order = [key for line in head.split(b"\n", _MAX_LINES)[:_MAX_LINES] for key in _parse_keys(line)]
    return order, _PATCH.split(body, len(order))[1:] if order else []


def _fit_names(keys: Sequence[Key]) -> Iterator[bytes]:
    """Yield the names of these files, as many as fit into one command line."""
    size = 0
    for name in dict.fromkeys(name for key in keys for name in key if name):
        size += len(name) + 9
        if size > _MAX_PATHS_BYTES:
            return
        yield name


def _parse_keys(line: bytes) -> list[Key]:
    """Return the key of the next patch. A type change yields it twice, because git shows it as a deletion and an
    addition."""
    about, *names = line.split(b"\t")
    if not about.startswith(b":") or not names:
        return []
    plain = [_unquote(name) for name in names]
    key = (plain[0] if len(plain) == 2 else None, plain[-1])
    return [key, key] if about.rpartition(b" ")[2].startswith(b"T") else [key]


def _unquote(name: bytes) -> bytes:
    # git's escapes are a subset of Python's
    return name[1:-1].decode("unicode_escape").encode("latin-1") if _QUOTED.fullmatch(name) else name


def shown(name: bytes) -> str:
    """Decode a file name for display: replaces invalid UTF-8 and truncates to the longest name a file system accepts."""
    return name[:_MAX_NAME_BYTES].decode(errors="replace")
