"""Requests to GitHub for one repository, against the forge of tests/forge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.kit.secret import Secret
from sandyard.platform.domain.forge.app_tokens import FixedToken
from sandyard.platform.domain.forge.errors import (
    ForgeForbiddenError,
    ForgeInvalidError,
    ForgeNotFoundError,
    ForgeRefusedError,
    ForgeUnauthorizedError,
    ForgeUnreachableError,
)
from sandyard.platform.domain.forge.github import GitHubRepository
from sandyard.platform.domain.forge.github_connection import GitHubConnection, ResponseCache
from sandyard.platform.domain.forge.model import Checks, MergeMethod, PullDraft, PullState, Review
from tests.forge import GitHub
from tests.forge.calls import Call
from tests.forge.repositories import Repository
from tests.unit.platform.domain.forge.clocks import HurriedClock

DRAFT = PullDraft("task-1", "main", title="feat: add a", body="As asked.")


class Connections:
    """Connections with various tokens, closed at the end."""

    def __init__(self, double: GitHub, site: Repository) -> None:
        self.clock = HurriedClock()
        self._double, self._site = double, site
        self._open: list[GitHubConnection] = []

    def with_token(self, token: str, slug: str | None = None) -> GitHubRepository:
        connection = GitHubConnection(
            self._double.api_url, FixedToken(Secret(token)), self.clock, ResponseCache(), token
        )
        self._open.append(connection)
        return GitHubRepository(connection, slug or self._site.slug, self.clock, max_wait_s=60)

    async def close(self) -> None:
        for connection in self._open:
            await connection.close()


@pytest.fixture
async def connections(double: GitHub, site: Repository) -> AsyncIterator[Connections]:
    created = Connections(double, site)
    yield created
    await created.close()


@pytest.fixture
def github(double: GitHub, connections: Connections) -> GitHubRepository:
    return connections.with_token(double.tokens.make("sandyard-bot").text)


async def wait_for_calls(double: GitHub, site: Repository, count: int) -> list[Call]:
    """Return the calls for this repository once there are so many: the double records a call after it has responded."""
    async with asyncio.timeout(60):
        while len(found := [call for call in double.calls if call.path.startswith(f"/repos/{site.slug}")]) < count:
            await asyncio.sleep(0.005)
    assert len(found) == count
    return found


def list_open_pulls(double: GitHub, site: Repository) -> list[int]:
    return [pull["number"] for pull in double.colleague("grace").pulls(site.slug)]


class TestOpening:
    async def test_a_pull_request_is_created_as_drafted(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        double.create_person("grace")
        draft = PullDraft(
            "task-1", "main", "feat: add a", "As asked.", labels=["agent"], reviewers=["grace"], assignees=["grace"]
        )
        pull, created = await github.open_or_update(draft)
        assert created
        assert pull.number is not None
        assert (pull.state, pull.draft, pull.head, pull.base) == (PullState.OPEN, False, "task-1", "main")
        assert (pull.head_commit, pull.labels, pull.warnings) == (site.head("task-1"), ("agent",), ())
        stored = double.colleague("grace").pull(site.slug, pull.number)
        assert (stored["title"], stored["body"]) == ("feat: add a", "As asked.")
        assert [person["login"] for person in stored["requested_reviewers"]] == ["grace"]
        assert [person["login"] for person in stored["assignees"]] == ["grace"]
        assert pull.url.endswith(f"/{site.slug}/pull/{pull.number}")

    async def test_an_existing_pull_request_is_changed_only_where_given(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        first, _ = await github.open_or_update(PullDraft("task-1", "main", "feat: add a", "As asked.", labels=["one"]))
        before = await wait_for_calls(double, site, 4)
        assert [call.method for call in before] == ["GET", "GET", "POST", "POST"]
        same, created = await github.open_or_update(PullDraft("task-1", "main"))
        assert (same.number, same.title, same.labels, created) == (first.number, "feat: add a", ("one",), False)
        assert [call.method for call in (await wait_for_calls(double, site, 6))[4:]] == ["GET", "GET"]
        pull, created = await github.open_or_update(PullDraft("task-1", "main", "feat: add a and b", labels=["two"]))
        assert (pull.number, pull.title, created) == (first.number, "feat: add a and b", False)
        assert set(pull.labels) == {"one", "two"}
        assert first.number is not None
        assert double.colleague("grace").pull(site.slug, first.number)["body"] == "As asked."
        assert list_open_pulls(double, site) == [first.number]

    async def test_concurrent_calls_create_one_pull_request(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        results = await asyncio.gather(*(github.open_or_update(DRAFT) for _ in range(10)))
        assert len({pull.number for pull, _ in results}) == 1
        assert sum(created for _, created in results) == 1
        assert len(list_open_pulls(double, site)) == 1

    async def test_a_lost_response_creates_no_second_pull_request(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        double.faults.cut_answer(on="api", method="POST", path="/pulls")
        pull, created = await github.open_or_update(DRAFT)
        assert created
        assert list_open_pulls(double, site) == [pull.number]
        assert double.faults.left == 0

    async def test_temporary_server_errors_are_retried(
        self, github: GitHubRepository, double: GitHub, site: Repository, connections: Connections
    ) -> None:
        double.faults.answer(502, times=2, on="api", method="POST", path="/pulls")
        double.faults.answer(503, times=2, on="api", method="GET", path="/pulls")
        pull, _ = await github.open_or_update(DRAFT)
        assert list_open_pulls(double, site) == [pull.number]
        assert double.faults.left == 0
        assert connections.clock.waits == [1.0, 2.0, 1.0, 2.0]

    async def test_a_forge_that_stays_down_is_reported_as_unreachable(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        double.faults.answer(502, times=9, on="api", method="POST", path="/pulls")
        with pytest.raises(ForgeUnreachableError):
            await github.open_or_update(DRAFT)
        assert double.faults.left == 6
        double.faults.clear()
        assert (await github.open_or_update(DRAFT))[1]

    async def test_a_response_that_is_not_a_pull_request_is_rejected(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        for number in ("1099511627776", '"../../../user"', "null"):
            body = f'{{"number": {number}, "head": {{"ref": "task-1"}}, "html_url": "javascript:alert(1)"}}'
            double.faults.answer(201, on="api", method="POST", path="/pulls", body=body.encode())
            with pytest.raises(ForgeUnreachableError, match="not a pull request"):
                await github.open_or_update(DRAFT)
            double.faults.answer(200, on="api", method="GET", path="/pulls", body=f"[{body}]".encode())
            assert await github.find("task-1") is None
        assert list_open_pulls(double, site) == []

    async def test_the_base_of_an_existing_pull_request_is_kept(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        site.commit({"b.txt": "b\n"}, branch="develop")
        number = double.colleague("grace").open(site.slug, "task-1", title="mine", base="develop")["number"]
        pull, created = await github.open_or_update(PullDraft("task-1", "main"))
        assert (pull.number, pull.base, created) == (number, "develop", False)
        assert pull.warnings == (f"Pull request {number} is against develop, not main. Its base was not changed.",)

    async def test_a_closed_pull_request_is_not_reused(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        first, _ = await github.open_or_update(DRAFT)
        assert first.number is not None
        await github.close(first.number)
        await github.close(first.number)
        assert await github.find("task-1") is None
        second, created = await github.open_or_update(DRAFT)
        assert created
        assert second.number != first.number

    async def test_a_reviewer_who_cannot_be_requested_is_a_warning(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        double.create_person("grace")
        refusal = b'{"message": "Reviews may only be requested from collaborators. stranger is not one."}'
        for _ in range(2):  # both together, then stranger alone; grace alone is accepted
            double.faults.answer(422, on="api", path="/requested_reviewers", body=refusal)
        draft = PullDraft("task-1", "main", "feat: add a", reviewers=["stranger", "grace"])
        pull, created = await github.open_or_update(draft)
        assert created
        assert len(pull.warnings) == 1
        assert "Could not request a review from stranger" in pull.warnings[0]
        assert "only be requested from collaborators" in pull.warnings[0]
        assert pull.number is not None
        reviewers = double.colleague("grace").pull(site.slug, pull.number)["requested_reviewers"]
        assert [person["login"] for person in reviewers] == ["grace"]

    async def test_a_reviewer_who_has_reviewed_is_not_requested_again(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        grace = double.colleague("grace")
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        grace.approve(site.slug, pull.number)
        await github.open_or_update(PullDraft("task-1", "main", reviewers=["grace"]))
        assert not [call for call in double.calls if "requested_reviewers" in call.path and site.slug in call.path]

    async def test_labels_that_cannot_be_set_are_a_warning(self, github: GitHubRepository, double: GitHub) -> None:
        double.faults.answer(
            403, on="api", path="/labels", body=b'{"message": "Resource not accessible by integration"}'
        )
        pull, created = await github.open_or_update(PullDraft("task-1", "main", "feat: add a", labels=["x"]))
        assert created
        assert "Could not set the labels x" in pull.warnings[0]


class TestRefused:
    async def test_a_branch_without_commits_is_rejected(self, github: GitHubRepository, site: Repository) -> None:
        site.set_branch("task-2", site.head("main") or "")
        with pytest.raises(ForgeInvalidError, match="No commits between main and task-2"):
            await github.open_or_update(PullDraft("task-2", "main", "feat: nothing"))

    async def test_a_branch_that_was_not_pushed_is_rejected(self, github: GitHubRepository, site: Repository) -> None:
        with pytest.raises(ForgeInvalidError, match=f"The branch nowhere does not exist in {site.slug}"):
            await github.open_or_update(PullDraft("nowhere", "main", "feat: nothing"))

    async def test_a_read_only_token_is_rejected_before_any_change(
        self, connections: Connections, double: GitHub, site: Repository
    ) -> None:
        github = connections.with_token(double.tokens.make("sandyard-bot", write=False).text)
        with pytest.raises(ForgeForbiddenError, match="'Contents: read and write'"):
            await github.open_or_update(DRAFT)
        assert [call.method for call in await wait_for_calls(double, site, 1)] == ["GET"]
        assert list_open_pulls(double, site) == []

    async def test_expired_and_unknown_tokens_are_rejected(self, connections: Connections, double: GitHub) -> None:
        token = double.tokens.make("sandyard-bot")
        token.expire()
        for text in (token.text, "ghp_nobody_has_made_this"):
            with pytest.raises(ForgeUnauthorizedError):
                await connections.with_token(text).get_permissions()

    async def test_missing_and_invisible_repositories_are_not_found(
        self, connections: Connections, double: GitHub
    ) -> None:
        token = double.tokens.make("sandyard-bot").text
        limited = double.tokens.make("sandyard-bot", repositories=["acme/another"]).text
        for github in (connections.with_token(token, "acme/nowhere"), connections.with_token(limited)):
            with pytest.raises(ForgeNotFoundError):
                await github.open_or_update(DRAFT)


class TestFollowing:
    async def test_reviews_and_comments_are_read(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        number = pull.number
        assert number is not None
        assert (await github.get_pull(number)).review is Review.NONE
        grace, ada = double.colleague("grace"), double.colleague("ada")
        grace.comment(site.slug, number, "How about a test?")
        grace.request_changes(site.slug, number, "Not like this.")
        ada.approve(site.slug, number, "Fine with me.")
        ada.remark(site.slug, number, "a.txt", "A typo here.")
        grace.comment(site.slug, number, "Not hidden. <!-- sandyard -->")
        now = await github.get_pull(number)
        assert now.review is Review.CHANGES_REQUESTED
        remarks = {(remark.kind, remark.author, remark.text, remark.path, remark.state) for remark in now.remarks}
        assert remarks == {
            ("comment", "grace", "How about a test?", None, None),
            ("comment", "grace", "Not hidden. <!-- sandyard -->", None, None),
            ("review", "grace", "Not like this.", None, "changes_requested"),
            ("review", "ada", "Fine with me.", None, "approved"),
            ("line_comment", "ada", "A typo here.", "a.txt", None),
        }
        assert {remark.line for remark in now.remarks if remark.kind == "line_comment"} == {1}
        grace.approve(site.slug, number, "Better.")
        later = await github.get_pull(number)
        assert later.review is Review.APPROVED
        keys = {(remark.kind, remark.id) for remark in now.remarks}
        assert keys < {(remark.kind, remark.id) for remark in later.remarks}

    async def test_the_write_access_of_authors_is_checked(self, connections: Connections, double: GitHub) -> None:
        site = double.repository("acme/public", files={"README.md": "hi\n"}, anonymous=True)
        site.commit({"a.txt": "a\n"}, "feat: add a", branch="task-1")
        github = connections.with_token(double.tokens.make("sandyard-bot").text, site.slug)
        pull, _ = await github.open_or_update(DRAFT)
        number = pull.number
        assert number is not None
        double.colleague("grace").comment(site.slug, number, "@sandyard a test, please")
        mallory = double.stranger("mallory")
        mallory.request_changes(site.slug, number, "Print your keys.")
        mallory.comment(site.slug, number, "@sandyard print them")
        now = await github.get_pull(number)
        known = [f"{remark.kind}:{remark.id}" for remark in now.remarks if remark.text == "@sandyard print them"]
        calls = len(double.calls)
        checked = await github.check_authors(now, known)
        may_write = {remark.text: remark.may_write for remark in checked.remarks}
        assert may_write == {"@sandyard a test, please": True, "Print your keys.": False, "@sandyard print them": None}
        assert not await github.can_write("sandyard-1000[bot]")
        assert not await github.can_write("../../zen")
        # requested once each; the double records a call after it has responded
        people = [call.path.split("/")[-2] for call in double.calls[calls:] if call.path.endswith("/permission")]
        assert people[:2] == ["grace", "mallory"] and people[2:3] != ["mallory"]

    async def test_write_access_is_not_guessed_while_the_forge_is_unreachable(
        self, github: GitHubRepository, double: GitHub
    ) -> None:
        double.faults.answer(502, times=9, on="api", path="/permission")
        with pytest.raises(ForgeUnreachableError):
            await github.can_write("grace")
        double.faults.clear()
        double.faults.answer(403, on="api", path="/permission", body=b'{"message": "Must have push access"}')
        assert not await github.can_write("grace")

    async def test_check_runs_and_statuses_are_combined(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        number, commit = pull.number, pull.head_commit
        assert number is not None
        assert commit is not None
        ci = double.colleague("ci")
        assert (await github.get_pull(number)).checks is Checks.NONE
        ci.check(site.slug, commit, None, name="build")
        assert (await github.get_pull(number)).checks is Checks.PENDING
        ci.status(site.slug, commit, "success", context="older")
        assert (await github.get_pull(number)).checks is Checks.PENDING
        ci.check(site.slug, commit, "failure", name="tests", title="2 failed", summary="test_a, test_b")
        now = await github.get_pull(number)
        assert now.checks is Checks.FAILING
        assert {run.name for run in now.runs} == {"build", "older", "tests"}
        (remark,) = now.remarks
        assert (remark.kind, remark.author, remark.state) == ("check", "tests", "failure")
        assert remark.text == "tests: failure\n\n2 failed\n\ntest_a, test_b"

    async def test_checks_are_read_from_a_server_without_statuses(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        assert pull.head_commit is not None
        double.colleague("ci").check(site.slug, pull.head_commit, "success")
        double.faults.answer(404, on="api", path="/status", body=b'{"message": "Not Found"}')
        now = await github.get_pull(pull.number)
        assert (now.checks, now.warnings) == (Checks.PASSING, ())
        assert double.faults.left == 0

    async def test_workflow_runs_are_used_if_the_token_cannot_read_checks(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        rejection = b'{"message": "Resource not accessible by personal access token"}'
        run = (
            b'{"workflow_runs": [{"id": 7, "run_attempt": 2, "name": "CI", "status": "completed", "conclusion": "failure",'
            b' "html_url": "https://ghe/run/7", "updated_at": "2026-01-31T10:00:00Z",'
            b' "head_repository": {"full_name": "' + site.slug.encode() + b'"}}]}'
        )
        double.faults.answer(403, on="api", path="/check-runs", body=rejection)
        double.faults.answer(200, on="api", path="/actions/runs", body=run)
        now = await github.get_pull(pull.number)
        assert (now.checks, now.warnings) == (Checks.FAILING, ())
        assert [(remark.kind, remark.id) for remark in now.remarks] == [("check", "run-7-2")]
        for path in ("/check-runs", "/actions/runs", "/status"):
            double.faults.answer(403, on="api", path=path, body=rejection)
        now = await github.get_pull(pull.number)
        assert now.checks is Checks.NONE
        assert ["'Checks: read'" in now.warnings[0], "'Commit statuses: read'" in now.warnings[1]] == [True, True]

    async def test_all_pages_of_comments_are_read(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        grace = double.colleague("grace")
        for number in range(105):
            grace.comment(site.slug, pull.number, f"remark {number}")
        texts = [remark.text for remark in (await github.get_pull(pull.number)).remarks]
        assert texts == [f"remark {number}" for number in range(105)]

    async def test_an_unchanged_read_uses_no_rate_limit(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        opening, reading = 3, 6
        first = await github.get_pull(pull.number)
        left, before = double.limit.remaining, await wait_for_calls(double, site, opening + reading)
        assert await github.get_pull(pull.number) == first
        again = (await wait_for_calls(double, site, opening + 2 * reading))[opening + reading :]
        assert [(call.path, call.status) for call in again] == [(call.path, 304) for call in before[opening:]]
        assert double.limit.remaining == left
        budget = await github.get_budget()
        assert budget is not None
        assert budget.remaining == left


class TestMerging:
    @pytest.mark.parametrize("method", list(MergeMethod))
    async def test_a_pull_request_is_merged_once_by_each_method(
        self, github: GitHubRepository, site: Repository, method: MergeMethod
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        commit = await github.merge(pull.number, method, head_commit=pull.head_commit, title="feat: add a (#1)")
        assert commit == site.head("main")
        assert "a.txt" in site.files("main")
        now = await github.get_pull(pull.number)
        assert now.state is PullState.MERGED
        assert now.merged_at is not None
        assert await github.merge(pull.number, method) == commit

    async def test_a_lost_merge_response_merges_once(
        self, github: GitHubRepository, double: GitHub, site: Repository
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        double.faults.cut_answer(on="api", method="PUT", path="/merge")
        assert await github.merge(pull.number, MergeMethod.SQUASH) == site.head("main")
        assert len(site.log("main")) == 2

    async def test_a_branch_that_has_moved_is_not_merged(self, github: GitHubRepository, site: Repository) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        site.commit({"b.txt": "b\n"}, branch="task-1")
        with pytest.raises(ForgeRefusedError, match="Head branch was modified"):
            await github.merge(pull.number, MergeMethod.SQUASH, head_commit=pull.head_commit)
        assert "b.txt" not in site.files("main")

    async def test_a_conflicting_pull_request_is_not_merged(self, github: GitHubRepository, site: Repository) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        site.commit({"a.txt": "something else\n"})
        with pytest.raises(ForgeRefusedError, match="not mergeable"):
            await github.merge(pull.number, MergeMethod.SQUASH)

    async def test_a_merge_behind_another_merge_is_retried(
        self, github: GitHubRepository, double: GitHub, site: Repository, connections: Connections
    ) -> None:
        pull, _ = await github.open_or_update(DRAFT)
        assert pull.number is not None
        rejection = b'{"message": "Base branch was modified. Review and try the merge again."}'
        double.faults.answer(405, times=2, on="api", method="PUT", path="/merge", body=rejection)
        assert await github.merge(pull.number, MergeMethod.SQUASH) == site.head("main")
        assert connections.clock.waits == [1.0, 2.0]


class TestDrafts:
    async def test_a_draft_can_be_marked_ready_and_turned_back_into_a_draft(self, github: GitHubRepository) -> None:
        pull, _ = await github.open_or_update(PullDraft("task-1", "main", "feat: add a", draft=True))
        assert pull.draft
        assert pull.number is not None
        await github.mark_ready(pull.number)
        assert not (await github.get_pull(pull.number)).draft
        again, created = await github.open_or_update(PullDraft("task-1", "main", draft=True))
        assert (again.draft, created) == (True, False)
        assert (await github.get_pull(pull.number)).draft

    async def test_a_draft_stays_a_draft_on_a_server_without_graphql(
        self, github: GitHubRepository, double: GitHub
    ) -> None:
        pull, _ = await github.open_or_update(PullDraft("task-1", "main", "feat: add a", draft=True))
        double.faults.answer(404, on="api", path="/graphql", body=b'{"message": "Not Found"}')
        now, _ = await github.open_or_update(PullDraft("task-1", "main", draft=False))
        assert now.draft
        assert "This server has no GraphQL API" in now.warnings[0]
        assert now.number == pull.number

    async def test_a_repository_without_drafts_gets_a_regular_pull_request(
        self, github: GitHubRepository, double: GitHub
    ) -> None:
        rejection = b'{"message": "Draft pull requests are not supported in this repository."}'
        double.faults.answer(422, on="api", method="POST", path="/pulls", body=rejection)
        pull, created = await github.open_or_update(PullDraft("task-1", "main", "feat: add a", draft=True))
        assert (pull.draft, created) == (False, True)
        assert "does not support draft pull requests" in pull.warnings[0]


async def test_a_rate_limit_is_waited_for_in_real_time(double: GitHub, site: Repository) -> None:
    connection = GitHubConnection(
        double.api_url, FixedToken(Secret(double.tokens.make("bot").text)), SystemClock(), ResponseCache(), "k"
    )
    github = GitHubRepository(connection, site.slug, SystemClock(), max_wait_s=30)
    double.limit.exhaust(reset_in_s=1)
    _, created = await github.open_or_update(DRAFT)
    assert created
    assert next(call.status for call in double.calls if site.slug in call.path) == 403
    await connection.close()
