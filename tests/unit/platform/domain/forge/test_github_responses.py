"""Parsing of GitHub's responses, including invalid ones."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandyard.platform.domain.forge import github_responses
from sandyard.platform.domain.forge.errors import ForgeUnreachableError
from sandyard.platform.domain.forge.github_connection import CachedResponse, ResponseCache
from sandyard.platform.domain.forge.model import Checks, PullState, Review

WEB = "https://hub.example.org/acme/website"


def review(login: str, state: str, body: str = "", number: int = 1) -> dict[str, Any]:
    at = "2026-01-31T10:00:00Z"
    return {"id": number, "user": {"login": login}, "state": state, "body": body, "submitted_at": at}


@pytest.mark.parametrize(
    ("reviews", "verdict"),
    [
        ([], Review.NONE),
        ([("ada", "PENDING")], Review.NONE),
        ([("ada", "COMMENTED")], Review.COMMENTED),
        ([("ada", "APPROVED"), ("ada", "COMMENTED")], Review.APPROVED),
        ([("ada", "APPROVED"), ("eve", "CHANGES_REQUESTED")], Review.CHANGES_REQUESTED),
        ([("eve", "CHANGES_REQUESTED"), ("ada", "APPROVED")], Review.CHANGES_REQUESTED),
        ([("eve", "CHANGES_REQUESTED"), ("eve", "APPROVED")], Review.APPROVED),
        ([("eve", "DISMISSED"), ("ada", "APPROVED")], Review.APPROVED),
        ([("eve", "DISMISSED")], Review.NONE),
    ],
)
def test_last_decisive_review_of_each_reviewer_counts(reviews: list[tuple[str, str]], verdict: Review) -> None:
    assert github_responses.summarize_reviews([review(login, state) for login, state in reviews]) is verdict


def test_reviews_with_text_are_remarks() -> None:
    payload = [
        review("ada", "APPROVED", "", 1),
        review("ada", "COMMENTED", "hm", 2),
        review("eve", "CHANGES_REQUESTED", "", 3),
        review("eve", "PENDING", "not sent yet", 4),
        review("eve", "DISMISSED", "withdrawn", 5),
    ]
    assert [(remark.id, remark.state) for remark in github_responses.parse_review_remarks(payload)] == [
        ("2", "commented"),
        ("3", "changes_requested"),
    ]


def run(conclusion: str | None, status: str = "completed") -> dict[str, Any]:
    return {"id": 1, "name": "ci", "status": status, "conclusion": conclusion}


@pytest.mark.parametrize(
    ("runs", "statuses", "outcome"),
    [
        ([], [], Checks.NONE),
        ([run("success"), run("skipped"), run("neutral")], [], Checks.PASSING),
        ([run("success"), run(None, "in_progress")], [], Checks.PENDING),
        ([run(None, "queued"), run("timed_out")], [], Checks.FAILING),
        ([run("cancelled")], [], Checks.FAILING),
        ([run("something new")], [], Checks.FAILING),
        ([], ["success", "pending"], Checks.PENDING),
        ([run("success")], ["error"], Checks.FAILING),
        ([], ["success"], Checks.PASSING),
    ],
)
def test_combines_checks_and_statuses(runs: list[dict[str, Any]], statuses: list[str], outcome: Checks) -> None:
    found = github_responses.parse_check_runs(runs) + github_responses.parse_statuses(
        [{"id": 1, "context": "x", "state": state} for state in statuses]
    )
    assert github_responses.summarize_checks([check for check, _ in found]) is outcome


def test_failures_have_unique_ids() -> None:
    failures = [
        *github_responses.parse_check_runs([run("failure")]),
        *github_responses.parse_statuses([{"id": 1, "context": "x", "state": "failure"}]),
        *github_responses.parse_workflow_runs(
            [
                {**run("failure"), "run_attempt": 3, "head_repository": {"full_name": "Acme/website"}},
                {**run("failure"), "run_attempt": 4, "head_repository": {"full_name": "mallory/website"}},
                {**run("failure"), "run_attempt": 5, "head_repository": None},
            ],
            "acme/website",
        ),
    ]
    assert [remark.id for _, remark in failures if remark] == ["1", "status-1", "run-1-3"]


def test_remark_on_outdated_line_keeps_position() -> None:
    payload = {"id": 9, "user": None, "body": "typo", "path": "a.py", "line": None, "original_line": 12}
    (remark,) = github_responses.parse_line_remarks([payload])
    assert (remark.path, remark.line, remark.author) == ("a.py", 12, "ghost")


def test_times_are_parsed() -> None:
    whole = datetime(2026, 1, 31, 10, 0, tzinfo=UTC)
    assert github_responses.parse_time("2026-01-31T10:00:00Z") == whole
    assert github_responses.parse_time("2026-01-31T10:00:00.250Z") == whole.replace(microsecond=250_000)
    assert github_responses.parse_time("2026-01-31T11:00:00+01:00") == whole
    assert [github_responses.parse_time(value) for value in (None, "", "soon", 5)] == [None] * 4


@pytest.mark.parametrize("odd", [None, [], "x", 5, {"login": 5}])
def test_tolerates_invalid_fields(odd: Any) -> None:
    fields = ("title", "state", "head", "base", "labels", "merged_at", "mergeable", "body", "draft")
    pull = github_responses.parse_pull({"number": 7, **dict.fromkeys(fields, odd)}, WEB)
    assert (pull.number, pull.state) == (7, PullState.OPEN)
    fields = ("id", "user", "body", "state", "path", "line", "output", "name", "status", "conclusion", "context")
    payload = [dict.fromkeys(fields, odd)]
    for read in (
        github_responses.parse_review_remarks,
        github_responses.parse_comment_remarks,
        github_responses.parse_line_remarks,
    ):
        read(payload)
    for reader in (github_responses.parse_check_runs, github_responses.parse_statuses):
        reader(payload)
    github_responses.parse_workflow_runs([{**payload[0], "head_repository": odd}], "a/b")
    github_responses.summarize_reviews(payload)
    assert not github_responses.parse_permissions({"permissions": odd}, None).push


@pytest.mark.parametrize("number", [None, 0, -1, 1 << 31, 1 << 40, True, "7", "../../user", 7.0])
def test_rejects_answer_that_is_not_pull_request(number: Any) -> None:
    with pytest.raises(ForgeUnreachableError, match="not a pull request"):
        github_responses.parse_pull({"number": number}, WEB)


@pytest.mark.parametrize(
    "url",
    [
        *(None, "", "javascript:alert(1)", "data:text/html,x", "//hub.example.org/x", "https://evil.example/pull/7"),
        *("https://hub.example.org@evil.example/", "https://hub.example.org:8443/x", "https://[hub.example.org/"),
        *("https://hub.example.org/ x", "https://hub.example.org/\nx"),
    ],
)
def test_replaces_address_of_other_host(url: Any) -> None:
    assert github_responses.parse_pull({"number": 7, "html_url": url}, WEB).url == f"{WEB}/pull/7"
    assert (
        github_responses.parse_pull({"number": 7, "html_url": "https://Hub.example.org/p/7"}, WEB).url
        == "https://Hub.example.org/p/7"
    )


def test_check_and_remark_addresses_are_web_pages() -> None:
    bad = "javascript:alert(1)"
    (seen, _), (other, _) = github_responses.parse_check_runs(
        [
            {**run("success"), "html_url": bad},
            {**run("success"), "html_url": bad, "details_url": "https://ci.example/1"},
        ]
    )
    assert (seen.url, other.url) == (None, "https://ci.example/1")
    (remark,) = github_responses.parse_comment_remarks([{"id": 1, "body": "x", "html_url": bad}])
    assert remark.url is None


def test_values_can_be_stored() -> None:
    odd = "a\x00b\ud800c"
    payload = {"number": 7, "title": odd, "head": {"ref": "h" * 400, "sha": "../../x"}, "base": {"ref": odd * 400}}
    pull = github_responses.parse_pull(
        {**payload, "labels": [{"name": odd}] * 1000, "merged_at": "0001-01-01T00:00:00+23:59"}, WEB
    )
    assert (pull.title, pull.head_commit, pull.merged_at) == ("abc", None, None)
    assert (len(pull.head), set(pull.labels), len(pull.labels)) == (250, {"abc"}, 100)
    assert len(pull.base) <= 250 and set(pull.base) == set("abc")
    (remark,) = github_responses.parse_line_remarks(
        [{"id": odd * 100, "body": odd, "user": {"login": odd}, "path": odd, "line": 1 << 40}]
    )
    assert (remark.author, remark.text, remark.path, remark.line) == ("abc", "abc", "abc", None)
    assert len(remark.id) <= 60 and set(remark.id) == set("abc")


def test_cache_is_limited_and_drops_oldest() -> None:
    cache = ResponseCache(20_000)
    for number in range(10):
        cache.put("ada", f"/{number}", CachedResponse(f'"{number}"', b"x" * 2000, ""))
        cache.get("ada", "/0")
    assert cache.get("ada", "/0") is not None
    assert cache.get("ada", "/1") is None
    assert cache.get("ada", "/9") is not None
    assert cache.get("eve", "/9") is None
    cache.put("ada", "/9", CachedResponse('"big"', b"x" * 3000, ""))
    assert cache.get("ada", "/9") is None
