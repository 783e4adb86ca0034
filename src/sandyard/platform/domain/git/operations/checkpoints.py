"""Checkpoints: the whole work tree, including uncommitted changes, stored in the mirror under a private ref.

Files that git ignores are not included; they are part of the snapshot that is taken of the sandbox before a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select

from sandyard.kit.ids import make_ordered_id
from sandyard.platform.db.models import Checkout, Checkpoint, Sandbox
from sandyard.platform.db.models.git_details import OperationDetail
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.context import GitContext
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.git.operations.runner import Job
from sandyard.platform.domain.git.sandbox_commits import (
    import_commits,
    make_checkpoint_ref,
    make_copied_ref,
    make_head_ref,
)
from sandyard.platform.domain.repositories.errors import UnsafeBundleError
from sandyard.platform.domain.sandboxes.model import Status, get_sandbox_event_fields, utc_now

SAVE_TIMEOUT_S = 120.0
"""Time limit for saving the work of a sandbox that is about to be paused or destroyed."""


@dataclass(frozen=True, slots=True)
class SavedCheckpoint:
    """A checkpoint and the files that are not in it."""

    row: Checkpoint
    skipped: Sequence[str]

    @property
    def warnings(self) -> list[str]:
        if not self.skipped:
            return []
        more = f" and {len(self.skipped) - 10} more" if len(self.skipped) > 10 else ""
        return [
            "Not saved, because they cannot be read, are larger than 100 MiB, or are repositories of their own: "
            f"{', '.join(self.skipped[:10])}{more}."
        ]


class Checkpoints:
    """Saves, finds and deletes checkpoints, and handles checkpoint operations."""

    def __init__(self, context: GitContext) -> None:
        self._context = context

    async def handle_checkpoint(self, job: Job) -> OperationDetail:
        """Handle a checkpoint operation. Before a pause or deletion it uses the sandbox as it is; otherwise it resumes it."""
        reason = Reason(job.arguments["reason"])
        row = await self._context.get_checkout(job.sandbox.id)
        if reason in (Reason.PAUSE, Reason.DESTROY):
            assert job.sandbox.engine_id is not None
            if reason == Reason.DESTROY and job.sandbox.status == Status.PAUSED:
                await self._context.lifecycle.engine.resume(job.sandbox.engine_id, SAVE_TIMEOUT_S * 2)
            saved = await self.save(
                row, job.sandbox, self._context.create_git(job.sandbox.engine_id, row.folder), reason
            )
        else:
            async with self._context.open_git(job.sandbox, row.folder) as git:
                saved = await self.save(row, job.sandbox, git, reason)
        return {
            "checkpointId": saved.row.id,
            "commit": saved.row.head,
            "changed": saved.row.changed,
            "warnings": saved.warnings,
        }

    async def save(self, row: Checkout, sandbox: Sandbox, git: SandboxGit, reason: Reason) -> SavedCheckpoint:
        """Save a checkpoint of the current work tree, or return the last one if nothing has changed."""
        tree = await git.save_work_tree()
        last = await self.get_newest(sandbox.id)
        if last is not None and last.commit == tree.commit:
            return SavedCheckpoint(last, tree.skipped)
        checkpoint_id = make_ordered_id("chk_")
        known = [last.commit, last.head] if last else []
        into = make_checkpoint_ref(checkpoint_id)
        commit = await import_commits(self._context, row, git, ref=tree.commit, into=into, known=known)
        head = await self._context.mirrors.get(row.project_id).resolve(f"{commit}^1")
        if head is None:
            raise UnsafeBundleError("The sandbox did not send a work tree; its data was rejected.")
        checkpoint = Checkpoint(
            id=checkpoint_id,
            project_id=row.project_id,
            session_id=sandbox.session_id,
            sandbox_id=sandbox.id,
            reason=reason,
            commit=commit,
            head=head,
            branch=row.branch,
            base_branch=row.base_branch,
            base_commit=row.base_commit,
            changed=tree.changed,
            created_at=utc_now(),
        )
        async with self._context.database.transaction() as tx:
            tx.add(checkpoint)
            tx.emit(
                "checkpoint.saved",
                **get_sandbox_event_fields(sandbox),
                checkpointId=checkpoint.id,
                reason=reason,
                commit=checkpoint.head,
                changed=checkpoint.changed,
                skipped=tree.skipped[:100],
            )
        await self._delete_oldest(sandbox, row.project_id)
        return SavedCheckpoint(checkpoint, tree.skipped)

    async def get_newest(self, sandbox_id: str) -> Checkpoint | None:
        async with self._context.database.reading() as session:
            query = select(Checkpoint).where(Checkpoint.sandbox_id == sandbox_id)
            return (await session.scalars(query.order_by(Checkpoint.id.desc()).limit(1))).first()

    async def delete_of_session(self, session_id: str) -> None:
        """Delete the checkpoints and checkouts of a session that is about to be deleted."""
        async with self._context.database.transaction() as tx:
            checkpoints = list(
                (await tx.session.scalars(select(Checkpoint).where(Checkpoint.session_id == session_id))).all()
            )
            checkouts = list(
                (await tx.session.scalars(select(Checkout).where(Checkout.session_id == session_id))).all()
            )
            await tx.session.execute(delete(Checkout).where(Checkout.session_id == session_id))
        await self._delete(checkpoints)
        for row in checkouts:
            for ref in (make_head_ref(row.sandbox_id), make_copied_ref(row.sandbox_id)):
                await self._context.mirrors.get(row.project_id).delete_ref(ref)

    async def _delete_oldest(self, sandbox: Sandbox, project_id: str) -> None:
        """Delete the oldest checkpoints of a session, or of a sandbox without one, beyond the configured number."""
        owner = (
            Checkpoint.session_id == sandbox.session_id if sandbox.session_id else Checkpoint.sandbox_id == sandbox.id
        )
        async with self._context.database.reading() as session:
            query = select(Checkpoint).where(owner, Checkpoint.project_id == project_id)
            query = query.order_by(Checkpoint.id.desc()).offset(self._context.settings.git_checkpoints_kept)
            rows = list((await session.scalars(query)).all())
        await self._delete(rows)

    async def _delete(self, rows: list[Checkpoint]) -> None:
        """Delete checkpoints, rows first: `recover` deletes a ref without a row, but a row without a ref would refer to nothing."""
        if not rows:
            return
        async with self._context.database.transaction() as tx:
            await tx.session.execute(delete(Checkpoint).where(Checkpoint.id.in_([row.id for row in rows])))
        for row in rows:
            await self._context.mirrors.get(row.project_id).delete_ref(make_checkpoint_ref(row.id))
