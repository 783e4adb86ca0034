"""A branch pushed from a sandbox, with everything needed to describe it, and the pull request for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sandyard.kit.errors import ConflictError, InvalidInputError, NotFoundError
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Checkout, Project, Session, Task
from sandyard.platform.domain.forge import checks, describe
from sandyard.platform.domain.forge.model import ForgeKind, Pull, PullDraft
from sandyard.platform.domain.forge.recording import Provenance
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.repositories.diff import read_diff
from sandyard.platform.domain.repositories.history import read_history
from sandyard.platform.domain.repositories.mirror import Mirror
from sandyard.platform.domain.repositories.model import Commit, Diff

COMMITS = 250
"""Maximum number of commits read for the description."""


@dataclass(frozen=True, slots=True)
class Work:
    checkout: Checkout
    project: Project
    settings: ProjectSettings
    base: str
    head_commit: str
    commits: Sequence[Commit]
    diff: Diff
    origin: describe.Origin
    checks: Sequence[describe.Check]

    def provenance(self, forge: ForgeKind) -> Provenance:
        row = self.checkout
        return Provenance(row.project_id, forge, row.branch, row.sandbox_id, row.session_id, self.origin.task_id)

    def title(self, given: str | None) -> str:
        conventional = self.settings.git.commit_messages == "conventional"
        return describe.title(self.commits, self.origin, given=given, conventional=conventional)

    def draft(self, given: PullDraft, existing: Pull | None, *, recorded: bool, web_url: str | None) -> PullDraft:
        """Return the draft: for a recorded pull request only the given fields, otherwise everything the project wants of a new one.

        A crash may have happened between opening it and setting its labels.
        """
        forge = self.settings.forge
        block = describe.body(
            self.commits, self.diff, self.origin, given=given.body, checks=self.checks, web_url=web_url
        )
        if not recorded:
            given = replace(
                given,
                labels=_both(forge.labels, given.labels),
                reviewers=_both(forge.reviewers, given.reviewers),
                assignees=_both(forge.assignees, given.assignees),
            )
        if existing is None:
            draft = given.draft if given.draft is not None else forge.draft
            return replace(given, title=self.title(given.title), body=block, draft=draft)
        title = self.title(given.title) if given.title is not None else None
        if existing.body is None:
            return replace(given, title=title, body=None)
        return replace(given, title=title, body=describe.refreshed(existing.body, block, ours=recorded))


async def gathered(database: Database, mirror: Mirror, checkout: Checkout, base: str | None) -> Work:
    """Collect the facts of a checkout whose branch is pushed.

    Raises ConflictError if the base already has all its commits, InvalidInputError if the base does not exist.
    """
    async with database.reading() as session:
        project = await session.get(Project, checkout.project_id)
        of = await session.get(Session, checkout.session_id) if checkout.session_id is not None else None
        task = await session.get(Task, of.task_id) if of is not None and of.task_id is not None else None
    if project is None:
        raise NotFoundError("The project of this checkout no longer exists.")
    base, head = base or checkout.base_branch, checkout.pushed or checkout.head
    if base == checkout.branch:
        raise InvalidInputError(f"A branch cannot be merged into itself: {base!r}.")
    onto = await mirror.resolve(f"refs/remotes/origin/{base}")
    if onto is None:
        raise InvalidInputError(f"The repository has no branch {base[:100]!r} to merge into.")
    commits = await read_history(mirror, f"{onto}..{head}", limit=COMMITS)
    if not commits:
        raise ConflictError(
            f"There is nothing to open a pull request for: branch {checkout.branch} has no commits that are not in {base}. "
            "Commit something first."
        )
    fork = await mirror.merge_base(onto, head) or onto
    origin = describe.Origin(
        session_id=checkout.session_id,
        task_id=task.id if task else None,
        task_title=task.title if task else None,
        task_description=task.description if task else None,
    )
    return Work(
        checkout=checkout,
        project=project,
        settings=ProjectSettings.of(project),
        base=base,
        head_commit=head,
        commits=commits,
        diff=await read_diff(mirror, fork, head, patches=False),
        origin=origin,
        checks=await checks.run_in(database, checkout.sandbox_id),
    )


def _both(first: Sequence[str], second: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *second)))
