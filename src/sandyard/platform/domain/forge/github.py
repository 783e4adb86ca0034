"""All operations on one GitHub repository."""

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
"""Maximum number of authors of new remarks whose access is checked per poll."""
_INSIDE = ("OWNER", "MEMBER", "COLLABORATOR")
_READY = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"
_DRAFT = "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"


class GitHubRepository:
    """Operations on a repository. They raise only ForgeError and its subclasses. Each may wait `max_wait_s` for rate limits to reset."""

    def __init__(self, connection: Connection, slug: str, clock: Clock, *, max_wait_s: float) -> None:
        self.slug = slug
        self._connection = connection
        self._clock = clock
        self._calls = Calls(connection, slug, max_wait_s)

    async def permissions(self) -> Permissions:
        repository = await self._calls.get("")
        return reading.permissions(repository, await self._connection.tokens.granted())

    def require_write(self, allowed: Permissions) -> None:
        """Raise ForgeForbiddenError, which says what is missing for a push and a pull request."""
        if allowed.archived:
            raise ForgeForbiddenError(f"The repository {self.slug} is archived and read-only.")
        if not allowed.push:
            raise ForgeForbiddenError(
                f"The credential can read {self.slug} but not push to it. It needs 'Contents: read and write', from an account "
                "with write access to the repository."
            )
        if not allowed.pull_requests:
            raise ForgeForbiddenError(
                f"The credential cannot open pull requests in {self.slug}. It needs 'Pull requests: read and write'."
            )

    async def budget(self) -> Budget | None:
        """Return the rate limit from GitHub's last response, without a request."""
        return self._connection.pace.budget

    async def open_or_update(self, draft: PullDraft) -> tuple[Pull, bool]:
        """Return the open pull request of `draft.head`, created if there is none (True), otherwise updated with the fields of `draft`.

        Idempotent: there is never a second one. Additional changes that failed (a label, a reviewer, a draft) are in its `warnings`. Without
        review, checks and remarks: use `pull` for those.
        """
        self.require_write(await self.permissions())
        found, made = await Opening(self._calls, draft, self._clock).run()
        if found.number is None or draft.draft is None or made or draft.draft == found.draft:
            return found, made
        try:
            await self.set_draft(found.number, draft.draft)
        except ForgeError as error:
            wish = "a draft" if draft.draft else "ready for review"
            warning = f"The pull request could not be marked as {wish}. {error.message}"
            return replace(found, warnings=(*found.warnings, warning)), made
        return replace(found, draft=draft.draft), made

    async def find(self, head: str, base: str | None = None) -> Pull | None:
        """Return the branch's open pull request, preferably against `base`, without review, checks and remarks."""
        found = preferred(await open_ones(self._calls, head), base)
        return None if found is None else reading.pull(found, self._calls.web_url)

    async def pull(self, number: int) -> Pull:
        """Return a pull request with its review, checks, and all remarks in order."""
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
        """Return `pull` with `may_write` set for each remark that is not in `told` (`kind:id`).

        Authors associated with the repository are checked first; beyond AUTHORS, the others count as having no access.
        """
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
        """Return whether this account may write to the repository, as the forge reports now.

        Bots have no access by default, because an App is not a collaborator. False if the project's credential may not ask.
        """
        try:
            said = await self._calls.get(f"/collaborators/{quote(login, safe='')}/permission")
        except (ForgeNotFoundError, ForgeForbiddenError, ForgeInvalidError, ForgeRefusedError):
            return False
        return said.get("permission") in ("admin", "maintain", "write")

    async def issues(self, label: str) -> list[reading.Json]:
        """Return the open issues with this label as reported by GitHub, including pull requests."""
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
        """Merge a pull request and return the resulting commit. Idempotent.

        Raises ForgeRefusedError with GitHub's reason, also if its branch is no longer at `head_commit`.
        """
        body = {"merge_method": method.value, "sha": head_commit, "commit_title": title, "commit_message": message}
        given = {name: value for name, value in body.items() if value is not None}
        for attempt in range(TRIES):
            try:
                said = await self._calls.change("PUT", f"/pulls/{number}/merge", given, repeat=False)
                return reading.text(said.get("sha"), 64)
            except (ForgeUnreachableError, ForgeRefusedError) as error:
                # the connection may have broken after the merge, and "not mergeable" is also reported for a merged one
                now = await self._calls.get(f"/pulls/{number}")
                if reading.pull(now, self._calls.web_url).state is PullState.MERGED:
                    return reading.text(now.get("merge_commit_sha"), 64)
                passing = (
                    isinstance(error, ForgeUnreachableError) or "base branch was modified" in error.message.lower()
                )
                if not passing or attempt == TRIES - 1:
                    raise
            await self._clock.sleep(2.0**attempt)
        raise ForgeUnreachableError  # the last attempt has raised its error

    async def ready(self, number: int) -> None:
        await self.set_draft(number, False)

    async def set_draft(self, number: int, draft: bool) -> None:
        """Set or clear the draft state. Idempotent. GitHub supports this only in its GraphQL API.

        Raises ForgeUnsupportedError if a server does not have it.
        """
        said = await self._calls.get(f"/pulls/{number}")
        if (said.get("draft") is True) == draft:
            return
        try:
            answer = await self._calls.graphql(_DRAFT if draft else _READY, {"id": said.get("node_id")})
        except (ForgeNotFoundError, ForgeRefusedError):
            raise ForgeUnsupportedError(
                "This server has no GraphQL API, which is needed to change the draft state of a pull request. Change it on "
                "the pull request's page."
            ) from None
        kind, words = graphql_words(answer)
        if kind in ("RATE_LIMIT", "RATE_LIMITED"):
            raise ForgeRateLimitedError(f"GitHub is rate-limiting GraphQL requests: {words}.")
        if kind in ("FORBIDDEN", "INSUFFICIENT_SCOPES"):
            raise ForgeForbiddenError(
                f"The credential may not change the draft state of a pull request: {words}. It needs 'Pull requests: read and "
                "write' and 'Contents: read and write'."
            )
        if kind:
            raise ForgeRefusedError(f"GitHub rejected the request: {words}.")

    async def close(self, number: int) -> None:
        """Close a pull request without merging. Idempotent; a merged one is left alone."""
        said = await self._calls.get(f"/pulls/{number}")
        if reading.pull(said, self._calls.web_url).state is PullState.OPEN:
            await self._calls.change("PATCH", f"/pulls/{number}", {"state": "closed"})

    async def _checks(self, commit: str) -> tuple[list[CheckRun], list[Remark], list[str]]:
        """Return check runs and commit statuses. Personal tokens often cannot see check runs; then the runs of GitHub Actions are used."""
        warnings: list[str] = []
        found = []
        try:
            found += reading.check_runs(await self._calls.every(f"/commits/{commit}/check-runs", "check_runs"))
        except ForgeInvalidError:
            pass  # the commit does not exist any more
        except (ForgeForbiddenError, ForgeNotFoundError):
            try:
                runs = await self._calls.every("/actions/runs", "workflow_runs", head_sha=commit)
                found += reading.workflow_runs(runs, self.slug)
            except (ForgeForbiddenError, ForgeNotFoundError):
                warnings.append("The credential cannot see checks. It needs 'Checks: read' or 'Actions: read'.")
        try:
            # the newest of each context, which is the one that counts
            found += reading.statuses(await self._calls.every(f"/commits/{commit}/status", "statuses"))
        except ForgeForbiddenError:
            warnings.append("The credential cannot see commit statuses. It needs 'Commit statuses: read'.")
        except (ForgeNotFoundError, ForgeInvalidError):
            pass  # a server without them, or without the commit
        return [run for run, _ in found], [remark for _, remark in found if remark is not None], warnings
