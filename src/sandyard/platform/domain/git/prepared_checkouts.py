"""Git operations for preparing snapshots: read files of a commit without a checkout, and create an unassigned checkout."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import make_random_id
from sandyard.platform.db.models import Project, Sandbox
from sandyard.platform.domain.git.checkout.sandbox_git import SealedCheckout
from sandyard.platform.domain.git.context import GitContext, get_author
from sandyard.platform.domain.git.model import PREPARED_BRANCH, PreparedCheckout
from sandyard.platform.domain.git.repository_queue import RepositoryQueue, make_mirror_key
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Progress

_TREE_ENTRY = re.compile(rb"(?P<mode>[0-7]{6}) blob (?P<id>[0-9a-f]{40,64}) +(?P<size>[0-9]+)\t(?P<path>.+)", re.DOTALL)
_SYMLINK_MODE = b"120000"


@dataclass(frozen=True, slots=True)
class TreeFile:
    """A file in a commit. Files with the same id have the same content."""

    path: str
    id: str
    size: int


class PreparedCheckouts:
    """Git operations for preparing snapshots."""

    def __init__(self, context: GitContext, queue: RepositoryQueue) -> None:
        self._context = context
        self._queue = queue

    async def fetch_newest(self, project: Project, base_branch: str | None, progress: Progress) -> tuple[str, str]:
        """Fetch and return the base branch and its newest commit. Raises ConflictError if there is no such branch."""
        context, started = self._context, time.monotonic()
        repository = await context.get_repository(project)
        turn_id, requester = make_random_id("prepare-"), project.owner_id
        async with self._queue.wait_turn(make_mirror_key(project.id), id=turn_id, requester=requester):
            await context.refresh(project, repository, progress, since=started)
        return await resolve_base(repository.mirror, project, base_branch)

    async def find_files(self, project_id: str, commit: str, paths: Sequence[str]) -> dict[str, TreeFile]:
        """Return those of the paths that exist in the commit as files, by path. Symbolic links are omitted."""
        mirror = self._context.mirrors.get(project_id)
        output, _ = await mirror.read("ls-tree", "-z", "--long", "--full-tree", commit, "--", *paths)
        found = [match for entry in output.split(b"\0") if (match := _TREE_ENTRY.fullmatch(entry)) is not None]
        files = [
            TreeFile(match["path"].decode(errors="replace"), match["id"].decode(), int(match["size"]))
            for match in found
            if match["mode"] != _SYMLINK_MODE
        ]
        return {file.path: file for file in files}

    async def read_content(self, project_id: str, file: TreeFile, limit: int) -> bytes:
        """Return at most `limit` bytes of the file."""
        output, _ = await self._context.mirrors.get(project_id).read("cat-file", "blob", file.id, limit=limit)
        return output[:limit]

    async def create(
        self, project: Project, sandbox: Sandbox, base: str, commit: str, progress: Progress
    ) -> PreparedCheckout:
        """Create a checkout of the commit on the branch PREPARED_BRANCH, without a database row. Idempotent."""
        context = self._context
        repository = await context.get_repository(project)
        mirror = repository.mirror
        warnings = await mirror.list_limitations(commit)
        depth = context.settings.git_shallow_depth if await mirror.is_large() else None
        bundle = await mirror.bundles.create(commit, ref=f"refs/heads/{base}", depth=depth)
        try:
            async with context.open_git(sandbox) as git:
                progress("checking out")
                await git.checkout(
                    bundle,
                    commit=commit,
                    base_branch=base,
                    branch=PREPARED_BRANCH,
                    identity=get_author(project),
                    origin=repository.public_url,
                )
        finally:
            await mirror.bundles.release(bundle)
        return PreparedCheckout(base, commit, tuple(bundle.shallow), tuple(warnings))

    async def seal(self, sandbox: Sandbox, commit: str) -> SealedCheckout:
        """Seal the checkout. See `SandboxGit.seal`."""
        async with self._context.open_git(sandbox) as git:
            return await git.seal(commit)


async def resolve_base(mirror: Mirror, project: Project, requested: str | None) -> tuple[str, str]:
    """Return the base branch and its newest commit: the requested branch, else the project's, else the remote's default."""
    branches = await mirror.list_branches()
    name = requested or project.base_branch or await mirror.get_default_branch()
    if name is None or name not in branches:
        available = ", ".join(sorted(branches)[:5]) or "none at all"
        raise ConflictError(f"The repository has no branch {name!r} to start from. Available: {available}.")
    return name, branches[name]
