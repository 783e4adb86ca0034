"""Merge two commits without a work tree, to find conflicts or to write the merged tree."""

from __future__ import annotations

import re
from itertools import islice

from sandyard.platform.domain.repositories.bare_repository import READ_TIMEOUT_S, BareRepository
from sandyard.platform.domain.repositories.model import Conflict, Conflicts

MAX_CONFLICTS = 1000
"""Maximum number of conflicting files in a result. Two small packs can produce several hundred thousand."""
MAX_MESSAGE_FIELDS = 20 * MAX_CONFLICTS
"""Maximum number of message fields to parse. A message about one file in conflict has four."""
_KIND = re.compile(r"CONFLICT \(([^)]+)\)")


async def find_conflicts(repository: BareRepository, ours: str, theirs: str) -> Conflicts:
    """Return the files that need manual resolution, in git's order. Leaves nothing in the repository.

    Raises GitFailedError if the histories are unrelated.
    """
    with repository.create_quarantine() as objects:
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        result = await repository.run(*arguments, ok=(0, 1), objects=objects, timeout_s=READ_TIMEOUT_S)
    return parse_conflicts(result.stdout) if result.code == 1 else Conflicts()


async def write_merged_tree(repository: BareRepository, ours: str, theirs: str) -> str | Conflicts:
    """Write the merged tree to the repository and return its id, or return the conflicts."""
    async with repository.writing():
        arguments = ("merge-tree", "--write-tree", "--messages", "--name-only", "-z", ours, theirs)
        result = await repository.run(*arguments, ok=(0, 1), timeout_s=READ_TIMEOUT_S)
    if result.code == 1:
        return parse_conflicts(result.stdout)
    return result.stdout.partition(b"\0")[0].decode()


def parse_conflicts(listing: bytes) -> Conflicts:
    """Parse the output of `merge-tree --write-tree --messages --name-only -z`.

    It holds the tree, the files in conflict, an empty field, and then the messages. Each message has the number of its
    files, the files, a short type and a sentence.
    """
    end = listing.index(b"\0\0")
    total = listing.count(b"\0", 0, end)
    found: dict[str, Conflict | None] = dict.fromkeys(
        _decode_fields(listing[:end].split(b"\0", MAX_CONFLICTS + 1)[1 : MAX_CONFLICTS + 1])
    )
    fields = iter(_decode_fields(listing[end + 2 :].split(b"\0", MAX_MESSAGE_FIELDS)[:MAX_MESSAGE_FIELDS]))
    for number in fields:
        if not number.strip():
            break
        message = list(islice(fields, int(number) + 2))
        if len(message) < int(number) + 2:
            break
        *files, kind, detail = message
        if not kind.startswith("CONFLICT"):
            continue
        reported = _KIND.match(detail) or _KIND.match(kind)  # the sentence is more precise: it distinguishes add/add
        for file in files:
            is_listed = file in found or (file == files[0] and total <= MAX_CONFLICTS)
            if is_listed and found.get(file) is None:
                found[file] = Conflict(file, reported[1] if reported else "content", detail.strip())
    shown = tuple(conflict or Conflict(path, "content") for path, conflict in found.items())
    return Conflicts(shown[:MAX_CONFLICTS], max(total, len(shown)))


def _decode_fields(fields: list[bytes]) -> list[str]:
    return [field.decode(errors="replace") for field in fields]
