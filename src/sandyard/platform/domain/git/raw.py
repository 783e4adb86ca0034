"""What git tells of changed files, in its own raw form: names as bytes, and patches put to their names.

Names may be anything, and so may the lines of a file: only zero bytes and git's own quoting tell them apart.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
_PATHS = 512 << 10
_ROUNDS = 4
_QUOTED = re.compile(rb'\\([abtnvfr"\\]|[0-7]{3})')
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}

Key = tuple[bytes | None, bytes]
"""The name a file had, where it is another one, and the name it has."""


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


def parse_raw(told: bytes) -> tuple[list[Raw], list[bytes]]:
    """Entries of `--raw -z`, and the fields behind them. What was cut off is left out."""
    fields = told.split(b"\0")[:-1]
    found: list[Raw] = []
    at = 0
    while at < len(fields) and fields[at].startswith(b":"):
        about = fields[at][1:].decode("ascii", "replace").split(" ")
        letter = about[4][:1] if len(about) == 5 else "?"
        count = 2 if letter in "RC" else 1
        names = fields[at + 1 : at + 1 + count]
        at += 1 + count
        if len(names) < count or letter not in CHANGES:
            continue
        old = names[0] if count == 2 else None
        found.append(Raw(names[-1], CHANGES[letter], old, about[0], about[1]))
    return found, fields[at:]


def parse_numstat(fields: Sequence[bytes]) -> dict[Key, tuple[int | None, int | None]]:
    """Lines added and removed; None for a binary file."""
    counts: dict[Key, tuple[int | None, int | None]] = {}
    rest = iter(fields)
    for field in rest:
        parts = field.split(b"\t", 2)
        if len(parts) < 3:
            continue
        key: Key = (None, parts[2]) if parts[2] else (next(rest, b""), next(rest, b""))
        added, removed = (int(part) if part.isdigit() else None for part in parts[:2])
        counts[key] = added, removed
    return counts


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
        got: dict[Key, bytes] = {}
        for key, section in zip(order, sections, strict=False):
            got[key] = got.get(key, b"") + section
        if cut and got:
            got[order[len(sections) - 1]] = b"x" * (each + 1)  # nobody knows how long it is: too long
        for key, text in got.items():
            if len(text) <= min(each, limit):
                found[key] = text
                limit -= len(text)
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
    head, _, body = told.partition(b"\n\n")
    order = [key for line in head.split(b"\n") for key in _keys(line)]
    return order, re.split(rb"^(?=diff --git )", body, flags=re.MULTILINE)[1:], cut


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
    if not (name.startswith(b'"') and name.endswith(b'"')):
        return name

    def plain(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return bytes([_ESCAPES[found] if found in _ESCAPES else int(found, 8) & 255])

    return _QUOTED.sub(plain, name[1:-1])


def shown(name: bytes) -> str:
    """For people: what is not Unicode is replaced."""
    return name.decode(errors="replace")
