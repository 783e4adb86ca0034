"""Change the files of a checkout in its sandbox."""

from __future__ import annotations

from sandyard.kit.errors import ConflictError
from sandyard.platform.db.models.git_details import OperationDetail
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.context import GitContext, get_author, get_co_authors, get_committer
from sandyard.platform.domain.git.errors import NothingToCommitError
from sandyard.platform.domain.git.model import CommitDraft, Reason
from sandyard.platform.domain.git.operations.checkpoints import Checkpoints
from sandyard.platform.domain.git.operations.runner import Job
from sandyard.platform.domain.repositories.history import read_history


class ChangeHandlers:
    """Handlers of the operations that change files."""

    def __init__(self, context: GitContext, checkpoints: Checkpoints) -> None:
        self._context = context
        self._checkpoints = checkpoints

    async def stage(self, job: Job) -> OperationDetail:
        row = await self._context.get_checkout(job.sandbox.id)
        async with self._context.open_git(job.sandbox, row.folder) as git:
            await git.stage(job.arguments["paths"], unstage=job.arguments["unstage"])
        return {"paths": len(job.arguments["paths"])}

    async def discard(self, job: Job) -> OperationDetail:
        """Discard changes. Not repeated after a crash, because it would discard what was written since."""
        if job.operation.attempts > 1:
            raise ConflictError(
                "The platform was restarted while discarding changes. Check what is left, and discard again."
            )
        row = await self._context.get_checkout(job.sandbox.id)
        async with self._context.open_git(job.sandbox, row.folder) as git:
            saved = await self._checkpoints.save(row, job.sandbox, git, Reason.DISCARD)
            discarded = await git.discard(job.arguments["paths"], everything=job.arguments["everything"])
        return {
            "discarded": discarded[:100],
            "count": len(discarded),
            "checkpointId": saved.row.id,
            "warnings": saved.warnings,
        }

    async def commit(self, job: Job) -> OperationDetail:
        """Commit changes. The message was checked when the operation was requested."""
        row, project = await self._context.get_checkout_with_project(job.sandbox.id)
        draft = CommitDraft(
            message=job.arguments["message"] or "",
            author=get_author(project),
            committer=get_committer(project),
            co_authors=get_co_authors(project, job.sandbox.agent_id),
            everything=job.arguments["everything"],
            paths=tuple(job.arguments["paths"]),
        )
        async with self._context.open_git(job.sandbox, row.folder) as git:
            before = job.arguments.get("before")
            if before is None:
                await job.store(before=await git.get_head())
            elif await self._is_already_committed(git, before, draft):
                return {"commit": await git.get_head()}
            return {"commit": await git.commit(draft)}

    async def _is_already_committed(self, git: SandboxGit, before: str, draft: CommitDraft) -> bool:
        """Return whether a run before a crash has created this commit."""
        head = await git.get_head()
        if head == before:
            return False
        try:
            newest = (await read_history(git, head, limit=1))[0]
        except IndexError:
            raise NothingToCommitError from None
        return newest.parents == (before,) and newest.subject == commit_messages.get_subject(draft.message)
