"""Git operations on behalf of users. Every method takes the caller and treats what the caller may not see as nonexistent.

Methods that change something submit an operation and return at once; `operations.wait` returns its outcome. Methods that only read never
resume a sandbox: if it is paused, they read its last checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Literal, Unpack

from sqlalchemy import and_, select

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database, Transaction
from sandyard.platform.db.models import Checkout, Checkpoint, GitOperation, Project, Sandbox
from sandyard.platform.db.models.git_details import OperationArguments
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.branch_merge import BranchMerges
from sandyard.platform.domain.git.context import GitContext
from sandyard.platform.domain.git.errors import NoCheckoutError, NotInProjectError
from sandyard.platform.domain.git.mirror_tidying import MirrorTidying
from sandyard.platform.domain.git.model import OperationKind, OperationStatus, PreparedCheckout, Reason, UndoneChanges
from sandyard.platform.domain.git.operations.change_handlers import ChangeHandlers
from sandyard.platform.domain.git.operations.checkout_handlers import CheckoutHandlers, require_in_project
from sandyard.platform.domain.git.operations.checkpoints import SAVE_TIMEOUT_S, Checkpoints
from sandyard.platform.domain.git.operations.remote_handlers import RemoteHandlers
from sandyard.platform.domain.git.operations.runner import OperationRunner
from sandyard.platform.domain.git.prepared_checkouts import PreparedCheckouts
from sandyard.platform.domain.git.repository_queue import RepositoryQueue
from sandyard.platform.domain.git.sandbox_commits import (
    CHECKPOINT_REFS,
    HEAD_REFS,
    is_own_commit,
    list_own_refs,
    make_checkpoint_ref,
    make_copied_ref,
    make_head_ref,
)
from sandyard.platform.domain.paging import Listing, PageRequest, list_newest_first
from sandyard.platform.domain.projects import service as projects
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.errors import GitFailedError
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Commit, Diff, RepositoryReader, Status, ignore_progress
from sandyard.platform.domain.repositories.output import is_commit_id
from sandyard.platform.domain.repositories.status import read_stored_status
from sandyard.platform.domain.sandboxes import repository as sandboxes
from sandyard.platform.domain.sandboxes.e2b import SandboxNotRunningError
from sandyard.platform.domain.sandboxes.model import Status as SandboxStatus
from sandyard.platform.domain.sandboxes.model import check_usable
from sandyard.platform.domain.users.model import Principal

UpdateMethod = Literal["rebase", "merge", "check", "agent", "give_up"]
_STALE_AFTER = timedelta(minutes=1)
_REMOTE_OPERATIONS = (OperationKind.PUSH, OperationKind.UPDATE, OperationKind.TAG)
"""Operations that fetch the project's code or use its credential."""

log = get_logger(__name__)


class GitService:
    """Submits git operations and reads checkouts."""

    def __init__(self, context: GitContext, projects: projects.Projects) -> None:
        self._context = context
        self._database: Database = context.database
        self._projects = projects
        queue = RepositoryQueue()
        self.checkpoints = Checkpoints(context)
        checkouts = CheckoutHandlers(context, self.checkpoints)
        changes = ChangeHandlers(context, self.checkpoints)
        remote = RemoteHandlers(context, self.checkpoints)
        self.operations = OperationRunner(
            context.database,
            queue,
            {
                OperationKind.CLONE: checkouts.clone,
                OperationKind.RESTORE: checkouts.restore,
                OperationKind.BRANCH: checkouts.create_branch,
                OperationKind.STAGE: changes.stage,
                OperationKind.DISCARD: changes.discard,
                OperationKind.COMMIT: changes.commit,
                OperationKind.PUSH: remote.push,
                OperationKind.UPDATE: remote.update,
                OperationKind.TAG: remote.create_tag,
                OperationKind.CHECKPOINT: self.checkpoints.handle_checkpoint,
            },
        )
        self.prepared_checkouts = PreparedCheckouts(context, queue)
        self.branch_merges = BranchMerges(context, queue)
        self._mirror_tidying = MirrorTidying(context.mirrors)

    # changes ----------------------------------------------------------------------------------------------------------

    async def clone(
        self,
        caller: Principal,
        sandbox_id: str,
        *,
        project_id: str | None = None,
        base_branch: str | None = None,
        branch: str | None = None,
    ) -> GitOperation:
        """Clone the repository of the sandbox's project into a sandbox that has no checkout yet.

        `project_id` is the project that the caller expects. Raises NotInProjectError if the sandbox belongs to another
        project or to none.
        """
        row = await self._context.lifecycle.repository.get_for(caller, sandbox_id)
        check_usable(row)
        project_id = project_id or row.project_id
        if project_id is None:
            raise NotInProjectError
        project = await self._projects.get(caller, project_id)
        require_in_project(row, project.id)
        if project.repository is None:
            raise ConflictError(f"Project {project.name!r} has no repository. Add one in the project's settings.")
        return await self.operations.submit(
            OperationKind.CLONE,
            row,
            project_id=project.id,
            user_id=caller.user_id,
            baseBranch=base_branch,
            branch=branch,
        )

    def draft_checkout(
        self,
        tx: Transaction,
        sandbox: Sandbox,
        project: Project,
        user_id: str,
        checkpoint: Checkpoint | None = None,
        *,
        base_branch: str | None = None,
        prepared: PreparedCheckout | None = None,
    ) -> GitOperation:
        """Draft the checkout of a sandbox that is created in the same transaction. Call `operations.begin` after the commit.

        `prepared` describes the checkout that the sandbox has from its snapshot.
        """
        kind = OperationKind.CLONE if checkpoint is None else OperationKind.RESTORE
        arguments: OperationArguments = {} if checkpoint is None else {"checkpointId": checkpoint.id}
        if base_branch is not None:
            arguments["baseBranch"] = base_branch
        if prepared is not None:
            arguments["prepared"] = prepared.to_json()
        return self.operations.draft(tx, kind, sandbox, project_id=project.id, user_id=user_id, arguments=arguments)

    def draft_branch_of_copy(self, tx: Transaction, sandbox: Sandbox, original: Checkout, user_id: str) -> GitOperation:
        """Draft a new branch for the checkout of a sandbox that is a copy. Call `operations.begin` after the commit."""
        return self.operations.draft(
            tx,
            OperationKind.BRANCH,
            sandbox,
            project_id=original.project_id,
            user_id=user_id,
            arguments={"copyOf": original.sandbox_id},
        )

    async def create_branch(
        self, caller: Principal, sandbox_id: str, *, name: str, start: str | None = None
    ) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.BRANCH, name=name, start=start)

    async def stage(
        self, caller: Principal, sandbox_id: str, paths: Sequence[str], *, unstage: bool = False
    ) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.STAGE, paths=list(paths), unstage=unstage)

    async def discard(
        self, caller: Principal, sandbox_id: str, *, paths: Sequence[str] = (), everything: bool = False
    ) -> GitOperation:
        """Discard uncommitted changes of these paths or of everything, including new files."""
        if not paths and not everything:
            raise InvalidInputError("Name the paths to discard, or discard everything.")
        return await self._submit(caller, sandbox_id, OperationKind.DISCARD, paths=list(paths), everything=everything)

    async def commit(
        self,
        caller: Principal,
        sandbox_id: str,
        *,
        message: str,
        paths: Sequence[str] = (),
        everything: bool = True,
    ) -> GitOperation:
        """Commit changes. Raises CommitMessageError with a suggestion if the message violates the project's convention."""
        row = await self.get_checkout(caller, sandbox_id)
        project = await self._context.get_project(row.project_id)
        if ProjectSettings.from_project(project).git.commit_messages == "conventional":
            commit_messages.check_message(message)
        return await self._submit(
            caller, sandbox_id, OperationKind.COMMIT, message=message, paths=list(paths), everything=everything
        )

    async def push(self, caller: Principal, sandbox_id: str) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.PUSH)

    async def update(
        self, caller: Principal, sandbox_id: str, *, how: UpdateMethod, source: Literal["base", "branch"] = "base"
    ) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.UPDATE, how=how, source=source)

    async def create_tag(
        self, caller: Principal, sandbox_id: str, *, name: str, message: str | None = None, push: bool = False
    ) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.TAG, name=name, message=message, push=push)

    async def checkpoint(self, caller: Principal, sandbox_id: str, reason: Reason = Reason.ASKED) -> GitOperation:
        return await self._submit(caller, sandbox_id, OperationKind.CHECKPOINT, reason=reason)

    async def _submit(
        self, caller: Principal, sandbox_id: str, kind: OperationKind, **arguments: Unpack[OperationArguments]
    ) -> GitOperation:
        checkout, row = await self._get_checkout_and_sandbox(caller, sandbox_id, check_use=True)
        # the checkout may be older than the rule that the sandbox must belong to the project
        if kind in _REMOTE_OPERATIONS:
            require_in_project(row, checkout.project_id)
        return await self.operations.submit(
            kind, row, project_id=checkout.project_id, user_id=caller.user_id, **arguments
        )

    # before and after a program that may write anywhere ---------------------------------------------------------------

    async def record_work_tree(self, caller: Principal, sandbox_id: str) -> str:
        """Store the work tree in the checkout as a commit that is on no branch, and return its id."""
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        async with self._context.open_git(sandbox, row.folder) as git:
            return (await git.save_work_tree()).commit

    async def undo_changes(self, caller: Principal, sandbox_id: str, before: str) -> UndoneChanges | None:
        """Restore the work tree that `record_work_tree` returned. See `SandboxGit.undo_changes`."""
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        async with self._context.open_git(sandbox, row.folder) as git:
            return await git.undo_changes(before)

    # reads ------------------------------------------------------------------------------------------------------------

    async def get_checkout(self, caller: Principal, sandbox_id: str) -> Checkout:
        return (await self._get_checkout_and_sandbox(caller, sandbox_id))[0]

    async def get_status(self, caller: Principal, sandbox_id: str) -> Status:
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        if sandbox.status == SandboxStatus.RUNNING and sandbox.engine_id is not None:
            try:
                return await self._context.create_git(sandbox.engine_id, row.folder).get_status()
            except SandboxNotRunningError:
                pass  # it was paused at this moment
        checkpoint = await self._get_latest_checkpoint(row)
        mirror = self._context.mirrors.get(row.project_id)
        return await read_stored_status(
            mirror, checkpoint.commit, branch=checkpoint.branch, as_of=checkpoint.created_at
        )

    async def list_commits(self, caller: Principal, sandbox_id: str, *, limit: int = 50, skip: int = 0) -> list[Commit]:
        """Return the commits of the checkout that are not in its base, newest first."""
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        if sandbox.status == SandboxStatus.RUNNING and sandbox.engine_id is not None:
            git = self._context.create_git(sandbox.engine_id, row.folder)
            try:
                return await read_history(
                    git, f"{await _find_comparison_base(git, row, 'HEAD')}..HEAD", limit=limit, skip=skip
                )
            except SandboxNotRunningError:
                pass
        checkpoint, mirror = await self._get_latest_checkpoint(row), self._context.mirrors.get(row.project_id)
        base = await _find_comparison_base(mirror, row, checkpoint.head)
        return await read_history(mirror, f"{base}..{checkpoint.head}", limit=limit, skip=skip)

    async def list_base_commits(self, caller: Principal, sandbox_id: str, *, limit: int = 50) -> list[Commit]:
        """Return the commits that the checkout started from, newest first. A checkout of a large repository has only some."""
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        if sandbox.status == SandboxStatus.RUNNING and sandbox.engine_id is not None:
            git = self._context.create_git(sandbox.engine_id, row.folder)
            try:
                return await read_history(git, await _find_comparison_base(git, row, "HEAD"), limit=limit)
            except SandboxNotRunningError:
                pass
        checkpoint, mirror = await self._get_latest_checkpoint(row), self._context.mirrors.get(row.project_id)
        return await read_history(mirror, await _find_comparison_base(mirror, row, checkpoint.head), limit=limit)

    async def get_diff(
        self,
        caller: Principal,
        sandbox_id: str,
        *,
        against: str = "base",
        paths: Sequence[str] = (),
        patches: bool = True,
    ) -> Diff:
        """Return the changes in the work tree since the base, the newest commit (`head`) or another commit."""
        row, sandbox = await self._get_checkout_and_sandbox(caller, sandbox_id)
        reader: RepositoryReader
        if sandbox.status == SandboxStatus.RUNNING and sandbox.engine_id is not None:
            git = reader = self._context.create_git(sandbox.engine_id, row.folder)
            try:
                tree = await git.save_work_tree()
                base = await _find_comparison_base(reader, row, tree.head, against)
                return await read_diff(reader, base, tree.commit, paths=paths, patches=patches)
            except SandboxNotRunningError:
                pass
        checkpoint, reader = await self._get_latest_checkpoint(row), self._context.mirrors.get(row.project_id)
        base = await self._find_checkpoint_base(row, checkpoint, against)
        return await read_diff(reader, base, checkpoint.commit, paths=paths, patches=patches)

    async def _find_checkpoint_base(self, row: Checkout, checkpoint: Checkpoint, against: str) -> str:
        """Return the commit to compare with.

        It must be the sandbox's own or on the remote, because the mirror also has the work of others.
        """
        mirror = self._context.mirrors.get(row.project_id)
        base = await _find_comparison_base(mirror, row, checkpoint.head, against)
        if base == against and not await is_own_commit(mirror, base, await list_own_refs(self._context, row)):
            raise NotFoundError(f"The checkout has no commit {against!r}. Use a full commit id.")
        return base

    async def compare(
        self, caller: Principal, project_id: str, base: str, head: str, *, patches: bool = True
    ) -> tuple[list[Commit], Diff]:
        """Return the commits and changes of the branch or commit `head` since it diverged from `base`, as of the last fetch."""
        project = await self._projects.get(caller, project_id)
        mirror = self._context.mirrors.get(project.id)
        if not mirror.exists:
            raise ConflictError(
                "The platform has not fetched this repository yet. Start a session in the project first."
            )
        old, new = [await self._resolve_on_remote(mirror, name) for name in (base, head)]
        fork_point = await mirror.find_merge_base(old, new)
        commits = await read_history(mirror, f"{old}..{new}", limit=250)
        return commits, await read_diff(mirror, fork_point or old, new, patches=patches)

    async def _resolve_on_remote(self, mirror: Mirror, name: str) -> str:
        """Resolve a branch or tag of the remote, or a commit that one of them contains."""
        found = await mirror.resolve(f"refs/remotes/origin/{name}") or await mirror.resolve(f"refs/tags/{name}")
        if found is None and is_commit_id(name) and await mirror.is_on_remote(name):
            found = name
        if found is None:
            raise NotFoundError(f"The repository has no branch or commit {name[:100]!r}, as of the last fetch.")
        return found

    async def _get_checkout_and_sandbox(
        self, caller: Principal, sandbox_id: str, *, check_use: bool = False
    ) -> tuple[Checkout, Sandbox]:
        """Return the checkout and its sandbox.

        Raises NotFoundError also for what the caller may not see. Former project members do not see the project's code
        here.
        """
        query = (
            select(Sandbox, Checkout, Project.id)
            .outerjoin(Checkout, Checkout.sandbox_id == Sandbox.id)
            .outerjoin(Project, and_(Project.id == Checkout.project_id, projects.is_visible_to(caller)))
            .where(Sandbox.id == sandbox_id, sandboxes.is_visible_to(caller))
        )
        async with self._database.reading() as session:
            found = (await session.execute(query)).first()
        if found is None:
            raise NotFoundError(f"There is no sandbox {sandbox_id[:60]!r}.")
        sandbox, row, project_id = found
        if check_use:
            check_usable(sandbox)
        if row is None:
            raise NoCheckoutError
        if project_id is None:
            raise NotFoundError(f"There is no project {row.project_id[:60]}.")
        return row, sandbox

    async def _get_latest_checkpoint(self, row: Checkout) -> Checkpoint:
        checkpoint = await self.checkpoints.get_newest(row.sandbox_id)
        if checkpoint is None:
            raise NoCheckoutError("The sandbox is not running, and it has no checkpoint. Resume it to see its files.")
        return checkpoint

    async def list_checkpoints(self, caller: Principal, session_id: str, page: PageRequest) -> Listing[Checkpoint]:
        """List the session's checkpoints. The caller must have been authorized to see the session."""
        async with self._database.reading() as session:
            query = select(Checkpoint).where(Checkpoint.session_id == session_id)
            return await list_newest_first(session, query, Checkpoint.id, page)

    async def get_operation(self, caller: Principal, operation_id: str) -> GitOperation:
        async with self._database.reading() as session:
            query = select(GitOperation).where(GitOperation.id == operation_id, _is_visible_to(caller))
            row = (await session.scalars(query)).first()
        if row is None:
            raise NotFoundError(f"There is no git operation {operation_id[:60]!r}.")
        return row

    async def list_operations(
        self,
        caller: Principal,
        page: PageRequest,
        *,
        sandbox_id: str | None = None,
        session_id: str | None = None,
        project_id: str | None = None,
    ) -> Listing[GitOperation]:
        query = select(GitOperation).where(_is_visible_to(caller))
        for column, value in (
            (GitOperation.sandbox_id, sandbox_id),
            (GitOperation.session_id, session_id),
            (GitOperation.project_id, project_id),
        ):
            query = query if value is None else query.where(column == value)
        async with self._database.reading() as session:
            return await list_newest_first(session, query, GitOperation.id, page)

    # hooks of the sandbox lifecycle -----------------------------------------------------------------------------------

    async def before_pause(self, sandbox: Sandbox) -> None:
        """Save uncommitted work as a checkpoint."""
        await self._save_checkpoint(sandbox, Reason.PAUSE)

    async def before_destroy(self, sandbox: Sandbox) -> None:
        """Save uncommitted work as a checkpoint. A paused sandbox is saved too: the engine may have paused it without a checkpoint."""
        await self._save_checkpoint(sandbox, Reason.DESTROY)

    async def _save_checkpoint(self, sandbox: Sandbox, reason: Reason) -> None:
        async with self._database.transaction() as tx:
            checkout = await tx.session.get(Checkout, sandbox.id)
            if checkout is None or sandbox.engine_id is None:
                return
            row = self.operations.draft(
                tx,
                OperationKind.CHECKPOINT,
                sandbox,
                project_id=checkout.project_id,
                user_id=None,
                arguments={"reason": reason},
                status=OperationStatus.RUNNING,
            )
        await self.operations.execute(row, sandbox, timeout_s=SAVE_TIMEOUT_S)

    # maintenance ------------------------------------------------------------------------------------------------------

    async def refresh(self, project: Project) -> None:
        """Update the mirror after someone pushed."""
        repository = await self._context.get_repository(project)
        if repository.mirror.exists:
            await self._context.refresh(project, repository, ignore_progress, since=float("inf"))

    async def recover(self) -> int:
        """Delete what a crash left incomplete, then continue the pending operations. Call it after a start, before anything else."""
        async with self._database.reading() as session:
            used = {
                make_checkpoint_ref(checkpoint_id) for checkpoint_id in await session.scalars(select(Checkpoint.id))
            }
            for sandbox_id in await session.scalars(select(Checkout.sandbox_id)):
                used |= {make_head_ref(sandbox_id), make_copied_ref(sandbox_id)}
        await asyncio.to_thread(self._context.delete_transfer_files)
        for project_id in self._context.mirrors.list_project_ids():
            mirror = self._context.mirrors.get(project_id)
            try:
                found = {**await mirror.list_refs(CHECKPOINT_REFS), **await mirror.list_refs(HEAD_REFS)}
                for ref in found.keys() - used:
                    await mirror.delete_ref(ref)
            except (SandyardError, OSError) as error:  # one repository must not keep the platform from starting
                log.warning("mirror_not_recovered", project=project_id, reason=str(error))
        return await self.operations.recover()

    async def tidy(self, older_than: timedelta) -> None:
        """Delete old operations and the mirrors of deleted projects, and keep the other mirrors small.

        Also starts operations that could not be started or finished while the database was unavailable.
        """
        await self.operations.trim(older_than)
        await self.operations.recover(_STALE_AFTER)
        # read before the projects, so that a project created meanwhile is among them
        mirrored = self._context.mirrors.list_project_ids()
        async with self._database.reading() as session:
            existing = set((await session.scalars(select(Project.id))).all())
        await self._mirror_tidying.tidy(mirrored, existing)


async def _find_comparison_base(reader: RepositoryReader, row: Checkout, head: str, against: str = "base") -> str:
    """Return the commit to compare with. `base` is the merge base, so that what was merged from the base branch is not counted."""
    if against != "base":
        return head if against == "head" else against
    try:
        output, _ = await reader.read("merge-base", head, f"refs/remotes/origin/{row.base_branch}")
    except GitFailedError:
        return row.base_commit
    found = output.decode("ascii", "replace").strip()
    return found if is_commit_id(found) else row.base_commit


def _is_visible_to(caller: Principal) -> Any:
    return GitOperation.project_id.in_(select(Project.id).where(projects.is_visible_to(caller)))
