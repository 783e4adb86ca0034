"""Count the paths of commits. A few trees that refer to each other many times can have more paths than fit into memory.

Git reads each tree once when it checks commits, but once per path when it compares or merges them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

from sandyard.platform.domain.repositories.bare_repository import BareRepository
from sandyard.platform.domain.repositories.errors import GitFailedError, GitTimeoutError, TooMuchError
from sandyard.platform.domain.repositories.git_process import OUTPUT_LIMIT
from sandyard.platform.domain.repositories.output import parse_output

MAX_PATHS = 1_000_000
"""Maximum number of files and folders in one commit."""
MAX_TREES = 500_000
"""Maximum number of new trees in one transfer."""
MAX_PENDING_FOLDERS = 5_000_000
"""Maximum number of folders that are not counted yet, summed over all trees that wait for them."""
_MAX_CACHED_TREES = 200_000
BATCH = 2000
_LISTING_LINE_BYTES = 41
_ID_BYTES = 20
_TIMEOUT_S = 120.0
_HEADER = re.compile(rb"([0-9a-f]{40}) (?:tree ([0-9]+)|[a-z0-9 ]+)\n")
_TREE_ENTRY = re.compile(rb"([0-7]+) [^\0]*\0(.{20})", re.DOTALL)
_TYPE_MASK, _FOLDER_TYPE = 0o170000, 0o040000


async def check_paths(repository: BareRepository, tips: Sequence[str], objects: Path) -> None:
    """Raise TooMuchError if a commit that is new with these tips has more than MAX_PATHS files and folders.

    `objects` holds the new objects. The time is proportional to the number of new trees: each is read once, however
    often it is referenced. Trees that existed before are read once per platform process.
    """
    listing = await repository.run(
        *("rev-list", "--objects", "--no-object-names", "--filter=object:type=tree", "--filter-provided-objects"),
        *("--stdin", "--not", "--all"),
        stdin="".join(f"{tip}\n" for tip in tips).encode(),
        objects=objects,
        limit=MAX_TREES * _LISTING_LINE_BYTES,
        timeout_s=_TIMEOUT_S,
    )
    if listing.truncated:
        raise TooMuchError(f"The commits have more than {MAX_TREES:,} new folders, which is the limit.")
    new = await parse_output(listing.stdout, _parse_ids)
    counter = PathCounter(repository.tree_paths)
    await counter.read_trees(repository, objects, new)
    await asyncio.to_thread(counter.add_up)
    if any(counter.paths[tree] > MAX_PATHS for tree in new):
        raise TooMuchError(f"A commit has more than {MAX_PATHS:,} files and folders, which is the limit.")
    if len(repository.tree_paths) > _MAX_CACHED_TREES:
        repository.tree_paths = {}


def _parse_ids(lines: bytes) -> list[bytes]:
    return [bytes.fromhex(line.decode()) for line in lines.split()]


class PathCounter:
    def __init__(self, paths: dict[bytes, int]) -> None:
        """`paths` maps each tree counted before to its number of paths, at most MAX_PATHS + 1. New counts are added to it."""
        self.paths = paths
        self._pending: dict[bytes, tuple[int, bytes]] = {}
        """Trees that contain uncounted folders: the number of paths counted so far, and the ids of those folders."""
        self._pending_folders = 0

    async def read_trees(self, repository: BareRepository, objects: Path, trees: Sequence[bytes]) -> None:
        """Read these trees and all uncounted trees below them.

        Raises GitTimeoutError after _TIMEOUT_S, not counting the time spent waiting for other git processes.
        """
        remaining = list(trees)  # taken from the end: rev-list lists folders after the folders that contain them
        time_left = _TIMEOUT_S
        while remaining:
            batch: dict[bytes, None] = {}
            while remaining and len(batch) < BATCH:
                tree = remaining.pop()
                if tree not in self.paths and tree not in self._pending:
                    batch[tree] = None
            if not batch:
                return
            result = await repository.run(
                *("cat-file", "--batch", "--buffer"),
                stdin="".join(f"{tree.hex()}\n" for tree in batch).encode(),
                objects=objects,
                timeout_s=time_left,
                limit=OUTPUT_LIMIT,
            )
            started = time.monotonic()
            count, below = await parse_output(result.stdout, self._parse_trees)
            time_left -= result.duration_s + time.monotonic() - started
            if time_left <= 0:
                raise GitTimeoutError(f"Counting the files took longer than {_TIMEOUT_S:g} seconds. Try again.")
            if not count:
                raise TooMuchError(f"A folder has more than {OUTPUT_LIMIT >> 20} MiB of names, which is the limit.")
            remaining += list(batch)[count:]
            remaining += below

    def _parse_trees(self, output: bytes) -> tuple[int, list[bytes]]:
        """Parse `cat-file --batch`: return the number of complete trees in it, and the uncounted trees below them."""
        position = count = 0
        below: dict[bytes, None] = {}
        while (header := _HEADER.match(output, position)) is not None:
            if header[2] is None:
                raise GitFailedError("A folder of the commits is missing.")
            end = header.end() + int(header[2])
            if end >= len(output):
                break
            below |= dict.fromkeys(self.add_tree(bytes.fromhex(header[1].decode()), output[header.end() : end]))
            position, count = end + 1, count + 1
        return count, [tree for tree in below if tree not in self.paths and tree not in self._pending]

    def add_tree(self, tree: bytes, content: bytes) -> list[bytes]:
        """Add a tree and return the folders in it that are not counted yet."""
        entries = _TREE_ENTRY.findall(content)
        paths, unknown = len(entries), list[bytes]()
        for mode, entry in entries:
            # git treats any mode of this kind as a folder, however it is written
            if mode != b"100644" and int(mode, 8) & _TYPE_MASK == _FOLDER_TYPE:
                known = self.paths.get(entry)
                if known is None:
                    unknown.append(entry)
                else:
                    paths += known
        if unknown:
            self._pending_folders += len(unknown)
            if self._pending_folders > MAX_PENDING_FOLDERS:
                raise TooMuchError(f"The commits have more than {MAX_PENDING_FOLDERS:,} folders, which is the limit.")
            self._pending[tree] = paths, b"".join(unknown)
        else:
            self.paths[tree] = min(paths, MAX_PATHS + 1)
        return unknown

    def add_up(self) -> None:
        """Count the trees that waited for others. Not recursive, because trees may be nested arbitrarily deep."""
        for first in list(self._pending):
            stack = [first]
            while stack:
                tree = stack[-1]
                if tree in self.paths:
                    stack.pop()
                    continue
                paths, ids = self._pending[tree]
                folders = [ids[at : at + _ID_BYTES] for at in range(0, len(ids), _ID_BYTES)]
                if waiting := {folder for folder in folders if folder not in self.paths}:
                    stack += waiting
                    continue
                paths += sum(self.paths[folder] for folder in folders)
                self.paths[tree] = min(paths, MAX_PATHS + 1)
                stack.pop()
