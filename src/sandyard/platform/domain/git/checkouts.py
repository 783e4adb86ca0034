"""How a repository comes into a sandbox: fresh, on a branch of its own, or as a checkpoint has kept it."""

from __future__ import annotations

import itertools
import time
from typing import Any

from sqlalchemy import select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import Checkout, Checkpoint, GitOperation, Project
from sandyard.platform.domain.git.bringing import checkpoint_ref, head_ref
from sandyard.platform.domain.git.checkpoints import Checkpoints
from sandyard.platform.domain.git.ground import Ground, Repository, author_of, shown
from sandyard.platform.domain.git.model import FOLDER, OperationKind, Reason
from sandyard.platform.domain.git.operations import OPEN, Detail, Job
from sandyard.platform.domain.git.remote import parse
from sandyard.platform.domain.sandboxes.model import utc_now


class Checkouts:
    """Handlers of operations."""

    def __init__(self, ground: Ground, checkpoints: Checkpoints) -> None:
        self._ground = ground
        self._checkpoints = checkpoints

    async def clone(self, job: Job) -> Detail:
        """The newest commit of the base branch, on a branch of its own."""
        ground, begun = self._ground, time.monotonic()
        project = await ground.project(job.operation.project_id)
        repository = await ground.repository(project)
        await self._refuse_second(job)
        if "chosen" not in job.arguments:  # else a run before a crash may have checked out this very commit
            async with job.turn(repository.remote.key):
                await ground.refresh(project, repository, job.progress, since=begun)
                base, commit = await self._base(job, project, repository)
                branch = await self._branch(job, repository)
                await job.note(chosen=branch, base=base, commit=commit)
        branch, base, commit = (str(job.arguments[name]) for name in ("chosen", "base", "commit"))
        await repository.mirror.set_ref(head_ref(job.sandbox.id), commit)  # whatever becomes of the remote's branch
        warnings = await repository.mirror.features(commit)
        depth = ground.settings.git_shallow_depth if await repository.mirror.large() else None
        job.progress("preparing the checkout")
        bundle = await repository.mirror.bundle(commit, ref=f"refs/heads/{base}", depth=depth)
        try:
            async with ground.inside(job.sandbox) as guest:
                job.progress("checking out")
                await guest.checkout(
                    bundle,
                    commit=commit,
                    base_branch=base,
                    branch=branch,
                    identity=author_of(project),
                    origin=repository.shown,
                )
        finally:
            await repository.mirror.release(bundle)
        await self._write(
            job, project, branch=branch, base_branch=base, base_commit=commit, head=commit, shallow=[*bundle.shallow]
        )
        return {
            "branch": branch,
            "baseBranch": base,
            "commit": commit,
            "folder": FOLDER,
            "shallow": bool(bundle.shallow),
            "warnings": warnings,
        }

    async def restore(self, job: Job) -> Detail:
        """As a checkpoint has kept it: branch, index and files. Needs no remote."""
        ground = self._ground
        project = await ground.project(job.operation.project_id)
        async with ground.database.reading() as session:
            kept = await session.get(Checkpoint, job.arguments["checkpointId"])
        if kept is None:
            raise NotFoundError("The checkpoint is no longer there.")
        async with ground.database.reading() as session:
            there = await session.get(Checkout, job.sandbox.id)  # it was in the snapshot that the sandbox was made of
        shallow = await self._put_back(job, project, kept, there)
        await ground.mirrors.of(project.id).set_ref(head_ref(job.sandbox.id), kept.head)
        pushed = await self._pushed(kept)
        await self._write(
            job,
            project,
            branch=kept.branch,
            base_branch=kept.base_branch,
            base_commit=kept.base_commit,
            head=kept.head,
            pushed=pushed,
            shallow=shallow,
        )
        return {"branch": kept.branch, "checkpointId": kept.id, "commit": kept.head, "changed": kept.changed}

    async def _put_back(self, job: Job, project: Project, kept: Checkpoint, there: Checkout | None) -> list[str]:
        """Where the checkout's history ends before its beginning."""
        ground, mirror, ref = self._ground, self._ground.mirrors.of(project.id), checkpoint_ref(kept.id)
        job.progress("preparing the checkout")
        if there is not None:
            have = [there.head, there.base_commit]
            bundle = await mirror.bundle(kept.commit, ref=ref, have=have, shallow=there.shallow)
        else:
            depth = ground.settings.git_shallow_depth if await mirror.large() else None
            bundle = await mirror.bundle(kept.commit, ref=ref, depth=depth)
        try:
            async with ground.inside(job.sandbox) as guest:
                job.progress("checking out")
                if there is not None:
                    await guest.receive(bundle, {ref: ref})
                else:
                    await guest.checkout(
                        bundle,
                        commit=kept.head,
                        base_branch=kept.base_branch,
                        branch=kept.branch,
                        identity=author_of(project),
                        origin=shown(parse(project.repository or "")),
                        tracked={kept.base_branch: kept.base_commit},
                    )
                if there is not None and job.operation.attempts > 1:  # somebody may have worked in it since
                    await self._checkpoints.keep(there, job.sandbox, guest, Reason.RESTORE)
                await guest.restore(kept.commit)
        finally:
            await mirror.release(bundle)
        return there.shallow if there is not None else [*bundle.shallow]

    async def branch(self, job: Job) -> Detail:
        """A new branch in the checkout, which is what is pushed from now on."""
        ground, name = self._ground, str(job.arguments["name"])
        row = await ground.checkout(job.sandbox.id)
        if name == row.base_branch:
            raise InvalidInputError(f"{name!r} is the base branch: nobody works on that.")
        taken = set(await ground.mirrors.of(row.project_id).branches()) | await self._names(job)
        if name != row.branch and name in taken:
            raise ConflictError(f"There is a branch {name!r} already. Choose another name.")
        async with ground.inside(job.sandbox, row.folder) as guest:
            await guest.create_branch(name, start=job.arguments.get("start"))
        async with ground.database.transaction() as tx:
            known = await tx.session.get(Checkout, row.sandbox_id)
            if known is not None and known.branch != name:
                known.branch, known.pushed, known.updated_at = name, None, utc_now()
        return {"branch": name}

    # ---------------------------------------------------------------------------------------------------------------------

    async def _refuse_second(self, job: Job) -> None:
        async with self._ground.database.reading() as session:
            known = await session.get(Checkout, job.sandbox.id)
        if known is not None and known.branch != job.arguments.get("chosen"):
            raise ConflictError(f"This sandbox has a checkout already, on branch {known.branch}.")

    async def _base(self, job: Job, project: Project, repository: Repository) -> tuple[str, str]:
        """The base branch and its newest commit."""
        branches = await repository.mirror.branches()
        wanted = job.arguments.get("baseBranch") or project.base_branch or await repository.mirror.default_branch()
        if wanted is None or wanted not in branches:
            some = ", ".join(sorted(branches)[:5]) or "none at all"
            raise ConflictError(f"The repository has no branch {wanted!r} to begin from. It has: {some}.")
        return wanted, branches[wanted]

    async def _branch(self, job: Job, repository: Repository) -> str:
        """A name that neither the remote nor another checkout of the project has."""
        taken = set(await repository.mirror.branches()) | await self._names(job)
        asked = job.arguments.get("branch")
        if asked is not None:
            if asked in taken:
                raise ConflictError(f"There is a branch {asked!r} already. Choose another name.")
            return str(asked)
        sandbox = job.sandbox
        first = "task-" + (sandbox.task_id or sandbox.session_id or sandbox.id).partition("_")[2]
        later = (f"{first}-{number}" for number in itertools.count(2))
        return next(name for name in itertools.chain((first,), later) if name not in taken)

    async def _names(self, job: Job) -> set[str]:
        async with self._ground.database.reading() as session:
            rows = select(Checkout.branch).where(Checkout.project_id == job.operation.project_id)
            chosen = select(GitOperation.arguments).where(
                GitOperation.project_id == job.operation.project_id,
                GitOperation.kind == OperationKind.CLONE,
                GitOperation.status.in_(OPEN),
                GitOperation.id != job.operation.id,
            )
            names = set((await session.scalars(rows)).all())
            return names | {one["chosen"] for one in (await session.scalars(chosen)).all() if "chosen" in one}

    async def _pushed(self, kept: Checkpoint) -> str | None:
        """What is known to be on the remote of the branch."""
        async with self._ground.database.reading() as session:
            query = select(Checkout.pushed).where(
                Checkout.session_id == kept.session_id, Checkout.branch == kept.branch, Checkout.pushed.is_not(None)
            )
            return (await session.scalars(query.order_by(Checkout.updated_at.desc()).limit(1))).first()

    async def _write(self, job: Job, project: Project, **facts: Any) -> None:
        now, sandbox = utc_now(), job.sandbox
        async with self._ground.database.transaction() as tx:
            row = await tx.session.get(Checkout, sandbox.id)
            if row is None:
                row = Checkout(
                    sandbox_id=sandbox.id,
                    session_id=sandbox.session_id,
                    project_id=project.id,
                    folder=FOLDER,
                    created_at=now,
                )
                tx.add(row)
            row.updated_at = now
            for name, value in facts.items():
                setattr(row, name, value)
