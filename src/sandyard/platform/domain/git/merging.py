"""Merging two commits in thought: what would conflict, without a work tree and without a trace."""

from __future__ import annotations

import re

from sandyard.platform.domain.git.bare import READ_TIMEOUT_S, Bare
from sandyard.platform.domain.git.model import Conflict

_KIND = re.compile(r"CONFLICT \(([^)]+)\)")


async def conflicts(bare: Bare, ours: str, theirs: str) -> list[Conflict]:
    """One for each file that a person would have to look at, in git's order. GitFailedError for histories with nothing in common."""
    with bare.quarantine() as objects:
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        done = await bare.run(*arguments, ok=(0, 1), objects=objects, timeout_s=READ_TIMEOUT_S)
    return parse(done.stdout) if done.code == 1 else []


async def merged_tree(bare: Bare, ours: str, theirs: str) -> str | list[Conflict]:
    """The tree of the merge, which is in the repository from now on; or what conflicts."""
    async with bare.writing():
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        done = await bare.run(*arguments, ok=(0, 1), timeout_s=READ_TIMEOUT_S)
    if done.code == 1:
        return parse(done.stdout)
    return done.stdout.partition(b"\0")[0].decode()


def parse(listing: bytes) -> list[Conflict]:
    """Of `merge-tree --write-tree --messages --name-only -z`: the tree, the files in conflict, an empty one, and then messages, each
    with the number of its files, the files, a short type and a sentence."""
    fields = [field.decode(errors="replace") for field in listing.split(b"\0")]
    end = fields.index("", 1)
    found: dict[str, Conflict | None] = dict.fromkeys(fields[1:end])
    rest = iter(fields[end + 1 :])
    for number in rest:
        if not number.strip():
            break
        files = [next(rest) for _ in range(int(number))]
        kind, detail = next(rest), next(rest).strip()
        if not kind.startswith("CONFLICT"):
            continue
        named = _KIND.match(detail) or _KIND.match(kind)  # the sentence is more exact: it knows add/add
        for file in files:
            if found.get(file) is None and (file in found or file == files[0]):
                found[file] = Conflict(file, named[1] if named else "content", detail)
    return [conflict or Conflict(path, "content") for path, conflict in found.items()]
