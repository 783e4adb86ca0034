"""Change the files of a checkout in its sandbox."""

from __future__ import annotations

from sandyard.kit.errors import ConflictError
from sandyard.platform.domain.git import messages, reading
from sandyard.platform.domain.git.checkpoints import Checkpoints
from sandyard.platform.domain.git.errors import NothingToCommitError
from sandyard.platform.domain.git.ground import Ground, author_of, co_authors_of, committer_of
from sandyard.platform.domain.git.guest import Guest
from sandyard.platform.domain.git.model import CommitDraft, Reason
from sandyard.platform.domain.git.operations import Detail, Job


class Changes:
    """Handlers of the operations that change files."""

    def __init__(self, ground: Ground, checkpoints: Checkpoints) -> None:
        self._ground = ground
        self._checkpoints = checkpoints

    async def stage(self, job: Job) -> Detail:
        row = await self._ground.checkout(job.sandbox.id)
        async with self._ground.inside(job.sandbox, row.folder) as guest:
            await guest.stage(job.arguments["paths"], unstage=job.arguments["unstage"])
        return {"paths": len(job.arguments["paths"])}

    async def discard(self, job: Job) -> Detail:
        """Discard changes at most once: what was written after a crash was not meant to be discarded."""
        if job.operation.attempts > 1:
            raise ConflictError(
                "The platform was restarted while discarding changes. Check what is left, and discard again."
            )
        row = await self._ground.checkout(job.sandbox.id)
        async with self._ground.inside(job.sandbox, row.folder) as guest:
            kept = await self._checkpoints.keep(row, job.sandbox, guest, Reason.DISCARD)
            gone = await guest.discard(job.arguments["paths"], everything=job.arguments["everything"])
        return {
            "discarded": gone[:100],
            "count": len(gone),
            "checkpointId": kept.row.id,
            "warnings": kept.warnings,
        }

    async def commit(self, job: Job) -> Detail:
        """Commit changes. The message was checked when the operation was requested."""
        row, project = await self._ground.checkout_with_project(job.sandbox.id)
        draft = CommitDraft(
            message=job.arguments["message"],
            author=author_of(project),
            committer=committer_of(project),
            co_authors=co_authors_of(project, job.sandbox.agent_id),
            everything=job.arguments["everything"],
            paths=tuple(job.arguments["paths"]),
        )
        async with self._ground.inside(job.sandbox, row.folder) as guest:
            before = job.arguments.get("before")
            if before is None:
                await job.note(before=await guest.head())
            elif await self._is_already_committed(guest, str(before), draft):
                return {"commit": await guest.head()}
            return {"commit": await guest.commit(draft)}

    async def _is_already_committed(self, guest: Guest, before: str, draft: CommitDraft) -> bool:
        """Return whether a run before a crash has created this commit."""
        head = await guest.head()
        if head == before:
            return False
        try:
            newest = (await reading.history(guest, head, limit=1))[0]
        except IndexError:
            raise NothingToCommitError from None
        return newest.parents == (before,) and newest.subject == messages.subject_of(draft.message)
