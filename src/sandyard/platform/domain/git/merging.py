"""Merging two commits in thought: what would conflict, without a work tree and without a trace."""

from __future__ import annotations

import re
from itertools import islice

from sandyard.platform.domain.git.bare import READ_TIMEOUT_S, Bare
from sandyard.platform.domain.git.model import Conflict, Conflicts

MOST = 1000
"""Files that are told of. Two small packs can make some hundred thousand."""
_FIELDS = 20 * MOST
"""Of git's messages that are read. One of a file in conflict has four."""
_KIND = re.compile(r"CONFLICT \(([^)]+)\)")


async def conflicts(bare: Bare, ours: str, theirs: str) -> Conflicts:
    """The files that a person would have to look at, in git's order. GitFailedError for histories with nothing in common."""
    with bare.quarantine() as objects:
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        done = await bare.run(*arguments, ok=(0, 1), objects=objects, timeout_s=READ_TIMEOUT_S)
    return parse(done.stdout) if done.code == 1 else Conflicts()


async def merged_tree(bare: Bare, ours: str, theirs: str) -> str | Conflicts:
    """The tree of the merge, which is in the repository from now on; or what conflicts."""
    async with bare.writing():
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        done = await bare.run(*arguments, ok=(0, 1), timeout_s=READ_TIMEOUT_S)
    if done.code == 1:
        return parse(done.stdout)
    return done.stdout.partition(b"\0")[0].decode()


def parse(listing: bytes) -> Conflicts:
    """Of `merge-tree --write-tree --messages --name-only -z`: the tree, the files in conflict, an empty one, and then messages, each
    with the number of its files, the files, a short type and a sentence."""
    end = listing.index(b"\0\0")
    total = listing.count(b"\0", 0, end)
    found: dict[str, Conflict | None] = dict.fromkeys(_texts(listing[:end].split(b"\0", MOST + 1)[1 : MOST + 1]))
    fields = iter(_texts(listing[end + 2 :].split(b"\0", _FIELDS)[:_FIELDS]))
    for number in fields:
        if not number.strip():
            break
        message = list(islice(fields, int(number) + 2))
        if len(message) < int(number) + 2:
            break
        *files, kind, detail = message
        if not kind.startswith("CONFLICT"):
            continue
        named = _KIND.match(detail) or _KIND.match(kind)  # the sentence is more exact: it knows add/add
        for file in files:
            is_listed = file in found or (file == files[0] and total <= MOST)
            if is_listed and found.get(file) is None:
                found[file] = Conflict(file, named[1] if named else "content", detail.strip())
    shown = tuple(conflict or Conflict(path, "content") for path, conflict in found.items())
    return Conflicts(shown[:MOST], max(total, len(shown)))


def _texts(fields: list[bytes]) -> list[str]:
    return [field.decode(errors="replace") for field in fields]
