"""Count the paths of commits: a few trees that name each other many times have more than any machine has memory for.

Git reads each tree once when it checks commits, and once for each path when it compares or merges them.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from pathlib import Path

from sandyard.platform.domain.git.bare import Bare
from sandyard.platform.domain.git.errors import GitFailedError, GitTimeoutError, TooMuchError
from sandyard.platform.domain.git.host import OUTPUT_LIMIT
from sandyard.platform.domain.git.raw import parsed

MAX_PATHS = 1_000_000
"""Files and folders of one commit."""
_MAX_TREES = 500_000
"""New ones that are taken at once."""
_MAX_OPEN = 5_000_000
"""Folders of trees that are counted once those folders are."""
_REMEMBERED = 200_000
_BATCH = 2000
_LINE = 41
_ID = 20
_TIMEOUT_S = 120.0
_HEADER = re.compile(rb"([0-9a-f]{40}) (?:tree ([0-9]+)|[a-z0-9 ]+)\n")
_ENTRY = re.compile(rb"([0-7]+) [^\0]*\0(.{20})", re.DOTALL)
_KIND, _FOLDER = 0o170000, 0o040000


async def check_paths(bare: Bare, tips: Sequence[str], objects: Path) -> None:
    """Raise TooMuchError if a commit that is new with these tips has more than MAX_PATHS files and folders. `objects` has the new ones.

    Takes as long as there are new trees, each of which is read once, however often it is named; trees that were there before are
    read once by each process of the platform.
    """
    listing = await bare.run(
        *("rev-list", "--objects", "--no-object-names", "--filter=object:type=tree", "--filter-provided-objects"),
        *("--stdin", "--not", "--all"),
        stdin="".join(f"{tip}\n" for tip in tips).encode(),
        objects=objects,
        limit=_MAX_TREES * _LINE,
        timeout_s=_TIMEOUT_S,
    )
    if listing.truncated:
        raise TooMuchError(f"The commits have more than {_MAX_TREES:,} new folders, which is the limit.")
    new = await parsed(listing.stdout, _ids)
    counter = _Counter(bare.tree_paths)
    await counter.read(bare, objects, new)
    await asyncio.to_thread(counter.add_up)
    if any(counter.paths[tree] > MAX_PATHS for tree in new):
        raise TooMuchError(f"A commit has more than {MAX_PATHS:,} files and folders, which is the limit.")
    if len(bare.tree_paths) > _REMEMBERED:
        bare.tree_paths = {}


def _ids(lines: bytes) -> list[bytes]:
    return [bytes.fromhex(line.decode()) for line in lines.split()]


class _Counter:
    def __init__(self, paths: dict[bytes, int]) -> None:
        """`paths`: of each tree that was counted before, never more than MAX_PATHS + 1; those that are counted now are added."""
        self.paths = paths
        self._open: dict[bytes, tuple[int, bytes]] = {}
        """Trees with folders that are not counted yet: the paths that are, and the ids of those folders."""
        self._edges = 0

    async def read(self, bare: Bare, objects: Path, trees: Sequence[bytes]) -> None:
        """Read these trees and all below them that are not counted yet. GitTimeoutError after _TIMEOUT_S, without the time it waits for
        others to finish."""
        left = list(trees)  # the last ones first: rev-list names folders behind those that they are in
        time_left = _TIMEOUT_S
        while left:
            batch: dict[bytes, None] = {}
            while left and len(batch) < _BATCH:
                tree = left.pop()
                if tree not in self.paths and tree not in self._open:
                    batch[tree] = None
            if not batch:
                return
            done = await bare.run(
                *("cat-file", "--batch", "--buffer"),
                stdin="".join(f"{tree.hex()}\n" for tree in batch).encode(),
                objects=objects,
                timeout_s=time_left,
                limit=OUTPUT_LIMIT,
            )
            started = time.monotonic()
            count, below = await parsed(done.stdout, self._parse)
            time_left -= done.took_s + time.monotonic() - started
            if time_left <= 0:
                raise GitTimeoutError(f"Counting the files took longer than {_TIMEOUT_S:g} seconds. Try again.")
            if not count:
                raise TooMuchError(f"A folder has more than {OUTPUT_LIMIT >> 20} MiB of names, which is the limit.")
            left += list(batch)[count:]
            left += below

    def _parse(self, told: bytes) -> tuple[int, list[bytes]]:
        """Of `cat-file --batch`: how many trees it has from beginning to end, and those below them that are not counted."""
        at = count = 0
        below: dict[bytes, None] = {}
        while (header := _HEADER.match(told, at)) is not None:
            if header[2] is None:
                raise GitFailedError("A folder of the commits is missing.")
            end = header.end() + int(header[2])
            if end >= len(told):
                break
            below |= dict.fromkeys(self._add(bytes.fromhex(header[1].decode()), told[header.end() : end]))
            at, count = end + 1, count + 1
        return count, [tree for tree in below if tree not in self.paths and tree not in self._open]

    def _add(self, tree: bytes, content: bytes) -> list[bytes]:
        """The folders in it that are not counted yet."""
        entries = _ENTRY.findall(content)
        paths, unknown = len(entries), list[bytes]()
        for mode, entry in entries:
            # git takes any mode of this kind for a folder, however it is written
            if mode != b"100644" and int(mode, 8) & _KIND == _FOLDER:
                known = self.paths.get(entry)
                if known is None:
                    unknown.append(entry)
                else:
                    paths += known
        if unknown:
            self._edges += len(unknown)
            if self._edges > _MAX_OPEN:
                raise TooMuchError(f"The commits have more than {_MAX_OPEN:,} folders, which is the limit.")
            self._open[tree] = paths, b"".join(unknown)
        else:
            self.paths[tree] = min(paths, MAX_PATHS + 1)
        return unknown

    def add_up(self) -> None:
        """Count the trees that had to wait for others. Not recursive: they may be nested as deeply as one likes."""
        for first in list(self._open):
            stack = [first]
            while stack:
                tree = stack[-1]
                if tree in self.paths:
                    stack.pop()
                    continue
                paths, ids = self._open[tree]
                folders = [ids[at : at + _ID] for at in range(0, len(ids), _ID)]
                if waiting := {folder for folder in folders if folder not in self.paths}:
                    stack += waiting
                    continue
                paths += sum(self.paths[folder] for folder in folders)
                self.paths[tree] = min(paths, MAX_PATHS + 1)
                stack.pop()
