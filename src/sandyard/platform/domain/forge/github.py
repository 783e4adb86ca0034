"""Operations on one GitHub repository."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import quote

from sandyard.kit.clock import Clock
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
from sandyard.platform.domain.forge.github_connection import MAX_ATTEMPTS, GitHubConnection
from sandyard.platform.domain.forge.github_errors import extract_graphql_error
from sandyard.platform.domain.forge.github_responses import (
    JsonObject,
    as_number,
    as_object,
    as_objects,
    as_text,
    get_login,
    get_number,
    parse_check_runs,
    parse_comment_remarks,
    parse_line_remarks,
    parse_permissions,
    parse_pull,
    parse_review_remarks,
    parse_statuses,
    parse_workflow_runs,
    summarize_checks,
    summarize_reviews,
)
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

_PAGE_SIZE, _MAX_PAGES = 100, 10
_MAX_LIST_BYTES = 32 << 20
"""A page of a hundred pull requests with long descriptions has 3 MB."""
MAX_AUTHORS = 20
"""Maximum number of authors of new remarks whose access is checked per poll."""
_ASSOCIATED = ("OWNER", "MEMBER", "COLLABORATOR")
_MARK_READY = (
    "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"
)
_CONVERT_TO_DRAFT = (
    "mutation($id: ID!) { convertPullRequestToDraft(input: {pullRequestId: $id}) { pullRequest { isDraft } } }"
)


class RepositoryRequests:
    """Requests of one repository. Raises only ForgeError and its subclasses. `max_wait_s`: how long to wait for rate limits."""

    def __init__(self, connection: GitHubConnection, slug: str, max_wait_s: float) -> None:
        self.connection = connection
        self.owner, _, self.name = slug.partition("/")
        self.web_url = f"{connection.web_url}/{quote(slug)}"
        """The URL of the repository's page."""
        self._root = f"/repos/{quote(self.owner, safe='')}/{quote(self.name, safe='')}"
        self._max_wait_s = max_wait_s

    async def get_object(self, path: str) -> JsonObject:
        response = await self.connection.request("GET", self._root + path, max_wait_s=self._max_wait_s)
        return self._require_object(response.json)

    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, *, repeat: bool | None = None
    ) -> Any:
        """Send a request and return the JSON of its response."""
        path = self._root + path
        return (await self.connection.request(method, path, body=body, max_wait_s=self._max_wait_s, repeat=repeat)).json

    async def change(
        self, method: str, path: str, body: Mapping[str, Any], *, repeat: bool | None = None
    ) -> JsonObject:
        """Send a change whose response is the changed object."""
        return self._require_object(await self.send(method, path, body, repeat=repeat))

    async def list_all(self, path: str, key: str | None = None, **params: str) -> list[JsonObject]:
        """Return the items of a list (in the member `key` of its responses), oldest first like GitHub.

        For a very long list: the first page and the last ones, because recent items are at the end.
        """
        found: list[JsonObject] = []
        page: int | None = 1
        read, size = 0, 0
        while page is not None and read < _MAX_PAGES:
            query = {**params, "per_page": str(_PAGE_SIZE), "page": str(page)}
            response = await self.connection.request(
                "GET", self._root + path, params=query, max_wait_s=self._max_wait_s
            )
            found += as_objects(response.json if key is None else as_object(response.json).get(key))
            read += 1
            size += response.size
            if size > _MAX_LIST_BYTES:
                raise ForgeUnreachableError(
                    "The forge's list is larger than any list of GitHub. Check that the project's forge.apiUrl is correct."
                )
            page = response.next
            if read == 1 and response.last is not None and response.last > _MAX_PAGES:
                page = response.last - _MAX_PAGES + 2
        return found

    async def query_graphql(self, query: str, variables: Mapping[str, Any]) -> JsonObject:
        return as_object((await self.connection.query_graphql(query, variables, max_wait_s=self._max_wait_s)).json)

    @staticmethod
    def _require_object(value: Any) -> JsonObject:
        if not isinstance(value, dict):
            raise ForgeUnreachableError("The forge did not respond like GitHub. Check that forge.apiUrl is correct.")
        return value


async def list_open_pulls(requests: RepositoryRequests, head: str) -> list[JsonObject]:
    """Return the open pull requests of a branch of this repository. The server's filter is checked again."""
    items = await requests.list_all("/pulls", state="open", head=f"{requests.owner}:{head}")
    return [item for item in items if as_number(item.get("number")) is not None and _is_of_branch(item, requests, head)]


def _is_of_branch(pull: JsonObject, requests: RepositoryRequests, head: str) -> bool:
    source = as_object(pull.get("head"))
    owner = (
        as_text(as_object(source.get("user")).get("login"), 200) or as_text(source.get("label"), 500).partition(":")[0]
    )
    return source.get("ref") == head and owner.lower() in ("", requests.owner.lower())


def choose_pull(found: Sequence[JsonObject], base: str | None) -> JsonObject | None:
    """Return the one against `base`, or else the oldest: a branch has one pull request, even if its base was changed."""
    against = [item for item in found if as_object(item.get("base")).get("ref") == base]
    return min(against or found, key=get_number, default=None)


class PullRequestOpener:
    """Opens a pull request exactly once, despite failures on the way. One instance per call of `open_or_update`."""

    def __init__(self, requests: RepositoryRequests, draft: PullDraft, clock: Clock) -> None:
        self._requests = requests
        self._draft = draft
        self._clock = clock
        self.warnings: list[str] = []

    async def run(self) -> tuple[Pull, bool]:
        """Open or update. Idempotent: safe to retry after any failure. Returns True if it was created now."""
        found = choose_pull(await list_open_pulls(self._requests, self._draft.head), self._draft.base)
        created = found is None
        if found is None:
            found, created = await self._create()
        number = get_number(found)
        if not created:
            found = {**await self._update(found), "number": number}
        base = as_text(as_object(found.get("base")).get("ref"), 250)
        if base != self._draft.base:
            self._warn(f"Pull request {number} is against {base}, not {self._draft.base}. Its base was not changed.")
        labels = await self._add_labels(found)
        await self._add_assignees(found)
        await self._add_reviewers(found, new=created)
        return replace(
            parse_pull({**found, "labels": labels}, self._requests.web_url), warnings=tuple(self.warnings)
        ), created

    async def _create(self) -> tuple[JsonObject, bool]:
        draft = self._draft
        body = {
            "title": draft.title or draft.head,
            "head": draft.head,
            "base": draft.base,
            "body": draft.body or "",
            "draft": bool(draft.draft),
        }
        for attempt in range(MAX_ATTEMPTS):
            try:
                return await self._requests.change("POST", "/pulls", body, repeat=False), True
            except ForgeInvalidError as error:
                message = error.message.lower()
                if "already exists" in message and (found := await self._find_existing()) is not None:
                    return found, False
                if "draft" not in message or not body["draft"]:
                    raise self._explain(error) from None
                body["draft"] = False
                self._warn(
                    "This repository does not support draft pull requests, so it was opened as ready for review."
                )
            except ForgeUnreachableError:
                # it may have arrived before the connection broke: check before creating it again
                if (found := await self._find_existing()) is not None:
                    return found, True
                if attempt == MAX_ATTEMPTS - 1:
                    raise
                await self._clock.sleep(2.0**attempt)
        raise ForgeUnreachableError  # the last attempt has raised its error

    async def _find_existing(self) -> JsonObject | None:
        return choose_pull(await list_open_pulls(self._requests, self._draft.head), self._draft.base)

    def _explain(self, error: ForgeInvalidError) -> ForgeInvalidError:
        message = error.message.lower()
        for field, branch in (("head", self._draft.head), ("base", self._draft.base)):
            if f"{field} invalid" in message or f"{field} missing" in message:
                return ForgeInvalidError(
                    f"{error.message} The branch {branch} does not exist in {self._requests.owner}/{self._requests.name}."
                )
        return error

    async def _update(self, found: JsonObject) -> JsonObject:
        changes: dict[str, Any] = {}
        if self._draft.title is not None and self._draft.title != found.get("title"):
            changes["title"] = self._draft.title
        if self._draft.body is not None and _normalize_lines(self._draft.body) != _normalize_lines(
            as_text(found.get("body"), 1 << 20)
        ):
            changes["body"] = self._draft.body
        return await self._requests.change("PATCH", f"/pulls/{found['number']}", changes) if changes else found

    async def _add_labels(self, found: JsonObject) -> list[JsonObject]:
        """Add missing labels. GitHub creates labels that the repository does not have."""
        present = as_objects(found.get("labels"))
        has = {as_text(label.get("name")).lower() for label in present}
        missing = [label for label in self._draft.labels if label.lower() not in has]
        if missing:
            try:
                return as_objects(
                    await self._requests.send(
                        "POST", f"/issues/{found['number']}/labels", {"labels": missing}, repeat=True
                    )
                )
            except ForgeError as error:
                self._warn(f"Could not set the labels {', '.join(missing)}. {error.message}")
        return present

    async def _add_assignees(self, found: JsonObject) -> None:
        has = {get_login(person).lower() for person in as_objects(found.get("assignees"))}
        missing = [name for name in self._draft.assignees if name.lower() not in has]
        if not missing:
            return
        try:
            assigned_issue = await self._requests.send(
                "POST", f"/issues/{found['number']}/assignees", {"assignees": missing}, repeat=True
            )
        except ForgeError as error:
            self._warn(f"Could not assign {', '.join(missing)}. {error.message}")
            return
        assigned = {get_login(person).lower() for person in as_objects(as_object(assigned_issue).get("assignees"))}
        refused = [name for name in missing if name.lower() not in assigned]
        if refused:  # GitHub silently leaves out unknown users
            self._warn(
                f"Could not assign {', '.join(refused)}: only people with read access to the repository can be assigned."
            )

    async def _add_reviewers(self, found: JsonObject, *, new: bool) -> None:
        """Request reviews from people who were not asked yet. `organisation/team` requests a team."""
        requested = {get_login(person).lower() for person in as_objects(found.get("requested_reviewers"))}
        requested |= {as_text(team.get("slug"), 200).lower() for team in as_objects(found.get("requested_teams"))}
        missing = [name for name in self._draft.reviewers if name.rpartition("/")[2].lower() not in requested]
        if missing and not new:
            reviews = await self._requests.list_all(f"/pulls/{found['number']}/reviews")
            reviewers = {get_login(review.get("user")).lower() for review in reviews}
            missing = [name for name in missing if name.lower() not in reviewers]
        if not missing or not await self._request_reviews(found, missing, warn=len(missing) == 1):
            return
        for name in missing if len(missing) > 1 else ():  # one invalid reviewer makes GitHub reject all of them
            await self._request_reviews(found, [name], warn=True)

    async def _request_reviews(self, found: JsonObject, names: Sequence[str], *, warn: bool) -> bool:
        """Request reviews. Returns True if GitHub rejects one of them, which is added to the warnings if `warn`."""
        body = {
            "reviewers": [name for name in names if "/" not in name],
            "team_reviewers": [name.rpartition("/")[2] for name in names if "/" in name],
        }
        try:
            await self._requests.send("POST", f"/pulls/{found['number']}/requested_reviewers", body, repeat=True)
        except ForgeInvalidError as error:
            if warn:
                self._warn(f"Could not request a review from {names[0]}. {error.message}")
            return True
        except ForgeError as error:
            self._warn(f"Could not request a review from {', '.join(names)}. {error.message}")
        return False

    def _warn(self, warning: str) -> None:
        self.warnings.append(warning)


def _normalize_lines(body: str) -> str:
    return body.replace("\r\n", "\n").strip()  # GitHub stores the line breaks of browsers


class GitHubRepository:
    """Operations on a repository. They raise only ForgeError and its subclasses. Each may wait `max_wait_s` for rate limits to reset."""

    def __init__(self, connection: GitHubConnection, slug: str, clock: Clock, *, max_wait_s: float) -> None:
        self.slug = slug
        self._connection = connection
        self._clock = clock
        self._requests = RepositoryRequests(connection, slug, max_wait_s)

    async def get_permissions(self) -> Permissions:
        repository = await self._requests.get_object("")
        return parse_permissions(repository, await self._connection.tokens.get_permissions())

    def require_write(self, permissions: Permissions) -> None:
        """Raise ForgeForbiddenError, which says what is missing for a push and a pull request."""
        if permissions.archived:
            raise ForgeForbiddenError(f"The repository {self.slug} is archived and read-only.")
        if not permissions.push:
            raise ForgeForbiddenError(
                f"The credential can read {self.slug} but not push to it. It needs 'Contents: read and write', from an account "
                "with write access to the repository."
            )
        if not permissions.pull_requests:
            raise ForgeForbiddenError(
                f"The credential cannot open pull requests in {self.slug}. It needs 'Pull requests: read and write'."
            )

    async def get_budget(self) -> Budget | None:
        """Return the rate limit from GitHub's last response, without a request."""
        return self._connection.rate_limit.budget

    async def open_or_update(self, draft: PullDraft) -> tuple[Pull, bool]:
        """Return the open pull request of `draft.head`, created if there is none (True), otherwise updated with the fields of `draft`.

        Idempotent: there is never a second one. Additional changes that failed (a label, a reviewer, a draft) are in its `warnings`. Without
        review, checks and remarks: use `get_pull` for those.
        """
        self.require_write(await self.get_permissions())
        found, created = await PullRequestOpener(self._requests, draft, self._clock).run()
        if found.number is None or draft.draft is None or created or draft.draft == found.draft:
            return found, created
        try:
            await self.set_draft(found.number, draft.draft)
        except ForgeError as error:
            state = "a draft" if draft.draft else "ready for review"
            warning = f"The pull request could not be marked as {state}. {error.message}"
            return replace(found, warnings=(*found.warnings, warning)), created
        return replace(found, draft=draft.draft), created

    async def find(self, head: str, base: str | None = None) -> Pull | None:
        """Return the branch's open pull request, preferably against `base`, without review, checks and remarks."""
        found = choose_pull(await list_open_pulls(self._requests, head), base)
        return None if found is None else parse_pull(found, self._requests.web_url)

    async def get_pull(self, number: int) -> Pull:
        """Return a pull request with its review, checks, and all remarks in order."""
        found = parse_pull(await self._requests.get_object(f"/pulls/{number}"), self._requests.web_url)
        reviews = await self._requests.list_all(f"/pulls/{number}/reviews")
        remarks = [
            *parse_review_remarks(reviews),
            *parse_comment_remarks(await self._requests.list_all(f"/issues/{number}/comments")),
            *parse_line_remarks(await self._requests.list_all(f"/pulls/{number}/comments")),
        ]
        runs, failures, warnings = await self._list_checks(found.head_commit) if found.head_commit else ([], [], [])
        return replace(
            found,
            review=summarize_reviews(reviews),
            checks=summarize_checks(runs),
            runs=tuple(runs),
            remarks=tuple(sorted([*remarks, *failures], key=lambda remark: remark.at)),
            warnings=tuple(warnings),
        )

    async def check_authors(self, pull: Pull, known: Collection[str]) -> Pull:
        """Return `pull` with `may_write` set for each remark that is not in `known` (`kind:id`).

        Authors associated with the repository are checked first; beyond MAX_AUTHORS, the others count as having no access.
        """
        new = [
            remark for remark in pull.remarks if remark.kind != "check" and f"{remark.kind}:{remark.id}" not in known
        ]
        new.sort(key=lambda remark: remark.association not in _ASSOCIATED)
        authors = list(dict.fromkeys(remark.author for remark in new))[:MAX_AUTHORS]
        writers = {author for author in authors if await self.can_write(author)}
        new_keys = {(remark.kind, remark.id) for remark in new}
        remarks = (
            replace(remark, may_write=remark.author in writers) if (remark.kind, remark.id) in new_keys else remark
            for remark in pull.remarks
        )
        return replace(pull, remarks=tuple(remarks))

    async def can_write(self, login: str) -> bool:
        """Return whether this account may write to the repository, as the forge reports now.

        Bots have no access by default, because an App is not a collaborator. False if the project's credential may not ask.
        """
        try:
            access = await self._requests.get_object(f"/collaborators/{quote(login, safe='')}/permission")
        except (ForgeNotFoundError, ForgeForbiddenError, ForgeInvalidError, ForgeRefusedError):
            return False
        return access.get("permission") in ("admin", "maintain", "write")

    async def list_issues(self, label: str) -> list[JsonObject]:
        """Return the open issues with this label as reported by GitHub, including pull requests."""
        return await self._requests.list_all("/issues", labels=label, state="open")

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
        fields = {name: value for name, value in body.items() if value is not None}
        for attempt in range(MAX_ATTEMPTS):
            try:
                merged = await self._requests.change("PUT", f"/pulls/{number}/merge", fields, repeat=False)
                return as_text(merged.get("sha"), 64)
            except (ForgeUnreachableError, ForgeRefusedError) as error:
                # the connection may have broken after the merge, and "not mergeable" is also reported for a merged one
                now = await self._requests.get_object(f"/pulls/{number}")
                if parse_pull(now, self._requests.web_url).state is PullState.MERGED:
                    return as_text(now.get("merge_commit_sha"), 64)
                is_transient = (
                    isinstance(error, ForgeUnreachableError) or "base branch was modified" in error.message.lower()
                )
                if not is_transient or attempt == MAX_ATTEMPTS - 1:
                    raise
            await self._clock.sleep(2.0**attempt)
        raise ForgeUnreachableError  # the last attempt has raised its error

    async def mark_ready(self, number: int) -> None:
        await self.set_draft(number, False)

    async def set_draft(self, number: int, draft: bool) -> None:
        """Set or clear the draft state. Idempotent. GitHub supports this only in its GraphQL API.

        Raises ForgeUnsupportedError if a server does not have it.
        """
        pull = await self._requests.get_object(f"/pulls/{number}")
        if (pull.get("draft") is True) == draft:
            return
        try:
            response = await self._requests.query_graphql(
                _CONVERT_TO_DRAFT if draft else _MARK_READY, {"id": pull.get("node_id")}
            )
        except (ForgeNotFoundError, ForgeRefusedError):
            raise ForgeUnsupportedError(
                "This server has no GraphQL API, which is needed to change the draft state of a pull request. Change it on "
                "the pull request's page."
            ) from None
        kind, message = extract_graphql_error(response)
        if kind in ("RATE_LIMIT", "RATE_LIMITED"):
            raise ForgeRateLimitedError(f"GitHub is rate-limiting GraphQL requests: {message}.")
        if kind in ("FORBIDDEN", "INSUFFICIENT_SCOPES"):
            raise ForgeForbiddenError(
                f"The credential may not change the draft state of a pull request: {message}. It needs 'Pull requests: read and "
                "write' and 'Contents: read and write'."
            )
        if kind:
            raise ForgeRefusedError(f"GitHub rejected the request: {message}.")

    async def close(self, number: int) -> None:
        """Close a pull request without merging. Idempotent; a merged one is left alone."""
        pull = await self._requests.get_object(f"/pulls/{number}")
        if parse_pull(pull, self._requests.web_url).state is PullState.OPEN:
            await self._requests.change("PATCH", f"/pulls/{number}", {"state": "closed"})

    async def _list_checks(self, commit: str) -> tuple[list[CheckRun], list[Remark], list[str]]:
        """Return check runs and commit statuses. Personal tokens often cannot see check runs; then the runs of GitHub Actions are used."""
        warnings: list[str] = []
        found = []
        try:
            found += parse_check_runs(await self._requests.list_all(f"/commits/{commit}/check-runs", "check_runs"))
        except ForgeInvalidError:
            pass  # the commit no longer exists
        except (ForgeForbiddenError, ForgeNotFoundError):
            try:
                runs = await self._requests.list_all("/actions/runs", "workflow_runs", head_sha=commit)
                found += parse_workflow_runs(runs, self.slug)
            except (ForgeForbiddenError, ForgeNotFoundError):
                warnings.append("The credential cannot see checks. It needs 'Checks: read' or 'Actions: read'.")
        try:
            # the newest of each context, which is the one that counts
            found += parse_statuses(await self._requests.list_all(f"/commits/{commit}/status", "statuses"))
        except ForgeForbiddenError:
            warnings.append("The credential cannot see commit statuses. It needs 'Commit statuses: read'.")
        except (ForgeNotFoundError, ForgeInvalidError):
            pass  # a server without them, or without the commit
        return [run for run, _ in found], [remark for _, remark in found if remark is not None], warnings
