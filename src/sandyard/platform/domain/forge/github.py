"""Every call the platform makes of GitHub for one repository."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from urllib.parse import quote

from sandyard.kit.clock import Clock
from sandyard.platform.domain.forge import github_reading as reading
from sandyard.platform.domain.forge.connection import TRIES, Connection
from sandyard.platform.domain.forge.errors import (
    ForgeError,
    ForgeForbiddenError,
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeRateLimitedError,
    ForgeRefusedError,
    ForgeUnreachableError,
    ForgeUnsupportedError,
)
from sandyard.platform.domain.forge.github_calls import Calls
from sandyard.platform.domain.forge.github_opening import Opening, open_ones, preferred
from sandyard.platform.domain.forge.model import (
    Budget,
    CheckRun,
    MergeMethod,
    Permissions,
    Pull,
    PullDraft,
    PullState,
    Remark,
)
from sandyard.platform.domain.forge.refusals import graphql_words

AUTHORS = 20
"""Of remarks that are new in one look, whose access the forge is asked for."""
_INSIDE = ("OWNER", "MEMBER", "COLLABORATOR")
_READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"
_DRAFT = "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"


class GitHubRepository:
    """ForgeError and its kinds are all that its verbs raise. Each may wait up to `max_wait_s` for GitHub's limits to reset."""

    def __init__(self, connection: Connection, slug: str, clock: Clock, *, max_wait_s: float) -> None:
        self.slug = slug
        self._connection = connection
        self._clock = clock
        self._calls = Calls(connection, slug, max_wait_s)

    async def permissions(self) -> Permissions:
        repository = await self._calls.get("")
        return reading.permissions(repository, await self._connection.tokens.granted())

    def require_write(self, allowed: Permissions) -> None:
        """ForgeForbiddenError with what is missing for a push and a pull request."""
        if allowed.archived:
            raise ForgeForbiddenError(f"The repository {self.slug} is archived: nothing in it can be changed.")
        if not allowed.push:
            raise ForgeForbiddenError(
                f"The credential may read {self.slug}, and not push to it. It needs 'Contents: read and write', of "
                "somebody who may write to the repository."
            )
        if not allowed.pull_requests:
            raise ForgeForbiddenError(
                f"The credential may not open pull requests in {self.slug}. It needs 'Pull requests: read and write'."
            )

    async def budget(self) -> Budget | None:
        """As GitHub's last answer said; nothing is asked."""
        return self._connection.pace.budget

    async def open_or_update(self, draft: PullDraft) -> tuple[Pull, bool]:
        """The open pull request of `draft.head`, made if there is none (True), else brought up to date in what `draft` gives: there is
        never a second one. Idempotent. What could not be done beside (a label, a reviewer, a draft) is in its `warnings`. It comes
        without review, checks and remarks: `pull` has those."""
        self.require_write(await self.permissions())
        found, made = await Opening(self._calls, draft, self._clock).run()
        if found.number is None or draft.draft is None or made or draft.draft == found.draft:
            return found, made
        try:
            await self.set_draft(found.number, draft.draft)
        except ForgeError as error:
            wish = "a draft" if draft.draft else "ready for review"
            warning = f"The pull request could not be made {wish}. {error.message}"
            return replace(found, warnings=(*found.warnings, warning)), made
        return replace(found, draft=draft.draft), made

    async def find(self, head: str, base: str | None = None) -> Pull | None:
        """The open one of this branch, rather one against `base`; without review, checks and remarks."""
        found = preferred(await open_ones(self._calls, head), base)
        return None if found is None else reading.pull(found, self._calls.web_url)

    async def pull(self, number: int) -> Pull:
        """With its review, its checks, and every remark in the order they were made."""
        said = await self._calls.get(f"/pulls/{number}")
        found = reading.pull(said, self._calls.web_url)
        reviews = await self._calls.every(f"/pulls/{number}/reviews")
        remarks = [
            *reading.review_remarks(reviews),
            *reading.comment_remarks(await self._calls.every(f"/issues/{number}/comments")),
            *reading.line_remarks(await self._calls.every(f"/pulls/{number}/comments")),
        ]
        runs, failures, warnings = await self._checks(found.head_commit) if found.head_commit else ([], [], [])
        return replace(
            found,
            review=reading.verdict(reviews),
            checks=reading.outcome(runs),
            runs=tuple(runs),
            remarks=tuple(sorted([*remarks, *failures], key=lambda remark: remark.at)),
            warnings=tuple(warnings),
        )

    async def with_authors(self, pull: Pull, told: Collection[str]) -> Pull:
        """`pull`, where each remark that is not in `told` (`kind:id`) says whether its author may write to the repository. Authors that
        the forge counts to the repository are asked for first; of more than AUTHORS, the others are taken to have no access."""
        new = [one for one in pull.remarks if one.kind != "check" and f"{one.kind}:{one.id}" not in told]
        new.sort(key=lambda one: one.association not in _INSIDE)
        authors = list(dict.fromkeys(one.author for one in new))[:AUTHORS]
        writers = {author for author in authors if await self.may_write(author)}
        asked = {(one.kind, one.id) for one in new}
        remarks = (
            replace(one, may_write=one.author in writers) if (one.kind, one.id) in asked else one
            for one in pull.remarks
        )
        return replace(pull, remarks=tuple(remarks))

    async def may_write(self, login: str) -> bool:
        """Whether this account may write to the repository, as the forge says now. Nobody has access by being a bot: an App is no
        collaborator. False where the project's credential may not ask."""
        try:
            said = await self._calls.get(f"/collaborators/{quote(login, safe='')}/permission")
        except (ForgeNotFoundError, ForgeForbiddenError, ForgeInvalidError, ForgeRefusedError):
            return False
        return said.get("permission") in ("admin", "maintain", "write")

    async def issues(self, label: str) -> list[reading.Json]:
        """The open ones with this label, as GitHub says them; pull requests are among them."""
        return await self._calls.every("/issues", labels=label, state="open")

    async def merge(
        self,
        number: int,
        method: MergeMethod,
        *,
        head_commit: str | None = None,
        title: str | None = None,
        message: str | None = None,
    ) -> str:
        """The commit it became. Idempotent: of one that is merged already, the commit it became then. ForgeRefusedError with GitHub's
        reason, also when its branch is not at `head_commit` any more."""
        body = {"merge_method": method.value, "sha": head_commit, "commit_title": title, "commit_message": message}
        given = {name: value for name, value in body.items() if value is not None}
        for attempt in range(TRIES):
            try:
                said = await self._calls.change("PUT", f"/pulls/{number}/merge", given, repeat=False)
                return reading.text(said.get("sha"), 64)
            except (ForgeUnreachableError, ForgeRefusedError) as error:
                # the line may have been cut after it was merged, and "not mergeable" is also said of one that is merged
                now = await self._calls.get(f"/pulls/{number}")
                if reading.pull(now, self._calls.web_url).state is PullState.MERGED:
                    return reading.text(now.get("merge_commit_sha"), 64)
                passing = (
                    isinstance(error, ForgeUnreachableError) or "base branch was modified" in error.message.lower()
                )
                if not passing or attempt == TRIES - 1:
                    raise
            await self._clock.sleep(2.0**attempt)
        raise ForgeUnreachableError  # the last attempt has raised what it met

    async def ready(self, number: int) -> None:
        await self.set_draft(number, False)

    async def set_draft(self, number: int, draft: bool) -> None:
        """Idempotent. GitHub has this in its GraphQL API only; ForgeUnsupportedError where a server has none."""
        said = await self._calls.get(f"/pulls/{number}")
        if (said.get("draft") is True) == draft:
            return
        try:
            answer = await self._calls.graphql(_DRAFT if draft else _READY, {"id": said.get("node_id")})
        except (ForgeNotFoundError, ForgeRefusedError):
            raise ForgeUnsupportedError(
                "This server has no GraphQL API, which is the only way to change whether a pull request is a draft. Do it on its page."
            ) from None
        kind, words = graphql_words(answer)
        if kind in ("RATE_LIMIT", "RATE_LIMITED"):
            raise ForgeRateLimitedError(f"GitHub takes no more GraphQL requests for now: {words}.")
        if kind in ("FORBIDDEN", "INSUFFICIENT_SCOPES"):
            raise ForgeForbiddenError(
                f"The credential may not change whether a pull request is a draft: {words}. It needs "
                "'Pull requests: read and write' and 'Contents: read and write'."
            )
        if kind:
            raise ForgeRefusedError(f"GitHub refuses: {words}.")

    async def close(self, number: int) -> None:
        """Without merging it. Idempotent; a merged one stays as it is."""
        said = await self._calls.get(f"/pulls/{number}")
        if reading.pull(said, self._calls.web_url).state is PullState.OPEN:
            await self._calls.change("PATCH", f"/pulls/{number}", {"state": "closed"})

    async def _checks(self, commit: str) -> tuple[list[CheckRun], list[Remark], list[str]]:
        """Check runs and commit statuses together. A token made by a person may often not see check runs: then the runs of GitHub
        Actions stand for them."""
        warnings: list[str] = []
        found = []
        try:
            found += reading.check_runs(await self._calls.every(f"/commits/{commit}/check-runs", "check_runs"))
        except ForgeInvalidError:
            pass  # the commit is gone
        except (ForgeForbiddenError, ForgeNotFoundError):
            try:
                runs = await self._calls.every("/actions/runs", "workflow_runs", head_sha=commit)
                found += reading.workflow_runs(runs, self.slug)
            except (ForgeForbiddenError, ForgeNotFoundError):
                warnings.append("The credential may not see checks. It needs 'Checks: read' or 'Actions: read'.")
        try:
            # the newest of each context, which is what counts
            found += reading.statuses(await self._calls.every(f"/commits/{commit}/status", "statuses"))
        except ForgeForbiddenError:
            warnings.append("The credential may not see commit statuses. It needs 'Commit statuses: read'.")
        except (ForgeNotFoundError, ForgeInvalidError):
            pass  # a server without them, or one that has lost the commit
        return [run for run, _ in found], [remark for _, remark in found if remark is not None], warnings
