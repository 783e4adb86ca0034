"""Push, update and tag. Never forces a push and never overwrites what others pushed."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import update

from sandyard.kit.errors import ConflictError, SandyardError
from sandyard.kit.ids import make_ordered_id
from sandyard.kit.logging import get_logger
from sandyard.platform.db.models import Checkout, Message, Project
from sandyard.platform.db.models.git_details import OperationDetail
from sandyard.platform.db.models.message_parts import ConflictingFile
from sandyard.platform.domain.git import commit_messages
from sandyard.platform.domain.git.checkout.sandbox_git import SandboxGit
from sandyard.platform.domain.git.ci_files import list_changed_ci_files, list_outdated_ci_files
from sandyard.platform.domain.git.context import GitContext, Repository, get_author, get_committer, make_compare_url
from sandyard.platform.domain.git.errors import CiFilesError
from sandyard.platform.domain.git.model import Reason
from sandyard.platform.domain.git.operations.checkpoints import Checkpoints
from sandyard.platform.domain.git.operations.runner import Job
from sandyard.platform.domain.git.repository_queue import make_mirror_key
from sandyard.platform.domain.git.sandbox_commits import import_commits, list_own_refs, make_head_ref
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.errors import ConflictsError, UnsafeBundleError
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.merge_tree import find_conflicts
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Change, Conflict, Conflicts
from sandyard.platform.domain.sandboxes.model import get_sandbox_event_fields, utc_now

log = get_logger(__name__)
MAX_REPORTED_CONFLICTS = 500
"""Maximum number of files in conflict to report."""
MAX_CHECKED_COMMITS = 1000
"""Maximum number of commits of a branch to check before it is pushed."""


class NothingToPushError(ConflictError):
    """The branch has no commits that are not in its base branch. Commit something first."""

    code = "nothing_to_push"


class RebaseRefusedError(ConflictError):
    """The branch was already pushed: rebasing it would require a forced push, which is never done. Merge instead."""

    code = "rebase_refused"


@dataclass(frozen=True, slots=True)
class _CheckoutContext:
    """A checkout with its repository and its git in the sandbox."""

    row: Checkout
    project: Project
    repository: Repository
    git: SandboxGit


class RemoteHandlers:
    """Handlers of the operations that use the remote."""

    def __init__(self, context: GitContext, checkpoints: Checkpoints) -> None:
        self._context = context
        self._checkpoints = checkpoints

    # push --------------------------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _open_checkout(self, job: Job) -> AsyncIterator[_CheckoutContext]:
        row, project = await self._context.get_checkout_with_project(job.sandbox.id)
        repository = await self._context.get_repository(project)
        async with self._context.open_git(job.sandbox, row.folder) as git:
            yield _CheckoutContext(row, project, repository, git)

    @contextlib.asynccontextmanager
    async def _wait_turn_to_write(self, job: Job, checkout: _CheckoutContext) -> AsyncIterator[None]:
        """Wait to be the only writer to the remote, and the only one of its project to use it."""
        project, repository = checkout.project, checkout.repository
        async with (
            job.wait_turn(repository.remote.key, project.owner_id),
            job.wait_turn(make_mirror_key(project.id), project.owner_id),
        ):
            yield

    async def push(self, job: Job) -> OperationDetail:
        async with self._open_checkout(job) as checkout:
            row, repository = checkout.row, checkout.repository
            mirror = repository.mirror
            saved = await self._checkpoints.save(row, job.sandbox, checkout.git, Reason.PUSH)
            commit = await self._import_branch(checkout, saved.row.head)
            commits = await self._check_pushable(checkout, commit)
            base = await mirror.resolve(f"refs/remotes/origin/{row.base_branch}") or row.base_commit
            async with self._wait_turn_to_write(job, checkout), self._context.record_connection(checkout.project):
                await mirror.push(
                    repository.remote,
                    repository.credential,
                    commit,
                    row.branch,
                    expected=row.pushed,
                    base=base,
                    progress=job.progress,
                )
            fork_point = await mirror.find_merge_base(commit, base)
            if fork_point is None or not await mirror.is_ancestor(row.base_commit, fork_point):
                fork_point = row.base_commit  # never an older one than that of the checkout or the last update
            fields = {"head": commit, "pushed": commit, "base_commit": fork_point, "bases": _list_bases(row)}
            await self._update_checkout(row.sandbox_id, **fields)
            await self._track(checkout, commit)
        conflicts = await self._predict_conflicts(mirror, commit, base)
        return {
            "branch": row.branch,
            "commit": commit,
            "commits": commits,
            "compareUrl": make_compare_url(self._context.settings, row.project_id, row.base_branch, row.branch),
            "conflicts": _serialize_conflicts(conflicts.files),
            "conflictCount": conflicts.total,
            "upToDate": commit == row.pushed,
        }

    async def _track(self, checkout: _CheckoutContext, commit: str) -> None:
        """Record the push in the sandbox's git. Failures are only logged, because the push has succeeded already."""
        try:
            await checkout.git.track(checkout.row.branch, commit)
        except SandyardError as error:
            log.warning("branch_not_tracked", sandbox=checkout.row.sandbox_id, reason=error.message)

    async def _predict_conflicts(self, mirror: Mirror, ours: str, theirs: str) -> Conflicts:
        """Return conflicts for information. Failures are only logged, because the push has succeeded already."""
        try:
            return await find_conflicts(mirror, ours, theirs)
        except SandyardError as error:
            log.warning("conflicts_unknown", commit=ours, reason=error.message)
            return Conflicts()

    async def _import_branch(self, checkout: _CheckoutContext, *known: str) -> str:
        """Transfer the branch's newest commit to the mirror, which already has the `known` commits."""
        row = checkout.row
        ref, into = f"refs/heads/{row.branch}", make_head_ref(row.sandbox_id)
        return await import_commits(self._context, row, checkout.git, ref=ref, into=into, known=known)

    async def _check_pushable(self, checkout: _CheckoutContext, commit: str) -> int:
        """Return the number of commits that are not in the base. Raises an error if the branch may not be pushed."""
        row, mirror = checkout.row, checkout.repository.mirror
        if row.branch in (row.base_branch, checkout.project.base_branch, await mirror.get_default_branch()):
            raise ConflictError(f"{row.branch!r} is the base branch. Change it with a pull request.")
        base = await mirror.resolve(f"refs/remotes/origin/{row.base_branch}") or row.base_commit
        added = await read_history(mirror, f"{base}..{commit}", limit=MAX_CHECKED_COMMITS)
        if not added:
            raise await self._make_nothing_to_push_error(checkout)
        settings = ProjectSettings.from_project(checkout.project).git
        if settings.commit_messages == "conventional":
            commit_messages.check_commits(added)
        if settings.ci_files == "refuse":
            known = [base, *([row.pushed] if row.pushed is not None else [])]
            if changed := await list_changed_ci_files(mirror, commit, known):
                raise CiFilesError(changed)
            await self._check_ci_files(mirror, row, base, commit)
        return len(added)

    async def _check_ci_files(self, mirror: Mirror, row: Checkout, base: str, commit: str) -> None:
        """Check that every new commit has exactly the CI files of one commit that the platform has put into the checkout, of the newest
        one of the base, or of what the remote's branch has. Raises CiFilesError otherwise: they may be old files.
        """
        known, references = [base], [base, *reversed(_list_bases(row))]
        if row.pushed is not None:  # otherwise a branch of that name is somebody else's
            on_remote = await mirror.resolve(f"refs/remotes/origin/{row.branch}")
            known.append(row.pushed)
            references += [row.pushed, *([on_remote] if on_remote is not None else [])]
        if files := await list_outdated_ci_files(mirror, commit, known, references, max_commits=MAX_CHECKED_COMMITS):
            raise CiFilesError(files)

    async def _make_nothing_to_push_error(self, checkout: _CheckoutContext) -> NothingToPushError:
        """Return the error for a branch without commits: someone may have switched to another branch in the sandbox."""
        branch, current = checkout.row.branch, await checkout.git.get_branch()
        if current == branch:
            return NothingToPushError()
        return NothingToPushError(
            f"There is nothing to push: the session's branch {branch} has no commits of its own, and the checkout is on "
            f"{current or 'no branch'}. Run `git checkout {branch}` in the sandbox, or create a new branch from the current state."
        )

    # update ------------------------------------------------------------------------------------------------------------

    async def update(self, job: Job) -> OperationDetail:
        """Merge or rebase new commits of the base branch, or of the remote's version of the branch itself."""
        how, started = job.arguments["how"], time.monotonic()
        async with self._open_checkout(job) as checkout:
            row, repository = checkout.row, checkout.repository
            if how == "give_up":
                return {"ended": await checkout.git.abort()}
            if (
                how == "agent"
                and job.operation.attempts > 1
                and (remaining := await self._list_remaining_conflicts(checkout.git))
            ):
                await self._hand_conflicts_to_agent(job, remaining, row.base_branch)
                return {"conflicts": _serialize_conflicts(remaining), "conflictCount": len(remaining)}
            known = []
            if how != "check":
                known = [(await self._checkpoints.save(row, job.sandbox, checkout.git, Reason.UPDATE)).row.head]
            async with job.wait_turn(make_mirror_key(checkout.project.id), checkout.project.owner_id):
                await self._context.refresh(checkout.project, repository, job.progress, since=started)
            ours = await self._import_branch(checkout, *known)
            await self._update_checkout(row.sandbox_id, head=ours)
            source = row.branch if job.arguments["source"] == "branch" else row.base_branch
            theirs = await repository.mirror.resolve(f"refs/remotes/origin/{source}")
            if theirs is None:
                raise ConflictError(f"The remote has no branch {source!r}.")
            mirror = repository.mirror
            conflicts = await find_conflicts(mirror, ours, theirs)
            found: OperationDetail = {
                "source": source,
                "commit": theirs,
                "behind": await mirror.count_commits(f"{ours}..{theirs}"),
                "ahead": await mirror.count_commits(f"{theirs}..{ours}"),
                "conflicts": _serialize_conflicts(conflicts.files),
                "conflictCount": conflicts.total,
            }
            if how == "check" or not found["behind"]:
                return found
            if how == "rebase" and row.pushed is not None and source == row.base_branch:
                raise RebaseRefusedError
            if conflicts and how != "agent":
                raise ConflictsError(conflicts.files, total=conflicts.total)
            remaining = await self._integrate(job, checkout, source, ours, theirs)
            return {
                **found,
                "head": await checkout.git.get_head(),
                "conflicts": _serialize_conflicts(remaining),
                "conflictCount": len(remaining),
            }

    async def _integrate(
        self, job: Job, checkout: _CheckoutContext, source: str, ours: str, theirs: str
    ) -> list[Conflict]:
        """Transfer the commits to the sandbox and merge or rebase. Returns the conflicts that were left for the agent."""
        row, how, mirror = checkout.row, job.arguments["how"], checkout.repository.mirror
        if source == row.base_branch:  # recorded first: the agent may finish the merge, or this process may be killed
            await self._update_checkout(row.sandbox_id, bases=[*_list_bases(row), theirs])
        job.progress(f"merging {source}")
        bundle = await mirror.bundles.create(
            theirs, ref=f"refs/heads/{source}", have=[ours, row.base_commit], shallow=row.shallow
        )
        try:
            await checkout.git.receive(bundle, {f"refs/heads/{source}": f"refs/remotes/origin/{source}"})
        finally:
            await mirror.bundles.release(bundle)
        remaining: list[Conflict] = []
        if how == "rebase":
            await checkout.git.rebase(theirs)
        else:
            identity = get_committer(checkout.project)
            remaining = await checkout.git.merge(
                theirs, message=f"chore: merge {source}"[:100], leave_conflicts=how == "agent", identity=identity
            )
        if remaining:
            await self._hand_conflicts_to_agent(job, remaining, source)
        else:
            await self._update_checkout(
                row.sandbox_id, **({"base_commit": theirs} if source == row.base_branch else {"pushed": theirs})
            )
        return remaining

    async def _list_remaining_conflicts(self, git: SandboxGit) -> list[Conflict]:
        """Return the conflicts that a run before a crash has left."""
        status = await git.get_status()
        if status.under_way != "merge":
            return []
        return [
            Conflict(entry.path, "content")
            for entry in status.entries
            if Change.CONFLICTED in (entry.index, entry.worktree)
        ]

    async def _hand_conflicts_to_agent(self, job: Job, conflicts: list[Conflict], source: str) -> None:
        """Write a message that tells the session's agent to resolve the merge in progress, which left markers in the files."""
        names = "\n".join(f"- {conflict.path} ({conflict.kind})" for conflict in conflicts[:MAX_REPORTED_CONFLICTS])
        text = (
            f"A merge of {source} into your branch stopped at conflicts in these files:\n{names}\nResolve them, stage the "
            "files, and commit the merge."
        )
        sandbox = job.sandbox
        async with self._context.database.transaction() as tx:
            if sandbox.session_id is not None:
                message = Message(
                    id=make_ordered_id("msg_"),
                    session_id=sandbox.session_id,
                    role="system",
                    parts=[{"type": "conflicts", "text": text, "files": _serialize_conflicts(conflicts)}],
                    created_at=utc_now(),
                )
                tx.add(message)
                tx.emit(
                    "message.created",
                    **get_sandbox_event_fields(sandbox),
                    messageId=message.id,
                    role=message.role,
                    by="git",
                )
            tx.emit(
                "git.conflicts_handed_over",
                **get_sandbox_event_fields(sandbox),
                files=[conflict.path for conflict in conflicts[:MAX_REPORTED_CONFLICTS]],
                text=text,
            )

    # tags --------------------------------------------------------------------------------------------------------------

    async def create_tag(self, job: Job) -> OperationDetail:
        """Tag the checkout's newest commit and, if requested, push the tag once the commit is on the remote."""
        name = job.arguments["name"]
        async with self._open_checkout(job) as checkout:
            row, repository, mirror = checkout.row, checkout.repository, checkout.repository.mirror
            push = job.arguments["push"]
            if push and (row.pushed is None or not await mirror.is_ancestor(await checkout.git.get_head(), row.pushed)):
                raise ConflictError("The newest commit is not on the remote yet. Push the branch first, then tag it.")
            commit = await checkout.git.create_tag(name, job.arguments["message"], get_author(checkout.project))
            if not push:
                return {"tag": name, "commit": commit, "pushed": False}
            into = f"refs/sandyard/tags/{name}"
            with self._context.create_transfer_file() as path:
                sent = await checkout.git.send(path, ref=f"refs/tags/{name}", have=[row.head])
                # another sandbox of the project may also have a tag of that name
                async with self._wait_turn_to_write(job, checkout):
                    if path.exists():
                        own_refs = await list_own_refs(self._context, row)
                        tagged_commit = (await mirror.import_bundle(path, {sent.ref: into}, own_refs=own_refs))[into]
                    else:
                        tagged_commit = sent.commit
                        await mirror.set_ref(into, tagged_commit)
                    if not await mirror.is_ancestor(tagged_commit, row.pushed or ""):
                        await mirror.delete_ref(into)
                        raise UnsafeBundleError("The tag in the sandbox is not on a pushed commit.")
                    if ProjectSettings.from_project(checkout.project).git.ci_files == "refuse":
                        # every old commit of the base is on the branch, too
                        base = await mirror.resolve(f"refs/remotes/origin/{row.base_branch}") or row.base_commit
                        target = await mirror.resolve(tagged_commit) or tagged_commit
                        await self._check_ci_files(mirror, row, base, target)
                    await mirror.push_tag(repository.remote, repository.credential, name, progress=job.progress)
        return {"tag": name, "commit": commit, "pushed": True}

    async def _update_checkout(self, sandbox_id: str, **fields: Any) -> None:
        async with self._context.database.transaction() as tx:
            statement = update(Checkout).where(Checkout.sandbox_id == sandbox_id).values(updated_at=utc_now(), **fields)
            await tx.session.execute(statement)


def _list_bases(row: Checkout) -> list[str]:
    """Return the commits of the base branch that the platform has put into the checkout. Those of old versions are not recorded."""
    return list(row.bases) or [row.base_commit]


def _serialize_conflicts(conflicts: Sequence[Conflict]) -> list[ConflictingFile]:
    return [
        {"path": conflict.path, "kind": conflict.kind, "detail": conflict.detail}
        for conflict in conflicts[:MAX_REPORTED_CONFLICTS]
    ]
