"""Create checkouts in sandboxes: a new clone on its own branch, or the state of a checkpoint."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Collection, Iterator
from typing import Any
from weakref import WeakValueDictionary

from sqlalchemy import or_, select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.models import (
    Attempt,
    Checkout,
    Checkpoint,
    GitOperation,
    Project,
    Sandbox,
    Session,
    Task,
)
from sandyard.platform.db.models.git_details import OperationDetail
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.context import GitContext, get_author, get_public_url
from sandyard.platform.domain.git.errors import NotInProjectError
from sandyard.platform.domain.git.model import CHECKOUT_FOLDER, OperationKind, PreparedCheckout, Reason
from sandyard.platform.domain.git.operations.checkpoints import Checkpoints
from sandyard.platform.domain.git.operations.runner import OPEN_STATUSES, Job
from sandyard.platform.domain.git.prepared_checkouts import resolve_base
from sandyard.platform.domain.git.repository_queue import make_mirror_key
from sandyard.platform.domain.git.sandbox_commits import (
    import_commits,
    list_refs_of_original,
    make_checkpoint_ref,
    make_copied_ref,
    make_head_ref,
)
from sandyard.platform.domain.repositories import ref_names
from sandyard.platform.domain.repositories.errors import GitFailedError, UnsafeBundleError
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.remote import parse_remote
from sandyard.platform.domain.sandboxes.model import utc_now


def require_in_project(sandbox: Sandbox, project_id: str | None) -> None:
    """Raise NotInProjectError if the sandbox is not in the project, whose policies (network, commands, budget) must apply to its code."""
    if sandbox.project_id != project_id:
        raise NotInProjectError


class CheckoutHandlers:
    """Handlers of the operations that create checkouts and branches."""

    def __init__(self, context: GitContext, checkpoints: Checkpoints) -> None:
        self._context = context
        self._checkpoints = checkpoints
        self._branch_locks: WeakValueDictionary[str | None, asyncio.Lock] = WeakValueDictionary()

    async def clone(self, job: Job) -> OperationDetail:
        """Check out the newest commit of the base branch on a new branch."""
        require_in_project(job.sandbox, job.operation.project_id)
        if "prepared" in job.arguments:
            return await self._adopt_prepared(job, PreparedCheckout(**job.arguments["prepared"]))
        context, started = self._context, time.monotonic()
        project = await context.get_project(job.operation.project_id)
        repository = await context.get_repository(project)
        await self._require_no_other_checkout(job)
        if "chosen" not in job.arguments:  # otherwise a run before a crash may have checked out this commit
            async with job.wait_turn(make_mirror_key(project.id), project.owner_id):
                await context.refresh(project, repository, job.progress, since=started)
                base, commit = await resolve_base(repository.mirror, project, job.arguments.get("baseBranch"))
                await self._record_choice(job, repository.mirror, base, commit)
        branch, base, commit = job.arguments["chosen"], job.arguments["base"], job.arguments["commit"]
        # the ref keeps the commit, whatever happens to the remote's branch
        await repository.mirror.set_ref(make_head_ref(job.sandbox.id), commit)
        warnings = await repository.mirror.list_limitations(commit)
        depth = context.settings.git_shallow_depth if await repository.mirror.is_large() else None
        job.progress("preparing the checkout")
        bundle = await repository.mirror.bundles.create(commit, ref=f"refs/heads/{base}", depth=depth)
        try:
            async with context.open_git(job.sandbox) as git:
                job.progress("checking out")
                await git.checkout(
                    bundle,
                    commit=commit,
                    base_branch=base,
                    branch=branch,
                    identity=get_author(project),
                    origin=repository.public_url,
                )
        finally:
            await repository.mirror.bundles.release(bundle)
        await self._save_checkout(
            job,
            project,
            branch=branch,
            base_branch=base,
            base_commit=commit,
            bases=[commit],
            head=commit,
            shallow=[*bundle.shallow],
        )
        return {
            "branch": branch,
            "baseBranch": base,
            "commit": commit,
            "folder": CHECKOUT_FOLDER,
            "shallow": bool(bundle.shallow),
            "warnings": warnings,
        }

    async def _adopt_prepared(self, job: Job, prepared: PreparedCheckout) -> OperationDetail:
        """Adopt the checkout from the sandbox's snapshot on a new branch, with the newer commits that the mirror has.

        Does not contact the remote, because preparing the snapshot has just done so.
        """
        context, shallow = self._context, list(prepared.shallow)
        project = await context.get_project(job.operation.project_id)
        mirror = context.mirrors.get(project.id)
        await self._require_no_other_checkout(job)
        if "chosen" not in job.arguments:
            newest = (await mirror.list_branches()).get(prepared.base, prepared.commit)
            newer = newest != prepared.commit and await mirror.is_ancestor(prepared.commit, newest)
            await self._record_choice(job, mirror, prepared.base, newest if newer else prepared.commit)
        branch, base, commit = job.arguments["chosen"], job.arguments["base"], job.arguments["commit"]
        await mirror.set_ref(make_head_ref(job.sandbox.id), commit)
        bundle = None
        if commit != prepared.commit:
            job.progress("preparing the checkout")
            have = [prepared.commit]
            bundle = await mirror.bundles.create(commit, ref=f"refs/heads/{base}", have=have, shallow=shallow)
        try:
            async with context.open_git(job.sandbox) as git:
                job.progress("checking out")
                await git.adopt(
                    bundle,
                    commit=commit,
                    base_branch=base,
                    branch=branch,
                    identity=get_author(project),
                    origin=get_public_url(parse_remote(project.repository or "")),
                )
        finally:
            if bundle is not None:
                await mirror.bundles.release(bundle)
        await self._save_checkout(
            job,
            project,
            branch=branch,
            base_branch=base,
            base_commit=commit,
            bases=[commit],
            head=commit,
            shallow=shallow,
        )
        return {
            "branch": branch,
            "baseBranch": base,
            "commit": commit,
            "folder": CHECKOUT_FOLDER,
            "shallow": bool(shallow),
            "warnings": list(prepared.warnings),
            "prepared": prepared.commit,
        }

    async def restore(self, job: Job) -> OperationDetail:
        """Restore the branch, index and files of a checkpoint. Needs no remote."""
        require_in_project(job.sandbox, job.operation.project_id)
        context = self._context
        project = await context.get_project(job.operation.project_id)
        async with context.database.reading() as session:
            checkpoint = await session.get(Checkpoint, job.arguments["checkpointId"])
        if checkpoint is None:
            raise NotFoundError("The checkpoint no longer exists.")
        async with context.database.reading() as session:
            # it came with the snapshot that the sandbox was created from
            existing = await session.get(Checkout, job.sandbox.id)
        shallow = await self._restore_checkpoint(job, project, checkpoint, existing)
        await context.mirrors.get(project.id).set_ref(make_head_ref(job.sandbox.id), checkpoint.head)
        pushed = await self._get_last_pushed(checkpoint)
        await self._save_checkout(
            job,
            project,
            branch=checkpoint.branch,
            base_branch=checkpoint.base_branch,
            base_commit=checkpoint.base_commit,
            bases=await self._list_bases(checkpoint),
            head=checkpoint.head,
            pushed=pushed,
            shallow=shallow,
        )
        return {
            "branch": checkpoint.branch,
            "checkpointId": checkpoint.id,
            "commit": checkpoint.head,
            "changed": checkpoint.changed,
        }

    async def _restore_checkpoint(
        self, job: Job, project: Project, checkpoint: Checkpoint, existing: Checkout | None
    ) -> list[str]:
        """Restore the checkpoint in the sandbox. Returns the commits where the checkout's history ends."""
        context, mirror, ref = self._context, self._context.mirrors.get(project.id), make_checkpoint_ref(checkpoint.id)
        prepared = PreparedCheckout(**job.arguments["prepared"]) if "prepared" in job.arguments else None
        job.progress("preparing the checkout")
        if existing is not None:
            have = [existing.head, existing.base_commit]
            bundle = await mirror.bundles.create(checkpoint.commit, ref=ref, have=have, shallow=existing.shallow)
        elif prepared is not None:
            bundle = await mirror.bundles.create(
                checkpoint.commit, ref=ref, have=[prepared.commit], shallow=prepared.shallow
            )
        else:
            depth = context.settings.git_shallow_depth if await mirror.is_large() else None
            bundle = await mirror.bundles.create(checkpoint.commit, ref=ref, depth=depth)
        try:
            async with context.open_git(job.sandbox) as git:
                job.progress("checking out")
                if existing is not None:
                    await git.receive(bundle, {ref: ref})
                elif prepared is not None:
                    await git.adopt(
                        None,
                        commit=prepared.commit,
                        base_branch=checkpoint.base_branch,
                        branch=checkpoint.branch,
                        identity=get_author(project),
                        origin=get_public_url(parse_remote(project.repository or "")),
                    )
                    await git.receive(bundle, {ref: ref})
                    with contextlib.suppress(GitFailedError):  # a shallow history may lack the commit
                        await git.track(checkpoint.base_branch, checkpoint.base_commit)
                else:
                    await git.checkout(
                        bundle,
                        commit=checkpoint.head,
                        base_branch=checkpoint.base_branch,
                        branch=checkpoint.branch,
                        identity=get_author(project),
                        origin=get_public_url(parse_remote(project.repository or "")),
                        tracked={checkpoint.base_branch: checkpoint.base_commit},
                    )
                if existing is not None and job.operation.attempts > 1:  # somebody may have worked in it since
                    await self._checkpoints.save(existing, job.sandbox, git, Reason.RESTORE)
                await git.restore_work_tree(checkpoint.commit)
        finally:
            await mirror.bundles.release(bundle)
        if existing is not None:
            return existing.shallow
        return [*(prepared.shallow if prepared is not None else bundle.shallow)]

    async def create_branch(self, job: Job) -> OperationDetail:
        """Create a branch in the checkout. From then on it is the branch that is pushed."""
        if "copyOf" in job.arguments:
            return await self._create_branch_of_copy(job)
        context, name = self._context, job.arguments["name"]
        row = await context.get_checkout(job.sandbox.id)
        if name == row.base_branch:
            raise InvalidInputError(f"{name!r} is the base branch. Work on another branch.")
        taken = set(await context.mirrors.get(row.project_id).list_branches()) | await self._list_taken_names(job)
        if name != row.branch and name in taken:
            raise ConflictError(f"The branch {name!r} already exists. Choose another name.")
        async with context.open_git(job.sandbox, row.folder) as git:
            await git.create_branch(name, start=job.arguments.get("start"))
        async with context.database.transaction() as tx:
            known = await tx.session.get(Checkout, row.sandbox_id)
            if known is not None and known.branch != name:
                known.branch, known.pushed, known.updated_at = name, None, utc_now()
        return {"branch": name}

    async def _create_branch_of_copy(self, job: Job) -> OperationDetail:
        """Give the checkout of a copied sandbox a branch and a ref in the mirror of its own: those of the original may be changed
        or deleted.
        """
        context = self._context
        row = await context.get_checkout(job.sandbox.id)
        if "chosen" not in job.arguments:
            async with self._lock_branch_names(job):
                await job.store(chosen=await self._choose_branch(job, context.mirrors.get(row.project_id)))
        name = job.arguments["chosen"]
        async with context.open_git(job.sandbox, row.folder) as git:
            await git.create_branch(name)
            head = await self._import_commits_of_copy(row, git, f"refs/heads/{name}", job.arguments["copyOf"])
        await context.mirrors.get(row.project_id).set_ref(make_head_ref(row.sandbox_id), head)
        async with context.database.transaction() as tx:
            known = await tx.session.get(Checkout, row.sandbox_id)
            if known is not None:
                known.branch, known.head, known.pushed, known.updated_at = name, head, None, utc_now()
        return {"branch": name}

    async def _import_commits_of_copy(self, row: Checkout, git: SandboxGit, ref: str, original_id: str) -> str:
        """Transfer the commits of a copied sandbox, which may be those of its original and of other copies."""
        context, into = self._context, make_copied_ref(row.sandbox_id)
        refs = await list_refs_of_original(context, original_id)
        while True:
            try:
                return await import_commits(context, row, git, ref=ref, into=into, also_own=refs)
            except UnsafeBundleError:
                known, refs = refs, await list_refs_of_original(context, original_id)
                if set(refs) <= set(known):
                    raise  # otherwise a copy that was made meanwhile may have been the first to send these commits

    # helpers -------------------------------------------------------------------------------------------------------------

    async def _require_no_other_checkout(self, job: Job) -> None:
        async with self._context.database.reading() as session:
            known = await session.get(Checkout, job.sandbox.id)
        if known is not None and known.branch != job.arguments.get("chosen"):
            raise ConflictError(f"This sandbox already has a checkout, on branch {known.branch}.")

    async def _record_choice(self, job: Job, mirror: Mirror, base: str, commit: str) -> None:
        async with self._lock_branch_names(job):
            await job.store(chosen=await self._choose_branch(job, mirror), base=base, commit=commit)

    def _lock_branch_names(self, job: Job) -> asyncio.Lock:
        """Return the lock under which operations of the job's project choose a branch name, so that no two choose the same.

        Other projects have their own, because listing the branches may wait for git processes of the project's owner.
        """
        return self._branch_locks.setdefault(job.operation.project_id, asyncio.Lock())

    async def _choose_branch(self, job: Job, mirror: Mirror) -> str:
        """Return a name that neither the remote nor another checkout of the project uses."""
        taken = set(await mirror.list_branches()) | await self._list_taken_names(job)
        requested = job.arguments.get("branch")
        if requested is not None:
            if requested in taken:
                raise ConflictError(f"The branch {requested!r} already exists. Choose another name.")
            return requested
        return next(name for name in await self._iterate_candidate_names(job.sandbox, taken) if name not in taken)

    async def _iterate_candidate_names(self, sandbox: Sandbox, taken: Collection[str]) -> Iterator[str]:
        """Yield names such as `task/fix-login-1a2b`: the title and the end of the task's id, then with more of the id.

        A suffix such as `-2` is the number of the attempt.
        """
        async with self._context.database.reading() as session:
            task = await session.get(Task, sandbox.task_id) if sandbox.task_id else None
            work_session = await session.get(Session, sandbox.session_id) if sandbox.session_id else None
            query = select(Attempt.number).where(Attempt.session_id == sandbox.session_id)
            number = (await session.scalars(query.limit(1))).first() if sandbox.session_id else None
        kind = "task" if task is not None else "session"
        separator = "-" if kind in taken else "/"  # if there is a branch `task`, there can be none below it
        slug = ref_names.slugify(
            task.title if task is not None else (work_session.title if work_session is not None else None) or ""
        )
        task_or_session_id = (sandbox.task_id or sandbox.session_id or sandbox.id).partition("_")[2]
        attempt = f"-{number}" if number is not None and number > 1 else ""

        def make_name(tail: str, suffix: str = "") -> str:
            return f"{kind}{separator}{'-'.join(part for part in (slug, tail) if part)}{suffix}{attempt}"

        lengths = (4, 6, 8, 12, len(task_or_session_id)) if slug else (8, 12, len(task_or_session_id))
        return itertools.chain(
            (make_name(task_or_session_id[-length:]) for length in lengths),
            (make_name(task_or_session_id, f".{count}") for count in itertools.count(2)),
        )

    async def _list_taken_names(self, job: Job) -> set[str]:
        async with self._context.database.reading() as session:
            rows = select(Checkout.branch).where(Checkout.project_id == job.operation.project_id)
            chosen = select(GitOperation.arguments).where(
                GitOperation.project_id == job.operation.project_id,
                GitOperation.kind.in_((OperationKind.CLONE, OperationKind.BRANCH)),
                GitOperation.status.in_(OPEN_STATUSES),
                GitOperation.id != job.operation.id,
            )
            known = set((await session.scalars(rows)).all())
            return known | {
                arguments["chosen"] for arguments in (await session.scalars(chosen)).all() if "chosen" in arguments
            }

    async def _get_last_pushed(self, checkpoint: Checkpoint) -> str | None:
        """Return the last known position of the branch on the remote."""
        async with self._context.database.reading() as session:
            query = select(Checkout.pushed).where(
                Checkout.session_id == checkpoint.session_id,
                Checkout.branch == checkpoint.branch,
                Checkout.pushed.is_not(None),
            )
            return (await session.scalars(query.order_by(Checkout.updated_at.desc()).limit(1))).first()

    async def _list_bases(self, checkpoint: Checkpoint) -> list[str]:
        """Return the commits of the base branch that the platform has put into the checkouts that the checkpoint may come from."""
        own = [Checkout.sandbox_id == checkpoint.sandbox_id]
        if checkpoint.session_id is not None:
            own.append(Checkout.session_id == checkpoint.session_id)
        async with self._context.database.reading() as session:
            query = select(Checkout.bases).where(or_(*own)).order_by(Checkout.created_at)
            recorded = (await session.scalars(query)).all()
        bases = dict.fromkeys(commit for bases in recorded for commit in bases)
        return list(bases) or [checkpoint.base_commit]

    async def _save_checkout(self, job: Job, project: Project, **fields: Any) -> None:
        now, sandbox = utc_now(), job.sandbox
        async with self._context.database.transaction() as tx:
            row = await tx.session.get(Checkout, sandbox.id)
            if row is None:
                row = Checkout(
                    sandbox_id=sandbox.id,
                    session_id=sandbox.session_id,
                    project_id=project.id,
                    folder=CHECKOUT_FOLDER,
                    created_at=now,
                )
                tx.add(row)
            row.updated_at = now
            for name, value in fields.items():
                setattr(row, name, value)
