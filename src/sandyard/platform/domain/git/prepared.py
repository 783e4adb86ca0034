"""Git operations for preparing snapshots: read files of a commit without a checkout, and create an unassigned checkout."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import random_id
from sandyard.platform.db.models import Project, Sandbox
from sandyard.platform.domain.git.ground import Ground, author_of
from sandyard.platform.domain.git.guest_prepared import Sealed
from sandyard.platform.domain.git.mirror import Mirror
from sandyard.platform.domain.git.model import PREPARED, Prepared, Progress
from sandyard.platform.domain.git.turns import Turns

_ENTRY = re.compile(rb"(?P<mode>[0-7]{6}) blob (?P<id>[0-9a-f]{40,64}) +(?P<size>[0-9]+)\t(?P<path>.+)", re.DOTALL)
_LINK = b"120000"


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file in a commit. Files with the same id have the same content."""

    path: str
    id: str
    size: int


class PreparedCheckouts:
    def __init__(self, ground: Ground, turns: Turns) -> None:
        self._ground = ground
        self._turns = turns

    async def newest(self, project: Project, base_branch: str | None, progress: Progress) -> tuple[str, str]:
        """Fetch and return the base branch and its newest commit. Raises ConflictError if there is no such branch."""
        ground, begun = self._ground, time.monotonic()
        repository = await ground.repository(project)
        turn_id = random_id("prepare-")
        turn = self._turns.enter(repository.remote.key, id=turn_id, who=project.id)
        try:
            await turn
            await ground.refresh(project, repository, progress, since=begun)
        finally:
            self._turns.leave(repository.remote.key, turn_id)
        return await base_of(repository.mirror, project, base_branch)

    async def files(self, project_id: str, commit: str, paths: Sequence[str]) -> dict[str, TreeFile]:
        """Return those of the paths that exist in the commit as files, by path. Symbolic links are omitted."""
        mirror = self._ground.mirrors.of(project_id)
        output, _ = await mirror.read("ls-tree", "-z", "--long", "--full-tree", commit, "--", *paths)
        found = [match for entry in output.split(b"\0") if (match := _ENTRY.fullmatch(entry)) is not None]
        files = [
            TreeFile(match["path"].decode(errors="replace"), match["id"].decode(), int(match["size"]))
            for match in found
            if match["mode"] != _LINK
        ]
        return {file.path: file for file in files}

    async def content(self, project_id: str, file: TreeFile, limit: int) -> bytes:
        """Return at most `limit` bytes of the file."""
        output, _ = await self._ground.mirrors.of(project_id).read("cat-file", "blob", file.id, limit=limit)
        return output[:limit]

    async def put(self, project: Project, sandbox: Sandbox, base: str, commit: str, progress: Progress) -> Prepared:
        """Create a checkout of the commit on the branch PREPARED, without a database row. Idempotent."""
        ground = self._ground
        repository = await ground.repository(project)
        mirror = repository.mirror
        warnings = await mirror.features(commit)
        depth = ground.settings.git_shallow_depth if await mirror.large() else None
        bundle = await mirror.bundle(commit, ref=f"refs/heads/{base}", depth=depth)
        try:
            async with ground.inside(sandbox) as guest:
                progress("checking out")
                await guest.checkout(
                    bundle,
                    commit=commit,
                    base_branch=base,
                    branch=PREPARED,
                    identity=author_of(project),
                    origin=repository.shown,
                )
        finally:
            await mirror.release(bundle)
        return Prepared(base, commit, tuple(bundle.shallow), tuple(warnings))

    async def seal(self, sandbox: Sandbox, commit: str) -> Sealed:
        """Seal the checkout. See `Guest.seal`."""
        async with self._ground.inside(sandbox) as guest:
            return await guest.seal(commit)


async def base_of(mirror: Mirror, project: Project, wanted: str | None) -> tuple[str, str]:
    """Return the base branch and its newest commit: the wanted branch, else the project's, else the remote's default."""
    branches = await mirror.branches()
    name = wanted or project.base_branch or await mirror.default_branch()
    if name is None or name not in branches:
        some = ", ".join(sorted(branches)[:5]) or "none at all"
        raise ConflictError(f"The repository has no branch {name!r} to start from. Available: {some}.")
    return name, branches[name]
