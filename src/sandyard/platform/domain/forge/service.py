"""Pull requests: a sandbox's branch, pushed and opened on the forge, then followed until it is merged or closed.

The forge is changed first and the row is written afterwards. A crash in between leaves a pull request without a row. The
next `open` finds it by its branch, so there is never a second one.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakValueDictionary

from sandyard.kit.clock import Clock, get_time
from sandyard.kit.errors import ConflictError, NotFoundError, SandyardError
from sandyard.kit.logging import get_logger
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Project, PullRequest, Session
from sandyard.platform.domain.forge import description, pushed_branch
from sandyard.platform.domain.forge.access import INTERACTIVE_WAIT_S, ForgeAccess
from sandyard.platform.domain.forge.errors import ForgeUnsupportedError
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.model import ForgeKind, MergeMethod, PullDraft, PullState
from sandyard.platform.domain.forge.pushed_branch import MAX_COMMITS, PushedBranch, load_pushed_branch
from sandyard.platform.domain.forge.records import PullRequestReader, PullRequestRecorder
from sandyard.platform.domain.git.branch_merge import BranchMerge
from sandyard.platform.domain.git.service import GitService
from sandyard.platform.domain.paging import Listing, PageRequest
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.projects.service import Projects
from sandyard.platform.domain.repositories.errors import BranchCheckedOutError
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.mirror import Mirrors
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings

log = get_logger(__name__)


class PullRequests:
    """Operations on pull requests. All raise NotFoundError if the caller may not see the pull request or the sandbox.

    Users who see a sandbox and its project may open its pull request. The owner of its session, and users who may change its
    project, may merge and close it.
    """

    def __init__(  # noqa: PLR0917 - its dependencies
        self,
        database: Database,
        git: GitService,
        access: ForgeAccess,
        mirrors: Mirrors,
        projects: Projects,
        settings: PlatformSettings,
        clock: Clock,
    ) -> None:
        self._database = database
        self._git = git
        self._access = access
        self._mirrors = mirrors
        self._projects = projects
        self._settings = settings
        self._clock = clock
        self._reader = PullRequestReader(database)
        self._recorder = PullRequestRecorder(database, clock)
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    # reading -----------------------------------------------------------------------------------------------------------

    async def get(
        self, caller: Principal, project_id: str | None, number: int, *, refresh: bool = False
    ) -> PullRequest:
        """Return a pull request. Raises ConflictError if several projects have this number and `project_id` is None."""
        row = await self._reader.get_by_number(caller, project_id, number)
        return await self.refresh(row) if refresh else row

    async def get_by_id(self, caller: Principal, pull_id: str) -> PullRequest:
        return await self._reader.get_by_id(caller, pull_id)

    async def get_for_task(self, caller: Principal, task_id: str) -> PullRequest:
        """Return the newest pull request of a task. Raises NotFoundError if there is none."""
        return await self._reader.get_newest(caller, PullRequest.task_id == task_id, f"Task {task_id[:60]}")

    async def get_for_session(self, caller: Principal, session_id: str) -> PullRequest:
        """Return the newest pull request of a session. Raises NotFoundError if there is none."""
        return await self._reader.get_newest(caller, PullRequest.session_id == session_id, f"Session {session_id[:60]}")

    async def list(
        self, caller: Principal, page: PageRequest, project_id: str | None = None, state: PullState | None = None
    ) -> Listing[PullRequest]:
        return await self._reader.list_page(caller, page, project_id, state)

    # opening -----------------------------------------------------------------------------------------------------------

    async def open(
        self,
        caller: Principal,
        sandbox_id: str,
        *,
        title: str | None = None,
        body: str | None = None,
        draft: bool | None = None,
        labels: Sequence[str] = (),
        reviewers: Sequence[str] = (),
        assignees: Sequence[str] = (),
        base: str | None = None,
        push: bool = True,
    ) -> tuple[PullRequest, bool]:
        """Push unpushed commits, then open the branch's pull request or update the existing one. Returns True if it was created now.

        Idempotent. On an existing one, only the given fields are changed, and only our part of its body. Without `push`, uses what was
        pushed last, if anything.
        """
        checkout = await self._git.get_checkout(caller, sandbox_id)
        # the prefix distinguishes a branch called #1 from pull request 1
        async with self._get_lock(checkout.project_id, f"refs/heads/{checkout.branch}"):
            await self._require_write(await self._get_project(checkout.project_id))
            if push or checkout.pushed is None:
                operation = await self._git.push(caller, sandbox_id)
                self._git.operations.raise_failure(await self._git.operations.wait(operation.id))
                checkout = await self._git.get_checkout(caller, sandbox_id)
            pushed = await load_pushed_branch(self._database, self._mirrors.get(checkout.project_id), checkout, base)
            given = PullDraft(pushed.checkout.branch, pushed.base, title, body, draft, labels, reviewers, assignees)
            if self._access.get_forge(pushed.project) == ForgeKind.PLAIN:
                return await self._open_plain(pushed, given)
            return await self._open_on_github(pushed, given)

    async def _require_write(self, project: Project) -> None:
        """Check permissions before the push: a branch whose pull request cannot be opened would be left on the remote."""
        if self._access.get_forge(project) == ForgeKind.GITHUB:
            github = await self._access.get_github_repository(project)
            github.require_write(await github.get_permissions())

    async def _open_plain(self, pushed: PushedBranch, given: PullDraft) -> tuple[PullRequest, bool]:
        known = await self._reader.list_by_branch(pushed.project.id, pushed.checkout.branch)
        pull = pushed_branch.make_pushed_pull(
            self._settings,
            pushed.project.id,
            title=pushed.generate_title(given.title),
            base=pushed.base,
            head=pushed.checkout.branch,
            head_commit=pushed.head_commit,
        )
        for row in known:
            if row.state == PullState.MERGED and row.head_commit == pushed.head_commit:
                raise ConflictError(f"{row.head_branch} was already merged and has no new commits.")
        created = not any(row.number is None and row.state != PullState.MERGED for row in known)
        return await self._recorder.record(pushed.get_provenance(ForgeKind.PLAIN), pull, created=created), created

    async def _open_on_github(self, pushed: PushedBranch, given: PullDraft) -> tuple[PullRequest, bool]:
        known = await self._reader.list_by_branch(pushed.project.id, pushed.checkout.branch)
        for row in known:
            if row.state == PullState.MERGED and row.head_commit == pushed.head_commit:
                if row.branch_deleted_at is not None:  # the push has restored it
                    await self._delete_branch(pushed.project, row)
                raise ConflictError(
                    f"Pull request {row.number} has already merged this branch, which has no new commits."
                )
        github = await self._access.get_github_repository(pushed.project)
        existing = await github.find(pushed.checkout.branch, pushed.base)
        recorded = next((row for row in known if existing is not None and row.number == existing.number), None)
        if given.body is None and recorded is not None:
            given = replace(given, body=recorded.told.get("words"))  # keep the text from the first time
        draft = pushed.make_draft(given, existing, recorded=recorded is not None, web_url=self._settings.public_url)
        pull, created = await github.open_or_update(draft)
        row = await self._recorder.record(
            pushed.get_provenance(ForgeKind.GITHUB), pull, created=created, given_body=given.body
        )
        if not created:
            row = await self._refresh_from_github(row, github)
        return row, created

    # following ---------------------------------------------------------------------------------------------------------

    async def refresh(self, row: PullRequest, *, max_wait_s: float = INTERACTIVE_WAIT_S) -> PullRequest:
        """Refresh from the forge and emit events for all changes. With a plain remote, check whether the branch was merged there.

        Calls `delete_merged_branch` if it was merged.
        """
        project = await self._get_project(row.project_id)
        if row.forge != ForgeKind.GITHUB or row.number is None:
            if row.state != PullState.PUSHED or row.head_commit is None:
                return row
            if not await self._git.branch_merges.is_merged(project, row.base_branch, row.head_commit):
                return row
            return await self._record_merge(row)
        return await self._refresh_from_github(
            row, await self._access.get_github_repository(project, max_wait_s=max_wait_s)
        )

    async def _refresh_from_github(self, row: PullRequest, github: GitHubRepository) -> PullRequest:
        assert row.number is not None
        # without the lock, an older response could be applied after a newer one
        async with self._get_lock(row.project_id, f"#{row.number}"):
            pull = await github.check_authors(await github.get_pull(row.number), row.told.get("remarks", ()))
            row = await self._recorder.apply(row.id, pull)
        return await self.delete_merged_branch(row)

    async def delete_merged_branch(self, row: PullRequest) -> PullRequest:
        """Delete the branch of a merged pull request, if the project's settings say so.

        A branch that has moved since, or that another pull request targets, is kept.
        Idempotent; failures are retried by the next poll.
        """
        done = row.branch_deleted_at is not None or row.told.get("branch") == "kept"
        if row.state != PullState.MERGED or done:
            return row
        project = await self._get_project(row.project_id)
        if not ProjectSettings.from_project(project).forge.delete_branch or row.head_branch == project.base_branch:
            return row
        if await self._reader.is_merge_target(row.project_id, row.head_branch):
            return row
        deleted = await self._delete_branch(project, row)
        return row if deleted is None else await self._recorder.record_branch_end(row.id, deleted=deleted)

    async def _delete_branch(self, project: Project, row: PullRequest) -> bool | None:
        """Delete the branch. Returns False if it has moved since the merge and was kept, None if the remote could not be reached."""
        if project.repository is None or row.head_commit is None:
            return None
        mirror = self._mirrors.get(project.id)
        try:
            remote = await self._projects.get_remote(project)
            credential = await self._access.get_credential(project)
            deleted = await mirror.delete_remote_branch(remote, credential, row.head_branch, row.head_commit)
            return deleted or await mirror.get_remote_branch(remote, credential, row.head_branch) is None
        except SandyardError as error:
            log.warning("branch_not_deleted", pull_request=row.id, branch=row.head_branch, reason=error.message)
            return None

    # ending ------------------------------------------------------------------------------------------------------------

    async def merge(
        self,
        caller: Principal,
        pull_id: str,
        method: MergeMethod | None = None,
        *,
        head_commit: str | None = None,
    ) -> PullRequest:
        """Merge `head_commit`, or the head last shown here. The forge rejects it if the branch has moved since.

        Does nothing if it is already merged.
        """
        row, project = await self._get_changeable(caller, pull_id)
        if row.state == PullState.MERGED:
            return await self.delete_merged_branch(row)
        if row.number is None:
            return await self._merge_branch(row, project, method, head_commit or row.head_commit)
        if row.state != PullState.OPEN:
            raise ConflictError(f"Pull request {row.number} is {row.state}. Only an open one can be merged.")
        if row.draft:
            raise ConflictError(f"Pull request {row.number} is a draft. Mark it as ready first.")
        github = await self._access.get_github_repository(project)
        method = method or MergeMethod(ProjectSettings.from_project(project).forge.merge_method)
        title, message = await self._make_squash_message(row) if method == MergeMethod.SQUASH else (None, None)
        head_commit = head_commit or row.head_commit
        await github.merge(row.number, method, head_commit=head_commit, title=title, message=message)
        now = get_time(self._clock)
        pull = await github.get_pull(row.number)
        if pull.state != PullState.MERGED:  # the forge has confirmed it; its reads may lag behind
            pull = replace(pull, state=PullState.MERGED, merged_at=now, closed_at=now, updated_at=None)
        return await self.delete_merged_branch(await self._recorder.apply(row.id, pull))

    async def _merge_branch(
        self, row: PullRequest, project: Project, method: MergeMethod | None, head_commit: str | None
    ) -> PullRequest:
        """Merge a branch of a plain Git remote on this machine, and push the result."""
        if head_commit is None:
            raise ConflictError("Nothing has been pushed to this branch yet.")
        method = method or MergeMethod(ProjectSettings.from_project(project).forge.merge_method)
        title, details = await self._make_squash_message(row)
        if method == MergeMethod.MERGE:
            details = f"Merge branch {row.head_branch} into {row.base_branch}."
        message = f"{title}\n\n{details}" if details else title
        branch_merge = BranchMerge(row.base_branch, row.head_branch, head_commit, method.value, message)
        async with self._get_lock(row.project_id, f"refs/heads/{row.head_branch}"):
            try:
                await self._git.branch_merges.merge(project, branch_merge)
            except BranchCheckedOutError:
                command = shlex.join(["git", "-C", project.repository or ".", "merge", row.head_branch])
                raise BranchCheckedOutError(
                    f"{row.base_branch} is checked out in {project.repository}, and the platform does not change work "
                    f"trees on the host. Merge it there, then refresh the pull request: {command}",
                    command=command,
                ) from None
            return await self._record_merge(row)

    async def _record_merge(self, row: PullRequest) -> PullRequest:
        return await self.delete_merged_branch(
            await self._recorder.apply(row.id, pushed_branch.make_merged_pull(row, get_time(self._clock)))
        )

    async def _make_squash_message(self, row: PullRequest) -> tuple[str, str | None]:
        """Return title and details of the squashed commit's message. Details are None if the mirror does not have the commits."""
        mirror = self._mirrors.get(row.project_id)
        title = row.title if row.number is None else f"{row.title} (#{row.number})"
        base_commit = await mirror.resolve(f"refs/remotes/origin/{row.base_branch}") if mirror.exists else None
        if base_commit is None or row.head_commit is None or not await mirror.has_commit(row.head_commit):
            return title, None
        commits = await read_history(mirror, f"{base_commit}..{row.head_commit}", limit=MAX_COMMITS)
        return title, description.describe_squash(commits)

    async def mark_ready(self, caller: Principal, pull_id: str) -> PullRequest:
        """Mark as ready for review. Idempotent."""
        row, project = await self._get_changeable(caller, pull_id)
        _require_forge(row)
        github = await self._access.get_github_repository(project)
        assert row.number is not None
        if row.draft:
            await github.mark_ready(row.number)
        return await self._refresh_from_github(row, github)

    async def close(self, caller: Principal, pull_id: str) -> PullRequest:
        """Close without merging; its branch is kept. Idempotent."""
        row, project = await self._get_changeable(caller, pull_id)
        if row.state == PullState.MERGED:
            raise ConflictError(f"Pull request {row.number} is already merged and cannot be closed.")
        _require_forge(row)
        github = await self._access.get_github_repository(project)
        assert row.number is not None
        if row.state == PullState.OPEN:
            await github.close(row.number)
        return await self._refresh_from_github(row, github)

    async def _get_changeable(self, caller: Principal, pull_id: str) -> tuple[PullRequest, Project]:
        """Return a pull request that the caller may merge and close, and its project."""
        row = await self._reader.get_by_id(caller, pull_id)
        project = await self._get_project(row.project_id)
        async with self._database.reading() as session:
            work_session = await session.get(Session, row.session_id) if row.session_id is not None else None
        if work_session is None or work_session.owner_id != caller.user_id:
            await self._projects.get_changeable(caller, project.id)
        else:
            await self._projects.get(caller, project.id)  # an owner who has left the project has no access
        return row, project

    async def _get_project(self, project_id: str) -> Project:
        async with self._database.reading() as session:
            project = await session.get(Project, project_id)
        if project is None:
            raise NotFoundError("The project of this pull request no longer exists.")
        return project

    def _get_lock(self, project_id: str, key: str) -> asyncio.Lock:
        lock = self._locks.get((project_id, key))
        if lock is None:
            lock = self._locks[project_id, key] = asyncio.Lock()
        return lock


def _require_forge(row: PullRequest) -> None:
    if row.forge != ForgeKind.GITHUB or row.number is None:
        raise ForgeUnsupportedError(
            "This is a plain Git remote, which has no pull requests. Merge its branches instead."
        )
