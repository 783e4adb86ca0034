"""The GitHub double compared with the documentation of GitHub, and the parts of emulate that are used unchanged.

A wrong double makes every test that uses it wrong. Each test here quotes docs.github.com on one behaviour that the facade corrects;
the last ones check the behaviour of emulate that the platform needs.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import queue
import re
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import githubkit
import httpx
import pytest

from tests.forge import GitHub, forge
from tests.forge.checkout import run
from tests.forge.repositories import Repository
from tests.forge.tokens import Token
from tests.harness.http_server import HttpServer


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def site(github: GitHub) -> Iterator[Repository]:
    """A separate repository for each test."""
    made = github.repository(f"acme/site-{len(github.repositories)}", files={"README.md": "# Website\n"})
    yield made
    github.faults.clear()


@pytest.fixture
def token(github: GitHub) -> Token:
    return github.tokens.make("bot")


@pytest.fixture
def client(github: GitHub, token: Token) -> Iterator[httpx.Client]:
    with connect(github, token.text) as client:
        yield client


def connect(github: GitHub, text: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {text}"}
    return httpx.Client(base_url=github.api_url, headers=headers, timeout=20, trust_env=False)


def open_pull_request(client: httpx.Client, site: Repository, branch: str = "task-1", **more: Any) -> dict[str, Any]:
    site.commit({f"{branch}.txt": "new\n"}, "feat: new", branch=branch)
    answer = client.post(f"/repos/{site.slug}/pulls", json={"title": "New", "head": branch, "base": "main", **more})
    assert answer.status_code == 201, answer.text
    return dict(answer.json())


def read_error(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert body["documentation_url"].startswith("https://docs.github.com/")
    return answer.status_code, "; ".join(
        [body["message"], *(error.get("message", error["code"]) for error in body.get("errors", []))]
    )


def test_invalid_and_expired_tokens_are_bad_credentials(github: GitHub, site: Repository, token: Token) -> None:
    """ "Authenticating with invalid credentials will return a 401 Unauthorized with the message Bad credentials."""
    with connect(github, "ghp_unknown") as stranger:
        assert read_error(stranger.get("/user")) == (401, "Bad credentials")
        assert read_error(stranger.get(f"/repos/{site.slug}")) == (401, "Bad credentials")
    with connect(github, token.text) as client:
        assert client.get("/user").json()["login"] == "bot"
        token.expire()
        assert read_error(client.get("/user")) == (401, "Bad credentials")
        token.renew()
        assert client.get("/user").status_code == 200


def test_an_inaccessible_repository_is_not_found(github: GitHub, site: Repository) -> None:
    """ "…returns 404 Not Found instead of 403 Forbidden to avoid confirming the existence of private repositories."""
    elsewhere = github.tokens.make("eve", repositories=["acme/other"])
    with connect(github, elsewhere.text) as client:
        assert read_error(client.get(f"/repos/{site.slug}")) == (404, "Not Found")
        assert read_error(client.get("/repos/acme/missing")) == (404, "Not Found")
    assert httpx.get(f"{github.api_url}/repos/{site.slug}").status_code == 404


def test_a_read_only_token_cannot_open_a_pull_request(github: GitHub, site: Repository) -> None:
    reader = github.tokens.make("bob", write=False)
    site.commit({"a": "a"}, branch="task-1")
    with connect(github, reader.text) as client:
        repository = client.get(f"/repos/{site.slug}").json()
        assert repository["permissions"]["push"] is False
        assert repository["permissions"]["pull"] is True
        wanted = {"title": "x", "head": "task-1", "base": "main"}
        refused = read_error(client.post(f"/repos/{site.slug}/pulls", json=wanted))
        assert refused == (403, "Resource not accessible by personal access token")


def test_invalid_pull_requests_are_refused(client: httpx.Client, site: Repository) -> None:
    """ "422 Validation failed, or the endpoint has been spammed", with the errors that explain it."""

    def post(**body: str) -> httpx.Response:
        return client.post(f"/repos/{site.slug}/pulls", json={"title": "x", "base": "main", **body})

    missing = post(head="nowhere")
    assert read_error(missing) == (422, "Validation Failed; invalid")
    assert missing.json()["errors"] == [{"resource": "PullRequest", "field": "head", "code": "invalid"}]
    site.commit({"a": "a"}, branch="task-1")
    assert post(head="task-1", base="nowhere").json()["errors"][0]["field"] == "base"
    site.set_branch("same", str(site.head("main")))
    assert read_error(post(head="same")) == (422, "Validation Failed; No commits between main and same")
    assert post(head="acme:task-1").status_code == 201
    again = read_error(post(head="task-1"))
    assert again == (422, "Validation Failed; A pull request already exists for acme:task-1.")


def test_a_pull_request_shows_the_real_commits(client: httpx.Client, site: Repository) -> None:
    made = open_pull_request(client, site)
    assert (made["mergeable"], made["mergeable_state"]) == (None, "unknown"), "GitHub computes it in the background"
    path = f"/repos/{site.slug}/pulls/{made['number']}"
    pull = client.get(path).json()
    assert (pull["head"]["sha"], pull["base"]["sha"]) == (site.head("task-1"), site.head("main"))
    assert (pull["commits"], pull["additions"], pull["changed_files"], pull["mergeable"]) == (1, 1, 1, True)
    site.commit({"more.txt": "more\n"}, "feat: more", branch="task-1")
    pull = client.get(path).json()
    assert (pull["head"]["sha"], pull["commits"]) == (site.head("task-1"), 2)
    assert [row["filename"] for row in client.get(f"{path}/files").json()] == ["more.txt", "task-1.txt"]
    assert [row["sha"] for row in client.get(f"{path}/commits").json()][-1] == site.head("task-1")
    site.commit({"task-1.txt": "clash\n"}, "feat: clash")
    assert client.get(path).json()["mergeable"] is False
    site.delete_branch("task-1")
    assert client.get(path).json()["state"] == "closed", "deleting the head branch closes the pull request"


def test_a_push_is_visible_in_the_api(
    github: GitHub, client: httpx.Client, site: Repository, tmp_path: Any, token: Token
) -> None:
    run("clone", "--quiet", site.url, "clone", cwd=tmp_path, token=token)
    folder = tmp_path / "clone"
    run("commit", "--quiet", "--allow-empty", "-m", "feat: pushed", cwd=folder)
    assert run("push", "origin", "HEAD:task-9", cwd=folder, token=token).code == 0
    branch = client.get(f"/repos/{site.slug}/branches/task-9").json()
    assert branch["commit"]["sha"] == site.head("task-9")
    compared = client.get(f"/repos/{site.slug}/compare/main...task-9").json()
    assert (compared["ahead_by"], compared["status"]) == (1, "ahead")
    assert client.get(f"/repos/{site.slug}/commits/task-9").json()["commit"]["message"] == "feat: pushed"


@pytest.mark.parametrize("method", ["merge", "squash", "rebase"])
def test_a_pull_request_is_merged_by_each_method(client: httpx.Client, site: Repository, method: str) -> None:
    made = open_pull_request(client, site)
    path = f"/repos/{site.slug}/pulls/{made['number']}"
    stale = client.put(f"{path}/merge", json={"merge_method": method, "sha": "0" * 40})
    assert read_error(stale) == (409, "Head branch was modified. Review and try the merge again.")
    answer = client.put(f"{path}/merge", json={"merge_method": method, "sha": site.head("task-1")})
    assert answer.status_code == 200
    assert answer.json()["merged"] is True
    assert answer.json()["sha"] == site.head("main")
    assert site.read("main", "task-1.txt") == b"new\n"
    pull = client.get(path).json()
    assert (pull["state"], pull["merged"], pull["merge_commit_sha"]) == ("closed", True, site.head("main"))
    subjects = {"merge": f"Merge pull request #{made['number']} from acme/task-1", "squash": f"New (#{made['number']})"}
    assert site.log("main")[0] == subjects.get(method, "feat: new")
    assert read_error(client.put(f"{path}/merge", json={})) == (405, "Pull Request is not mergeable")
    assert client.delete(f"/repos/{site.slug}/git/refs/heads/task-1").status_code == 204
    assert "task-1" not in site.branches()
    assert read_error(client.delete(f"/repos/{site.slug}/git/refs/heads/task-1")) == (422, "Reference does not exist")


def test_conflicting_and_unreviewed_pull_requests_are_not_merged(client: httpx.Client, site: Repository) -> None:
    made = open_pull_request(client, site)
    site.commit({"task-1.txt": "clash\n"}, "feat: clash")
    path = f"/repos/{site.slug}/pulls/{made['number']}/merge"
    assert read_error(client.put(path, json={})) == (405, "Pull Request is not mergeable")
    protection = {"required_pull_request_reviews": {"required_approving_review_count": 1}}
    other = open_pull_request(client, site, "task-2")
    everything = {"required_status_checks": None, "enforce_admins": True, "restrictions": None}
    answer = client.put(f"/repos/{site.slug}/branches/main/protection", json={**protection, **everything})
    assert answer.status_code == 200, answer.text
    head = site.head("main")
    refused = client.put(f"/repos/{site.slug}/pulls/{other['number']}/merge", json={})
    assert refused.status_code == 405
    assert site.head("main") == head


def test_a_draft_is_changed_only_through_graphql(github: GitHub, client: httpx.Client, site: Repository) -> None:
    """REST's "Update a pull request" has no `draft`."""
    made = open_pull_request(client, site, draft=True)
    path = f"/repos/{site.slug}/pulls/{made['number']}"
    assert read_error(client.put(f"{path}/merge", json={})) == (405, "Pull Request is still a draft")
    assert client.patch(path, json={"draft": False, "title": "Newer"}).json()["draft"] is True
    for mutation, draft in (("markPullRequestReadyForReview", False), ("convertPullRequestToDraft", True)):
        query = f"mutation($id: ID!) {{ {mutation}(input: {{pullRequestId: $id}}) {{ pullRequest {{ isDraft }} }} }}"
        body = {"query": query, "variables": {"id": made["node_id"]}}
        answer = client.post(f"{github.url}/api/graphql", json=body).json()
        assert answer["data"][mutation]["pullRequest"]["isDraft"] is draft
        assert client.get(path).json()["draft"] is draft
    body = {"query": query, "variables": {"id": "PR_unknown"}}
    assert client.post(f"{github.url}/api/graphql", json=body).json()["errors"][0]["type"] == "NOT_FOUND"


def test_conditional_requests_cost_nothing(client: httpx.Client, site: Repository) -> None:
    """ "Making a conditional request does not count against your primary rate limit if a 304 response is returned."""
    first = client.get(f"/repos/{site.slug}/pulls")
    again = client.get(f"/repos/{site.slug}/pulls", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["X-RateLimit-Remaining"] == first.headers["X-RateLimit-Remaining"]
    open_pull_request(client, site)
    fresh = client.get(f"/repos/{site.slug}/pulls", headers={"If-None-Match": first.headers["ETag"]})
    assert fresh.status_code == 200


def test_an_exhausted_rate_limit_refuses_calls_until_its_reset(github: GitHub, client: httpx.Client) -> None:
    """ "…you will receive a 403 or 429 response, and the x-ratelimit-remaining header will be 0."""
    core = client.get("/rate_limit").json()["resources"]["core"]
    assert core["limit"] == 5000
    github.limit.exhaust(reset_in_s=1)
    refused = client.get("/user")
    assert (refused.status_code, refused.headers["X-RateLimit-Remaining"]) == (403, "0")
    assert "API rate limit exceeded" in refused.json()["message"]
    assert client.get("/rate_limit").json()["resources"]["core"]["remaining"] == 0
    wait = int(refused.headers["X-RateLimit-Reset"]) - time.time()
    assert 0 < wait < 3
    time.sleep(wait)
    assert client.get("/user").status_code == 200


def test_requested_faults_affect_the_api(github: GitHub, client: httpx.Client, site: Repository) -> None:
    github.faults.answer(502, times=2, on="api", path="/pulls", method="GET")
    assert client.get("/user").status_code == 200
    assert [client.get(f"/repos/{site.slug}/pulls").status_code for _ in range(3)] == [502, 502, 200]
    github.faults.answer(403, on="api", headers={"Retry-After": "1"}, body=b'{"message": "secondary rate limit"}')
    assert client.get("/user").headers["Retry-After"] == "1"
    site.commit({"a": "a"}, branch="task-1")
    github.faults.cut_answer(on="api", path="/pulls", method="POST")
    with pytest.raises(httpx.TransportError):
        client.post(f"/repos/{site.slug}/pulls", json={"title": "x", "head": "task-1", "base": "main"})
    assert len(client.get(f"/repos/{site.slug}/pulls").json()) == 1, "it was created, but the answer was lost"
    assert github.faults.left == 0


def test_an_app_gets_tokens_for_its_repositories_that_expire(github: GitHub, site: Repository, tmp_path: Any) -> None:
    app = github.app("acme", repositories=[site.slug])
    auth = githubkit.AppInstallationAuthStrategy(app.app_id, app.private_key, app.installation_id)
    kit = githubkit.GitHub(auth, base_url=github.api_url)
    assert kit.request("GET", f"/repos/{site.slug}").json()["full_name"] == site.slug
    as_app = githubkit.GitHub(githubkit.AppAuthStrategy(app.app_id, app.private_key), base_url=github.api_url)
    made = as_app.request("POST", f"/app/installations/{app.installation_id}/access_tokens").json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", made["expires_at"])
    assert run("ls-remote", site.url, cwd=tmp_path, token=made["token"]).code == 0
    other = github.repository(f"acme/other-{len(github.repositories)}", files={"a": "a"})
    assert "not found" in run("ls-remote", other.url, cwd=tmp_path, token=made["token"]).err
    stranger = githubkit.GitHub(githubkit.AppAuthStrategy(app.app_id + 500, app.private_key), base_url=github.api_url)
    with pytest.raises(githubkit.exception.RequestFailed) as refused:
        stranger.request("POST", f"/app/installations/{app.installation_id}/access_tokens")
    assert refused.value.response.status_code == 401
    github.installation_token_seconds = -1
    late = as_app.request("POST", f"/app/installations/{app.installation_id}/access_tokens").json()
    github.installation_token_seconds = 3600
    assert "could not read Username" in run("ls-remote", site.url, cwd=tmp_path, token=late["token"]).err


def test_commit_statuses_are_combined(github: GitHub, client: httpx.Client, site: Repository) -> None:
    """ "…pending if there are no statuses or a context is pending; failure if any reports error or failure; else success."""
    commit = str(site.head("main"))

    def state() -> str:
        return str(client.get(f"/repos/{site.slug}/commits/{commit}/status").json()["state"])

    grace = github.colleague("grace")
    assert state() == "pending"
    for context, given, combined in (
        ("a", "pending", "pending"),
        ("a", "success", "success"),
        ("b", "error", "failure"),
    ):
        grace.status(site.slug, commit, given, context=context)
        assert state() == combined


class Inbox:
    """A server that receives deliveries."""

    def __init__(self) -> None:
        self.received: queue.Queue[tuple[dict[str, str], bytes]] = queue.Queue()
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.put(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                """Log nothing."""

        self.server = HttpServer(("127.0.0.1", 0), Handler)
        self.server.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def until(self, event: str, action: str | None = None) -> tuple[dict[str, str], dict[str, Any], bytes]:
        while True:
            headers, body = self.received.get(timeout=10)
            data = json.loads(body)
            if headers["x-github-event"] == event and data.get("action") == action:
                return headers, data, body


@pytest.fixture
def inbox() -> Iterator[Inbox]:
    inbox = Inbox()
    yield inbox
    inbox.server.stop()


def test_deliveries_are_signed_and_name_the_real_commits(
    github: GitHub, client: httpx.Client, site: Repository, inbox: Inbox
) -> None:
    github.hook(site.slug, inbox.url, "a secret")
    made = open_pull_request(client, site, draft=True)
    headers, data, body = inbox.until("pull_request", "opened")
    digest = hmac.new(b"a secret", body, hashlib.sha256).hexdigest()
    assert headers["x-hub-signature-256"] == f"sha256={digest}"
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", headers["x-github-delivery"])
    assert data["repository"]["full_name"] == site.slug
    assert data["pull_request"]["url"].startswith(github.api_url)
    site.commit({"b": "b"}, branch="task-1")
    _, data, _ = inbox.until("pull_request", "synchronize")
    assert data["after"] == data["pull_request"]["head"]["sha"] == site.head("task-1")
    grace, number = github.colleague("grace"), made["number"]
    grace.request_changes(site.slug, number, "Not yet.", path="b", remark="Why?")
    _, data, _ = inbox.until("pull_request_review", "submitted")
    assert (data["review"]["state"].lower(), data["review"]["body"]) == ("changes_requested", "Not yet.")
    assert data["review"]["commit_id"] == site.head("task-1")
    grace.comment(site.slug, number, "And a word.")
    _, data, _ = inbox.until("issue_comment", "created")
    assert data["comment"]["body"] == "And a word."
    assert data["issue"]["pull_request"]["url"] == f"{github.api_url}/repos/{site.slug}/pulls/{number}"
    grace.check(site.slug, str(site.head("task-1")), "failure", name="tests", summary="2 failed")
    _, data, _ = inbox.until("check_run", "completed")
    assert (data["check_run"]["conclusion"], data["check_run"]["pull_requests"][0]["number"]) == ("failure", number)
    query = "mutation($id: ID!) { markPullRequestReadyForReview(input: {pullRequestId: $id}) { pullRequest { id } } }"
    client.post(f"{github.url}/api/graphql", json={"query": query, "variables": {"id": made["node_id"]}})
    inbox.until("pull_request", "ready_for_review")
    grace.merge(site.slug, number)
    _, data, _ = inbox.until("pull_request", "closed")
    assert data["pull_request"]["merged"] is True
    assert data["pull_request"]["merge_commit_sha"] == site.head("main")
    site.delete_branch("task-1")
    assert inbox.until("delete")[1]["ref"] == "task-1"


def test_emulate_supports_reviews_labels_checks_and_pagination(
    github: GitHub, client: httpx.Client, site: Repository
) -> None:
    """Reviews, comments, labels, reviewers, check runs and pagination, without corrections."""
    made = open_pull_request(client, site, body="Why")
    path, number = f"/repos/{site.slug}/pulls/{made['number']}", made["number"]
    grace = github.colleague("grace")
    grace.approve(site.slug, number)
    grace.remark(site.slug, number, "task-1.txt", "Spelling.")
    review = client.get(f"{path}/reviews").json()[0]
    assert (review["user"]["login"], review["state"], review["commit_id"]) == ("grace", "APPROVED", site.head("task-1"))
    remark = client.get(f"{path}/comments").json()[0]
    assert (remark["path"], remark["body"]) == ("task-1.txt", "Spelling.")
    client.post(f"/repos/{site.slug}/issues/{number}/labels", json={"labels": ["sandyard", "feature"]})
    client.post(f"{path}/requested_reviewers", json={"reviewers": ["grace"]})
    client.post(f"/repos/{site.slug}/issues/{number}/assignees", json={"assignees": ["grace", "nobody"]})
    pull = client.get(path).json()
    assert [label["name"] for label in pull["labels"]] == ["sandyard", "feature"]
    assert [user["login"] for user in pull["requested_reviewers"]] == ["grace"]
    assert [user["login"] for user in pull["assignees"]] == ["grace"]
    assert (pull["body"], pull["user"]["login"]) == ("Why", "bot")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", pull["created_at"])
    commit = str(site.head("task-1"))
    grace.check(site.slug, commit, None, name="lint")
    grace.check(site.slug, commit, "success", name="tests")
    runs = client.get(f"/repos/{site.slug}/commits/{commit}/check-runs").json()["check_runs"]
    assert {run["name"]: run["conclusion"] for run in runs} == {"lint": None, "tests": "success"}
    for branch in ("task-2", "task-3"):
        open_pull_request(client, site, branch)
    page = client.get(f"/repos/{site.slug}/pulls", params={"per_page": 2})
    assert len(page.json()) == 2
    assert page.links["next"]["url"].startswith(f"{github.api_url}/repos/{site.slug}/pulls")
    assert len(client.get(page.links["next"]["url"]).json()) == 1
    found = client.get(f"/repos/{site.slug}/pulls", params={"head": "acme:task-2", "state": "all"}).json()
    assert [pull["head"]["ref"] for pull in found] == ["task-2"]
    assert client.patch(path, json={"state": "closed"}).json()["state"] == "closed"
