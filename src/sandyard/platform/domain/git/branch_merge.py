"""Merge a pushed branch into its base on remotes without a forge: in the mirror, without a work tree, then push."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import random_id
from sandyard.platform.db.models import Project
from sandyard.platform.domain.git.context import GitContext, Repository, get_author, get_committer
from sandyard.platform.domain.git.repository_queue import RepositoryQueue
from sandyard.platform.domain.repositories import merge_tree
from sandyard.platform.domain.repositories.errors import BranchMovedError, ConflictsError
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import no_progress

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
    def __init__(self, context: GitContext, queue: RepositoryQueue) -> None:
        self._context = context
        self._queue = queue

    async def is_merged(self, project: Project, base: str, head_commit: str) -> bool:
        """Return whether the remote's base branch contains everything of this commit. False if one of them does not
        exist."""
        async with self._fetch_repository(project) as repository:
            mirror = repository.mirror
            onto = await mirror.resolve(f"refs/remotes/origin/{base}")
            if onto is None or not await mirror.has(head_commit):
                return False
            return await self._adds_nothing(mirror, onto, head_commit)

    async def merge(self, project: Project, wanted: BranchMerge) -> str:
        """Merge the branch, push the base branch, and return the new commit of the base branch.

        Idempotent: a branch that is merged already is left alone. Raises BranchMovedError if the head has moved,
        ConflictsError, BranchCheckedOutError, and the errors of a push.
        """
        async with self._fetch_repository(project) as repository:
            mirror = repository.mirror
            onto = await mirror.resolve(f"refs/remotes/origin/{wanted.base}")
            if onto is None:
                raise ConflictError(f"The remote has no branch {wanted.base!r} to merge into.")
            head = await mirror.resolve(f"refs/remotes/origin/{wanted.head}")
            unmoved = head in (None, wanted.head_commit) and await mirror.has(wanted.head_commit)
            if unmoved and await self._adds_nothing(mirror, onto, wanted.head_commit):
                return onto
            if head != wanted.head_commit:
                raise BranchMovedError(
                    f"The branch {wanted.head} on the remote is not what was shown here: it was pushed to or deleted. Nothing "
                    "was merged. Refresh and review it again."
                )
            commit = await self._create_merge(mirror, project, onto, wanted)
            await mirror.push(repository.remote, repository.credential, commit, wanted.base, expected=onto)
            return commit

    @contextlib.asynccontextmanager
    async def _fetch_repository(self, project: Project) -> AsyncIterator[Repository]:
        """Wait for this repository's turn, fetch it, and yield it."""
        begun, turn_id = time.monotonic(), random_id("merge-")
        repository = await self._context.get_repository(project)
        async with self._queue.wait_turn(repository.remote.key, id=turn_id, who=project.id):
            await self._context.refresh(project, repository, no_progress, since=begun)
            yield repository

    async def _adds_nothing(self, mirror: Mirror, onto: str, head: str) -> bool:
        if await mirror.is_ancestor(head, onto):
            return True
        if await mirror.merge_base(onto, head) is None:
            return False
        tree = await merge_tree.write_merged_tree(mirror, onto, head)
        return isinstance(tree, str) and tree == await mirror.tree_of(onto)

    async def _create_merge(self, mirror: Mirror, project: Project, onto: str, wanted: BranchMerge) -> str:
        head = wanted.head_commit
        if await mirror.merge_base(onto, head) is None:
            raise ConflictError(f"{wanted.head} and {wanted.base} have no common history.")
        if wanted.method == "rebase":
            if not await mirror.is_ancestor(onto, head):
                raise ConflictError(
                    f"{wanted.base} has new commits, and a pushed branch is not rebased. Choose another way to merge, or "
                    "update the branch first."
                )
            return head
        tree = await merge_tree.write_merged_tree(mirror, onto, head)
        if not isinstance(tree, str):
            raise ConflictsError(tree.files, total=tree.total)
        parents = [onto] if wanted.method == "squash" else [onto, head]
        return await mirror.commit_tree(
            tree, parents, wanted.message, author=get_author(project), committer=get_committer(project)
        )
