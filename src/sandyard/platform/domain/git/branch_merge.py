"""Merge a pushed branch into its base on remotes without a forge: in the mirror, without a work tree, then push."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import make_random_id
from sandyard.platform.db.models import Project
from sandyard.platform.domain.git.context import GitContext, Repository, get_author, get_committer
from sandyard.platform.domain.git.repository_queue import RepositoryQueue, make_mirror_key
from sandyard.platform.domain.repositories import merge_tree
from sandyard.platform.domain.repositories.errors import BranchMovedError, ConflictsError
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import ignore_progress

Method = Literal["squash", "merge", "rebase"]


@dataclass(frozen=True, slots=True)
class BranchMerge:
    """A requested merge of `head_commit` of branch `head` into branch `base`."""

    base: str
    head: str
    head_commit: str
    method: Method
    message: str


class BranchMerges:
    """Merges branches in the mirror and pushes the result."""

    def __init__(self, context: GitContext, queue: RepositoryQueue) -> None:
        self._context = context
        self._queue = queue

    async def is_merged(self, project: Project, base: str, head_commit: str) -> bool:
        """Return whether the remote's base branch contains everything of this commit. False if one of them does not exist."""
        mirror = (await self._fetch_repository(project)).mirror
        base_commit = await mirror.resolve(f"refs/remotes/origin/{base}")
        if base_commit is None or not await mirror.has_commit(head_commit):
            return False
        return await self._adds_nothing(mirror, base_commit, head_commit)

    async def merge(self, project: Project, request: BranchMerge) -> str:
        """Merge the branch, push the base branch, and return the new commit of the base branch.

        Idempotent: a branch that is merged already is left alone. Raises BranchMovedError if the head has moved,
        ConflictsError, BranchCheckedOutError, and the errors of a push.
        """
        async with self._wait_turn(project) as repository:
            mirror = repository.mirror
            base_commit = await mirror.resolve(f"refs/remotes/origin/{request.base}")
            if base_commit is None:
                raise ConflictError(f"The remote has no branch {request.base!r} to merge into.")
            head = await mirror.resolve(f"refs/remotes/origin/{request.head}")
            unmoved = head in (None, request.head_commit) and await mirror.has_commit(request.head_commit)
            if unmoved and await self._adds_nothing(mirror, base_commit, request.head_commit):
                return base_commit
            if head != request.head_commit:
                raise BranchMovedError(
                    f"The branch {request.head} on the remote has changed since it was shown here: somebody has pushed to it or deleted it. "
                    "Nothing was merged. Refresh and review it again."
                )
            commit = await self._create_merge_commit(mirror, project, base_commit, request)
            await mirror.push(repository.remote, repository.credential, commit, request.base, expected=base_commit)
            return commit

    async def _fetch_repository(self, project: Project) -> Repository:
        started, turn_id = time.monotonic(), make_random_id("fetch-")
        repository = await self._context.get_repository(project)
        async with self._queue.wait_turn(make_mirror_key(project.id), id=turn_id, requester=project.owner_id):
            await self._context.refresh(project, repository, ignore_progress, since=started)
        return repository

    @contextlib.asynccontextmanager
    async def _wait_turn(self, project: Project) -> AsyncIterator[Repository]:
        """Fetch the repository, wait for the turn to write to it, and yield it."""
        repository, turn_id = await self._fetch_repository(project), make_random_id("merge-")
        key, requester = repository.remote.key, project.owner_id
        async with self._queue.wait_turn(key, id=turn_id, requester=requester) as waited:
            if waited:  # for somebody who may have written to it
                await self._context.refresh(project, repository, ignore_progress, since=time.monotonic())
            yield repository

    async def _adds_nothing(self, mirror: Mirror, base_commit: str, head: str) -> bool:
        """Return whether merging `head` would not change the files of the base."""
        if await mirror.is_ancestor(head, base_commit):
            return True
        if await mirror.find_merge_base(base_commit, head) is None:
            return False
        tree = await merge_tree.write_merged_tree(mirror, base_commit, head)
        return isinstance(tree, str) and tree == await mirror.get_tree(base_commit)

    async def _create_merge_commit(
        self, mirror: Mirror, project: Project, base_commit: str, request: BranchMerge
    ) -> str:
        head = request.head_commit
        if await mirror.find_merge_base(base_commit, head) is None:
            raise ConflictError(f"{request.head} and {request.base} have no common history.")
        if request.method == "rebase":
            if not await mirror.is_ancestor(base_commit, head):
                raise ConflictError(
                    f"{request.base} has new commits, and a pushed branch is not rebased. Choose another merge method, or "
                    "update the branch first."
                )
            return head
        tree = await merge_tree.write_merged_tree(mirror, base_commit, head)
        if not isinstance(tree, str):
            raise ConflictsError(tree.files, total=tree.total)
        parents = [base_commit] if request.method == "squash" else [base_commit, head]
        return await mirror.commit_tree(
            tree, parents, request.message, author=get_author(project), committer=get_committer(project)
        )
