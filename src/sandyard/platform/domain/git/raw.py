"""What git tells of changed files, in its own raw form: names as bytes, and patches put to their names.

Names may be anything, and so may the lines of a file: only zero bytes and git's own quoting tell them apart.
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
"""Plumbing: what somebody has configured for showing differences does not count."""
_APART = 256 << 10
_NAME = 4096
"""Bytes of a name that are shown: no file system opens a longer one."""
# An entry is some hundred bytes at least, so that what is read has no more of them than a moment suffices for.
_ENTRY = re.compile(
    rb":([0-7]{6}) ([0-7]{6}) [0-9a-f]{40,64} [0-9a-f]{40,64} "
    rb"(?:([RC])[0-9]{0,3}\0([^\0]*)\0|([AMDTUX])[0-9]{0,3}\0)([^\0]*)\0"
)
# A number that no file has lines for is not read: it might be of any length.
_COUNT = re.compile(rb"([0-9]+|-)\t([0-9]+|-)\t(?:\0([^\0]*)\0([^\0]*)|([^\0]+))\0")
_DIGITS = 12
_PATHS = 512 << 10
_ROUNDS = 4
_LINES = 20_000
_PATCH = re.compile(rb"^(?=diff --git )", re.MULTILINE)
_QUOTED = re.compile(rb'"(?:[^"\\]|\\[abtnvfr"\\]|\\[0-3][0-7]{2})*+"')

Key = tuple[bytes | None, bytes]
"""The name a file had, where it is another one, and the name it has."""
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
    """The first entries of a list, how many it has, and where in the text it ends."""

    found: list[Raw]
    count: int
    end: int

    @property
    def cut(self) -> bool:
        return self.count > len(self.found)


@dataclass(frozen=True, slots=True)
class Counts:
    """Lines added and removed in all, and of the files that were asked for; None for a binary file."""

    added: int
    removed: int
    each: dict[Key, tuple[int | None, int | None]]


async def parsed(told: bytes, parse: Callable[[bytes], T]) -> T:
    """Reads what is long in a thread: a sandbox may send any amount of it, and others wait for the event loop."""
    return await asyncio.to_thread(parse, told) if len(told) > _APART else parse(told)


def parse_raw(told: bytes, most: int) -> Listed:
    """Entries of `--raw -z`, of which `most` are kept. What was cut off, and what is behind them, is left out."""
    found: list[Raw] = []
    count = at = 0
    while (entry := _ENTRY.match(told, at)) is not None:
        at = entry.end()
        letter = (entry[3] or entry[5]).decode()
        if letter not in CHANGES:
            continue
        count += 1
        if len(found) < most:
            found.append(Raw(entry[6], CHANGES[letter], entry[4], entry[1].decode(), entry[2].decode()))
    return Listed(found, count, at)


def parse_numstat(told: bytes, listed: Listed) -> Counts:
    """Of `--numstat -z` behind the raw list, which has as many entries."""
    wanted = {raw.key for raw in listed.found}
    each: dict[Key, tuple[int | None, int | None]] = {}
    added = removed = 0
    at = listed.end
    for _ in range(listed.count):
        entry = _COUNT.match(told, at)
        if entry is None:
            break
        at = entry.end()
        more, less = _number(entry[1]), _number(entry[2])
        added, removed = added + (more or 0), removed + (less or 0)
        key: Key = (None, entry[5]) if entry[5] else (entry[3], entry[4])
        if key in wanted:
            each[key] = more, less
    return Counts(added, removed, each)


def _number(digits: bytes) -> int | None:
    return int(digits) if digits != b"-" and len(digits) <= _DIGITS else None


async def read_patches(
    place: Place, ends: Sequence[str], wanted: Sequence[Key], *, context: int, limit: int, each: int
) -> dict[Key, bytes]:
    """Of the files `wanted`, no more than `limit` bytes in all; one that is longer than `each` is left out, and those behind it
    are not."""
    found: dict[Key, bytes] = {}
    left = list(wanted)
    for _ in range(_ROUNDS):
        names = list(_bounded(left))
        if not names or limit <= 0:
            break
        order, sections, cut = await _read(place, ends, names, context, limit)
        got: dict[Key, list[bytes]] = {}
        for key, section in zip(order, sections, strict=False):
            got.setdefault(key, []).append(section)
        unknown = order[len(sections) - 1] if cut and got else None  # nobody knows how long it is: too long
        for key, texts in got.items():
            size = sum(map(len, texts))
            if key != unknown and size <= min(each, limit):
                found[key] = b"".join(texts)
                limit -= size
        left = [key for key in left if key not in got]
        if not cut:
            break
    return found


async def _read(
    place: Place, ends: Sequence[str], names: Sequence[bytes], context: int, limit: int
) -> tuple[list[Key], list[bytes], bool]:
    """Whose patches these are, the patches, and whether the last one was cut off. The raw list before the patches says whose
    they are, in their order: from their headers alone, names cannot be told."""
    told, cut = await place.read(
        *("-c", "core.quotePath=true", *DIFF, "--patch-with-raw", "-M", "-C", f"-U{context}", "--submodule=short"),
        *("--src-prefix=a/", "--dst-prefix=b/", *ends, *map(os.fsdecode, names)),
        limit=limit + sum(len(name) * 4 + 120 for name in names),
    )
    return *await parsed(told, _sections), cut


def _sections(told: bytes) -> tuple[list[Key], list[bytes]]:
    head, _, body = told.partition(b"\n\n")
    order = [key for line in head.split(b"\n", _LINES)[:_LINES] for key in _keys(line)]
    return order, _PATCH.split(body, len(order))[1:] if order else []


def _bounded(keys: Sequence[Key]) -> Iterator[bytes]:
    """Their names, as many as fit into one command."""
    size = 0
    for name in dict.fromkeys(name for key in keys for name in key if name):
        size += len(name) + 9
        if size > _PATHS:
            return
        yield name


def _keys(line: bytes) -> list[Key]:
    """Whose the next patch is, and the one behind it where the type has changed: that is told as a deletion and an addition."""
    about, *names = line.split(b"\t")
    if not about.startswith(b":") or not names:
        return []
    plain = [_unquoted(name) for name in names]
    key = (plain[0] if len(plain) == 2 else None, plain[-1])
    return [key, key] if about.rpartition(b" ")[2].startswith(b"T") else [key]


def _unquoted(name: bytes) -> bytes:
    # git's escapes are some of Python's
    return name[1:-1].decode("unicode_escape").encode("latin-1") if _QUOTED.fullmatch(name) else name


def shown(name: bytes) -> str:
    """For people: what is not Unicode is replaced, and no more than a file system takes is told."""
    return name[:_NAME].decode(errors="replace")
