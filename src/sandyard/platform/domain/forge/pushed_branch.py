"""A branch pushed from a sandbox, with everything needed to describe it, and the pull request for it.

A plain Git remote has no pull requests: the work ends at the pushed branch, which can be compared and merged here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Checkout, Project, PullRequest, Session, Task
from sandyard.platform.domain.forge import description
from sandyard.platform.domain.forge.model import ForgeKind, Pull, PullDraft, PullState
from sandyard.platform.domain.forge.records import Provenance
from sandyard.platform.domain.git.context import make_compare_url
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Commit, Diff
from sandyard.platform.settings import PlatformSettings

MAX_COMMITS = 250
"""Maximum number of commits read for the description."""


@dataclass(frozen=True, slots=True)
class PushedBranch:
    """A pushed branch and the facts that its pull request describes. `base` is the branch to merge into."""

    checkout: Checkout
    project: Project
    settings: ProjectSettings
    base: str
    head_commit: str
    commits: Sequence[Commit]
    diff: Diff
    origin: description.Origin
    checks: Sequence[description.Check]

    def get_provenance(self, forge: ForgeKind) -> Provenance:
        row = self.checkout
        return Provenance(row.project_id, forge, row.branch, row.sandbox_id, row.session_id, self.origin.task_id)

    def generate_title(self, given: str | None) -> str:
        conventional = self.settings.git.commit_messages == "conventional"
        return description.generate_title(self.commits, self.origin, given=given, conventional=conventional)

    def make_draft(self, given: PullDraft, existing: Pull | None, *, recorded: bool, web_url: str | None) -> PullDraft:
        """Return the fields to write to the forge. `recorded`: the pull request has a row, so only the given fields are changed.

        Otherwise the project's defaults are added, even if it exists: a crash may have followed before its labels were set.
        """
        forge = self.settings.forge
        block = description.generate_body(
            self.commits, self.diff, self.origin, given=given.body, checks=self.checks, web_url=web_url
        )
        if not recorded:
            given = replace(
                given,
                labels=_merge_names(forge.labels, given.labels),
                reviewers=_merge_names(forge.reviewers, given.reviewers),
                assignees=_merge_names(forge.assignees, given.assignees),
            )
        if existing is None:
            draft = given.draft if given.draft is not None else forge.draft
            return replace(given, title=self.generate_title(given.title), body=block, draft=draft)
        title = self.generate_title(given.title) if given.title is not None else None
        if existing.body is None:
            return replace(given, title=title, body=None)
        return replace(given, title=title, body=description.refresh_body(existing.body, block, ours=recorded))


async def load_pushed_branch(database: Database, mirror: Mirror, checkout: Checkout, base: str | None) -> PushedBranch:
    """Collect the facts about a checkout whose branch is pushed.

    Raises ConflictError if the base already has all its commits, InvalidInputError if the base does not exist.
    """
    async with database.reading() as session:
        project = await session.get(Project, checkout.project_id)
        work_session = await session.get(Session, checkout.session_id) if checkout.session_id is not None else None
        task = (
            await session.get(Task, work_session.task_id) if work_session and work_session.task_id is not None else None
        )
    if project is None:
        raise NotFoundError("The project of this checkout no longer exists.")
    base, head = base or checkout.base_branch, checkout.pushed or checkout.head
    if base == checkout.branch:
        raise InvalidInputError(f"A branch cannot be merged into itself: {base!r}.")
    base_commit = await mirror.resolve(f"refs/remotes/origin/{base}")
    if base_commit is None:
        raise InvalidInputError(f"The repository has no branch {base[:100]!r} to merge into.")
    commits = await read_history(mirror, f"{base_commit}..{head}", limit=MAX_COMMITS)
    if not commits:
        raise ConflictError(
            f"There is nothing to open a pull request for: branch {checkout.branch} has no commits that are not in {base}. "
            "Commit something first."
        )
    fork_point = await mirror.find_merge_base(base_commit, head) or base_commit
    origin = description.Origin(
        session_id=checkout.session_id,
        task_id=task.id if task else None,
        task_title=task.title if task else None,
        task_description=task.description if task else None,
    )
    return PushedBranch(
        checkout=checkout,
        project=project,
        settings=ProjectSettings.from_project(project),
        base=base,
        head_commit=head,
        commits=commits,
        diff=await read_diff(mirror, fork_point, head, patches=False),
        origin=origin,
        checks=await description.list_checks(database, checkout.sandbox_id),
    )


def _merge_names(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def make_pushed_pull(
    settings: PlatformSettings, project_id: str, *, title: str, base: str, head: str, head_commit: str
) -> Pull:
    """Return the state of a branch that was pushed to a plain Git remote, in the form of a pull request."""
    return Pull(
        number=None,
        url=make_compare_url(settings, project_id, base, head),
        title=title,
        state=PullState.PUSHED,
        draft=False,
        head=head,
        base=base,
        head_commit=head_commit,
    )


def make_merged_pull(row: PullRequest, now: datetime) -> Pull:
    """Return the state of such a branch after it was merged into its base."""
    return Pull(
        number=None,
        url=row.url,
        title=row.title,
        state=PullState.MERGED,
        draft=False,
        head=row.head_branch,
        base=row.base_branch,
        head_commit=row.head_commit or "",
        merged_at=now,
        closed_at=now,
    )
