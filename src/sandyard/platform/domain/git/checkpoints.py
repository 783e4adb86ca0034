"""Checkpoints: the whole work tree, including uncommitted changes, stored in the mirror under a private ref.

Files that git ignores are not included; they are part of the snapshot that is taken of the sandbox before a pause.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import delete, select

from sandyard.kit.ids import ordered_id
from sandyard.platform.db.models import Checkout, Checkpoint, Sandbox
from sandyard.platform.domain.git.bringing import bring, checkpoint_ref, head_ref
from sandyard.platform.domain.git.errors import UnsafeBundleError
from sandyard.platform.domain.git.ground import Ground
from sandyard.platform.domain.git.guest import Guest
from sandyard.platform.domain.git.model import OperationKind, OperationStatus, Reason
from sandyard.platform.domain.git.operations import Detail, Job, Operations
from sandyard.platform.domain.sandboxes.model import Status, about, utc_now

FAREWELL_S = 120.0
"""Time limit for saving the work of a sandbox that is about to be paused or destroyed."""


@dataclass(frozen=True, slots=True)
class Kept:
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
    def __init__(self, ground: Ground, operations: Operations) -> None:
        self._ground = ground
        self._operations = operations
        lifecycle = ground.lifecycle
        lifecycle.before_pause.append(self._before_pause)
        lifecycle.before_destroy.append(self._before_destroy)

    async def checkpoint(self, job: Job) -> Detail:
        """Handle a checkpoint operation. Before a pause or deletion it uses the sandbox as it is; otherwise it resumes
        it."""
        reason = Reason(job.arguments["reason"])
        row = await self._ground.checkout(job.sandbox.id)
        if reason in (Reason.PAUSE, Reason.DESTROY):
            assert job.sandbox.engine_id is not None
            if reason == Reason.DESTROY and job.sandbox.status == Status.PAUSED:
                await self._ground.lifecycle.engine.resume(job.sandbox.engine_id, FAREWELL_S * 2)
            kept = await self.keep(row, job.sandbox, self._ground.guest(job.sandbox.engine_id, row.folder), reason)
        else:
            async with self._ground.inside(job.sandbox, row.folder) as guest:
                kept = await self.keep(row, job.sandbox, guest, reason)
        return {
            "checkpointId": kept.row.id,
            "commit": kept.row.head,
            "changed": kept.row.changed,
            "warnings": kept.warnings,
        }

    async def keep(self, row: Checkout, sandbox: Sandbox, guest: Guest, reason: Reason) -> Kept:
        """Save a checkpoint of the current work tree, or return the last one if nothing has changed."""
        tree = await guest.work_tree()
        last = await self.newest(sandbox.id)
        if last is not None and last.commit == tree.commit:
            return Kept(last, tree.skipped)
        checkpoint_id = ordered_id("chk_")
        known = [last.commit, last.head] if last else []
        into = checkpoint_ref(checkpoint_id)
        commit = await bring(self._ground, row, guest, ref=tree.commit, into=into, known=known)
        head = await self._ground.mirrors.of(row.project_id).resolve(f"{commit}^1")
        if head is None:
            raise UnsafeBundleError("The sandbox did not send a work tree; its data was rejected.")
        kept = Checkpoint(
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
        async with self._ground.database.transaction() as tx:
            tx.add(kept)
            tx.emit(
                "checkpoint.saved",
                **about(sandbox),
                checkpointId=kept.id,
                reason=reason,
                commit=kept.head,
                changed=kept.changed,
                skipped=tree.skipped[:100],
            )
        await self._prune(sandbox, row.project_id)
        return Kept(kept, tree.skipped)

    async def newest(self, sandbox_id: str) -> Checkpoint | None:
        async with self._ground.database.reading() as session:
            query = select(Checkpoint).where(Checkpoint.sandbox_id == sandbox_id)
            return (await session.scalars(query.order_by(Checkpoint.id.desc()).limit(1))).first()

    async def forget(self, session_id: str) -> None:
        """Delete the checkpoints and checkouts of a session that is about to be deleted."""
        async with self._ground.database.transaction() as tx:
            rows = list((await tx.session.scalars(select(Checkpoint).where(Checkpoint.session_id == session_id))).all())
            gone = list((await tx.session.scalars(select(Checkout).where(Checkout.session_id == session_id))).all())
            await tx.session.execute(delete(Checkout).where(Checkout.session_id == session_id))
        await self._drop(rows)
        for row in gone:
            await self._ground.mirrors.of(row.project_id).drop_ref(head_ref(row.sandbox_id))

    async def _prune(self, sandbox: Sandbox, project_id: str) -> None:
        whose = (
            Checkpoint.session_id == sandbox.session_id if sandbox.session_id else Checkpoint.sandbox_id == sandbox.id
        )
        async with self._ground.database.reading() as session:
            query = select(Checkpoint).where(whose, Checkpoint.project_id == project_id)
            query = query.order_by(Checkpoint.id.desc()).offset(self._ground.settings.git_checkpoints_kept)
            rows = list((await session.scalars(query)).all())
        await self._drop(rows)

    async def _drop(self, rows: list[Checkpoint]) -> None:
        """Delete the rows first: a ref without a row is swept later, but a row without a ref would refer to nothing."""
        if not rows:
            return
        async with self._ground.database.transaction() as tx:
            await tx.session.execute(delete(Checkpoint).where(Checkpoint.id.in_([row.id for row in rows])))
        for row in rows:
            await self._ground.mirrors.of(row.project_id).drop_ref(checkpoint_ref(row.id))

    # hooks of the sandbox lifecycle -----------------------------------------------------------------------------------

    async def _before_pause(self, sandbox: Sandbox) -> None:
        await self._save_before(sandbox, Reason.PAUSE)

    async def _before_destroy(self, sandbox: Sandbox) -> None:
        """Also save a paused sandbox: the engine may have paused it on its own after the last checkpoint."""
        await self._save_before(sandbox, Reason.DESTROY)

    async def _save_before(self, sandbox: Sandbox, reason: Reason) -> None:
        async with self._ground.database.transaction() as tx:
            checkout = await tx.session.get(Checkout, sandbox.id)
            if checkout is None or sandbox.engine_id is None:
                return
            row = self._operations.draft(
                tx,
                OperationKind.CHECKPOINT,
                sandbox,
                project_id=checkout.project_id,
                user_id=None,
                arguments={"reason": reason},
                status=OperationStatus.RUNNING,
            )
        await self._operations.carry_out(row, sandbox, timeout_s=FAREWELL_S)
