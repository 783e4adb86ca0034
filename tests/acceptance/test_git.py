"""Test git from a repository URL to a merged pull request, with a real platform, engine and git, and the GitHub of tests/forge."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.project_client import Session, check_problem, create_forge_project
from tests.forge import GitHub, forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, sign_in, until

pytestmark = pytest.mark.timeout(400)
SETTINGS = {"RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2", "FORGE_POLL_S": "2", "CREATES_PER_MINUTE": "1000"}
ONE_DAY_S = "86400"


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="module")
def sqlite_platform(engine: Engine) -> Iterator[Platform]:
    """A platform on SQLite, also for tests that do not depend on the database."""
    with running(engine, None, **SETTINGS) as platform:
        yield platform


@pytest.fixture
def platform(request: pytest.FixtureRequest, engine: Engine, database_url: str) -> Iterator[Platform]:
    if database_url.startswith("sqlite:"):
        yield request.getfixturevalue("sqlite_platform")
    else:
        with running(engine, database_url, **SETTINGS) as platform:
            yield platform


def test_a_project_from_repository_to_merged_pull_request(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github, labels=["sandyard"], reviewers=["grace"])
    grace = github.colleague("grace")
    tested = ok(platform.client.post(f"/projects/{project.id}/test"))
    assert tested["ok"], tested
    assert tested["budget"]["remaining"] > 0

    # the checkout is created automatically
    session = project.create_session("Mend the login")
    checkout = session.checkout()
    branch = checkout["branch"]
    assert branch.startswith("session/mend-the-login-")
    assert (checkout["baseBranch"], checkout["baseCommit"]) == ("main", project.repository.head("main"))
    assert session.execute("git rev-parse --abbrev-ref HEAD; cat README.md").split("\n")[:2] == [branch, "# Website"]
    assert project.token.text not in session.execute("git config --list; git remote -v; env")

    # work, and a commit
    session.execute("echo 'print(1)' > src/login.py; sed -i s/two/zwei/ src/data.txt; rm src/app.py")
    status = ok(session.client.get(f"/git/{session.sandbox}/status"))
    assert {entry["path"] for entry in status["entries"]} == {"src/login.py", "src/data.txt", "src/app.py"}
    refused = check_problem(session.post_git("commit", message="mended the login"))
    assert (refused["code"], refused["status"]) == ("commit_message", 400)
    commit = session.run_git("commit", message=refused["suggestion"])["commit"]
    history = ok(session.client.get(f"/git/{session.sandbox}/history"))["items"]
    assert [item["id"] for item in history] == [commit]
    diff = ok(session.client.get(f"/git/{session.sandbox}/diff"))
    assert {file["path"]: file["change"] for file in diff["files"]} == {
        "src/app.py": "deleted",
        "src/data.txt": "modified",
        "src/login.py": "added",
    }

    # push twice
    pushed = session.run_git("push")
    assert (pushed["branch"], pushed["commit"], pushed["commits"]) == (branch, commit, 1)
    assert project.repository.head(branch) == commit
    assert session.run_git("push")["commit"] == commit

    # open one pull request
    status_code, pull = session.open_pull_request()
    number = pull["number"]
    assert status_code == 201
    on_forge = grace.pull(project.slug, number)
    assert (on_forge["head"]["ref"], on_forge["head"]["sha"], on_forge["base"]["ref"]) == (branch, commit, "main")
    assert on_forge["title"] == pull["title"]
    assert on_forge["body"]
    assert on_forge["user"]["login"] == "sandyard-bot"
    assert [label["name"] for label in on_forge["labels"]] == ["sandyard"]
    assert [user["login"] for user in on_forge["requested_reviewers"]] == ["grace"]
    repeated_status, repeated = session.open_pull_request()
    assert (repeated_status, repeated["number"], repeated["id"]) == (200, number, pull["id"])
    assert len(grace.pulls(project.slug, "all")) == 1
    assert ok(session.client.get(f"/sessions/{session.id}/pull-request"))["number"] == number

    # reviews and checks are reported back
    grace.request_changes(
        project.slug, number, "The login needs a test.", path="src/login.py", remark="Where is it used?"
    )
    grace.check(project.slug, commit, "failure", name="tests", title="2 failed", summary="test_login: 2 failed")
    until(lambda: session.list_events("pull_request.reviewed") and session.list_events("pull_request.checks_failed"))
    failing = until(lambda: (row := project.get_pull_request(number))["checks"] == "failing" and row)
    assert failing["review"] == "changes_requested"
    messages = until(lambda: "test_login" in (text := session.messages()) and text)
    for words in ("The login needs a test.", "Where is it used?", "src/login.py"):
        assert words in messages

    # a new commit goes to the same branch and the same pull request
    second = session.commit_file("src/test_login.py", "def test_login(): pass\n", "test: the login")
    session.run_git("push")
    status_code, pull = session.open_pull_request()
    assert (status_code, pull["number"], pull["headCommit"]) == (200, number, second)
    assert grace.pull(project.slug, number)["head"]["sha"] == second
    grace.check(project.slug, second, "success", name="tests")
    grace.approve(project.slug, number)
    until(lambda: (row := project.get_pull_request(number))["checks"] == "passing" and row["review"] == "approved")
    assert session.list_events("pull_request.checks_passed")

    # merge and clean up
    merged = project.act_on_pull_request(number, "merge")
    assert merged["state"] == "merged"
    assert project.act_on_pull_request(number, "merge")["state"] == "merged", "merging again must change nothing"
    assert project.repository.read("main", "src/login.py") == b"print(1)\n"
    parents = project.repository.git("rev-list", "--parents", "-1", "main").split()
    assert len(parents) == 2, "a squashed commit has one parent"
    until(lambda: branch not in project.repository.branches())
    until(lambda: project.get_pull_request(number)["branchDeletedAt"])
    kinds = [event["kind"] for event in session.list_events()]
    for kind in (
        "git.started",
        "git.completed",
        "pull_request.opened",
        "pull_request.merged",
        "pull_request.branch_deleted",
    ):
        assert kind in kinds
    assert kinds.count("pull_request.opened") == kinds.count("pull_request.merged") == 1
    ok(session.client.delete(f"/sessions/{session.id}"))


def test_webhooks_report_changes_on_the_forge(engine: Engine, github: GitHub) -> None:
    """Polling is practically off. A delivery that arrives twice has an effect once."""
    secret = "whsec-0123456789abcdef"
    with running(engine, None, **{**SETTINGS, "FORGE_POLL_S": ONE_DAY_S}) as platform:
        project = create_forge_project(platform, github)
        project.set_credentials(webhookSecret=secret)
        url = f"{platform.url}/api/v1/webhooks/github"
        hook = github.hook(project.slug, url, secret)
        session = project.create_session()
        commit = session.commit_file("a.txt", "a\n", "feat: a")
        number = session.open_pull_request()[1]["number"]
        grace = github.colleague("grace")
        grace.request_changes(project.slug, number, "Not like this.")
        until(lambda: session.list_events("pull_request.reviewed"))
        grace.comment(project.slug, number, "One more word.")
        until(lambda: session.list_events("pull_request.commented"))
        grace.check(project.slug, commit, "failure", name="lint", summary="E501")
        until(lambda: session.list_events("pull_request.checks_failed"))
        until(lambda: "One more word." in (text := session.messages()) and "E501" in text)
        grace.merge(project.slug, number)
        until(lambda: project.get_pull_request(number)["state"] == "merged")
        until(lambda: session.list_events("pull_request.merged"))
        delivered = grace.deliveries(project.slug, hook)
        assert delivered
        assert {delivery["status_code"] for delivery in delivered} <= {202}
        counts = [len(session.list_events(f"pull_request.{kind}")) for kind in ("reviewed", "commented", "merged")]
        assert counts == [1, 1, 1]
        unsigned = platform.client.post("/webhooks/github", json={"repository": {"full_name": project.slug}})
        assert unsigned.status_code == 401


def test_a_github_app_gives_access_to_the_repository(sqlite_platform: Platform, github: GitHub) -> None:
    project = create_forge_project(sqlite_platform, github)
    app = github.app("acme", repositories=[project.slug])
    ok(sqlite_platform.client.delete(f"/projects/{project.id}/credentials/token"))
    key = {"appId": str(app.app_id), "installationId": str(app.installation_id), "privateKey": app.private_key}
    project.set_credentials(app=key)
    assert ok(sqlite_platform.client.post(f"/projects/{project.id}/test"))["ok"]
    session = project.create_session()
    session.commit_file("a.txt", "a\n", "feat: a")
    status_code, pull = session.open_pull_request()
    assert status_code == 201
    on_forge = github.colleague("grace").pull(project.slug, pull["number"])
    assert on_forge["user"]["login"] == f"{app.slug}[bot]"


def test_a_draft_pull_request_is_marked_ready_and_closed(sqlite_platform: Platform, github: GitHub) -> None:
    project = create_forge_project(sqlite_platform, github, draft=True)
    session = project.create_session()
    session.commit_file("a.txt", "a\n", "feat: a")
    number = session.open_pull_request(title="feat: something", body="Because.")[1]["number"]
    grace = github.colleague("grace")
    on_forge = grace.pull(project.slug, number)
    assert (on_forge["draft"], on_forge["title"]) == (True, "feat: something")
    assert "Because." in on_forge["body"]
    assert project.act_on_pull_request(number, "ready")["draft"] is False
    assert grace.pull(project.slug, number)["draft"] is False
    assert project.act_on_pull_request(number, "close")["state"] == "closed"
    grace.reopen(project.slug, number)
    assert project.get_pull_request(number, refresh=True)["state"] == "open"
    assert session.list_events("pull_request.reopened")


@pytest.mark.slow
def test_conflicts_are_reported_by_file(sqlite_platform: Platform, github: GitHub) -> None:
    project = create_forge_project(sqlite_platform, github)
    session = project.create_session()
    session.execute("sed -i s/two/zwei/ src/data.txt; echo mine > both.txt; rm src/app.py")
    ours = session.run_git("commit", message="feat: ours")["commit"]
    project.repository.commit(
        {"src/data.txt": "one\ndeux\nthree\n", "both.txt": "theirs\n", "src/app.py": "print('changed')\n"},
        "feat: theirs",
    )
    check = session.run_git("update", how="check")
    assert {conflict["path"] for conflict in check["conflicts"]} == {"src/data.txt", "both.txt", "src/app.py"}
    for how in ("rebase", "merge"):
        error = check_problem(session.post_git("update", how=how))
        assert (error["status"], error["code"]) == (409, "conflicts")
        assert {file["path"]: bool(file["kind"]) for file in error["files"]} == {
            "src/data.txt": True,
            "both.txt": True,
            "src/app.py": True,
        }
        assert set(error["choices"]) >= {"give_up", "agent"}
        assert session.execute("git rev-parse HEAD; git status --porcelain").strip() == ours, (
            "the checkout must be unchanged"
        )
    session.run_git("update", how="agent")
    assert "<<<<<<<" in session.execute("cat src/data.txt")
    assert ok(session.client.get(f"/git/{session.sandbox}/status"))["underWay"]
    session.run_git("update", how="give_up")
    assert session.execute("git rev-parse HEAD; git status --porcelain").strip() == ours

    # without a conflict the update succeeds
    other_session = project.create_session("Other")
    other_session.commit_file("other.txt", "other\n", "feat: other")
    project.repository.commit({"late.txt": "late\n"}, "feat: late")
    other_session.run_git("update", how="rebase")
    assert other_session.execute("cat late.txt other.txt") == "late\nother\n"
    other_session.run_git("push")
    assert project.repository.is_ancestor("main", other_session.checkout()["branch"])


def test_uncommitted_changes_survive_the_sandbox(sqlite_platform: Platform, github: GitHub) -> None:
    """Changes are saved before a pause and before deletion, shown while the sandbox is paused, and restored into a new sandbox."""
    project = create_forge_project(sqlite_platform, github)
    session = project.create_session()
    commit = session.commit_file("done.txt", "done\n", "feat: done")
    session.execute(
        "echo staged > staged.txt; git add staged.txt; echo loose > loose.txt; echo four >> src/data.txt; rm README.md"
    )
    before = session.execute("git status --porcelain")
    ok(session.client.post(f"/sandboxes/{session.sandbox}/pause"))
    paused = ok(session.client.get(f"/git/{session.sandbox}/status"))
    assert paused["live"] is False
    assert {entry["path"] for entry in paused["entries"]} == {"staged.txt", "loose.txt", "src/data.txt", "README.md"}
    assert ok(session.client.get(f"/git/{session.sandbox}/history"))["items"][0]["id"] == commit
    diff = ok(session.client.get(f"/git/{session.sandbox}/diff", params={"against": "head"}))
    assert {file["path"] for file in diff["files"]} == {"staged.txt", "loose.txt", "src/data.txt", "README.md"}
    assert ok(session.client.get(f"/sandboxes/{session.sandbox}"))["status"] == "paused", (
        "reading must not resume the sandbox"
    )
    assert session.execute("cat loose.txt") == "loose\n"
    session.execute("echo later > later.txt")
    ok(session.client.delete(f"/sandboxes/{session.sandbox}"))
    checkpoints = ok(session.client.get(f"/sessions/{session.id}/checkpoints"))["items"]
    assert {"pause", "destroy"} <= {checkpoint["reason"] for checkpoint in checkpoints}
    newest = checkpoints[0]
    assert (newest["head"], newest["changed"]) == (commit, 5)
    restored = ok(session.client.post("/git/restore", json={"checkpointId": newest["id"]}), 200)
    restored_session = Session(sqlite_platform, session.id, restored["sandboxId"])
    assert restored_session.sandbox != session.sandbox
    assert ok(restored_session.client.get(f"/sessions/{session.id}"))["sandboxId"] == restored_session.sandbox
    status = restored_session.execute("git status --porcelain").splitlines()
    assert sorted(status) == sorted([*before.splitlines(), "?? later.txt"])
    assert (
        restored_session.execute("cat staged.txt loose.txt later.txt; tail -1 src/data.txt")
        == "staged\nloose\nlater\nfour\n"
    )
    assert restored_session.checkout()["branch"] == newest["branch"]
    restored_session.run_git("commit", message="feat: the rest")
    assert restored_session.run_git("push")["commits"] == 2


def test_other_users_cannot_see_a_project(sqlite_platform: Platform, github: GitHub) -> None:
    project = create_forge_project(sqlite_platform, github)
    session = project.create_session()
    session.commit_file("a.txt", "a\n", "feat: a")
    number = session.open_pull_request()[1]["number"]
    client = _client_of_another_user(sqlite_platform)
    for path in (
        f"/git/{session.sandbox}",
        f"/git/{session.sandbox}/diff",
        f"/git/{session.sandbox}/status",
        f"/projects/{project.id}/credentials",
        f"/projects/{project.id}/compare?base=main&head=main",
        f"/github/pull-requests/{number}?projectId={project.id}",
        f"/sessions/{session.id}/pull-request",
    ):
        assert client.get(path).status_code == 404, path
    assert ok(client.get("/git/operations"))["items"] == []
    assert ok(client.get("/github/pull-requests"))["items"] == []
    for path in ("/git/push", "/git/commit", "/github/pull-requests"):
        body: dict[str, Any] = {
            "sandboxId": session.sandbox,
            **({"message": "feat: x"} if path == "/git/commit" else {}),
        }
        assert client.post(path, json=body).status_code == 404, path


def _client_of_another_user(platform: Platform) -> httpx.Client:
    """Return a client for a user without access to any project."""
    credentials = {"name": "eve", "password": "correct horse battery"}
    ok(platform.client.post("/users", json={**credentials, "role": "member"}), 201)
    with httpx.Client(base_url=f"{platform.url}/api/v1") as browser:
        sign_in(browser, **credentials)
        token = ok(browser.post("/tokens", json={"name": "test"}), 201)["value"]
    client = platform.client
    client.headers["Authorization"] = f"Bearer {token}"
    assert ok(client.get("/me"))["user"]["name"] == "eve"
    return client


@pytest.mark.slow
def test_tags_branches_and_staging_of_single_files(sqlite_platform: Platform, github: GitHub) -> None:
    project = create_forge_project(sqlite_platform, github)
    session = project.create_session()
    session.execute("echo a > a.txt; echo b > b.txt; echo junk > src/app.py")
    session.run_git("discard", paths=["src/app.py"])
    assert session.execute("cat src/app.py") == "print('hello')\n"
    session.run_git("stage", paths=["a.txt"])
    first = session.run_git("commit", message="feat: a alone", everything=False)["commit"]
    assert session.execute("git show --stat --format= HEAD").split()[0] == "a.txt"
    early = check_problem(session.post_git("tag", name="v1.0.0", message="First.", push=True))
    assert "Push the branch first" in early["detail"]
    session.run_git("push")
    session.run_git("tag", name="v1.0.0", message="First.", push=True)
    assert project.repository.resolve("v1.0.0") == first
    session.run_git("branch", name="other-name")
    session.commit_file("c.txt", "c\n", "feat: c")
    assert session.run_git("push")["branch"] == "other-name"
    assert project.repository.log("other-name")[:2] == ["feat: c", "feat: a alone"]
    compared = ok(session.client.get(f"/projects/{project.id}/compare", params={"base": "main", "head": "other-name"}))
    assert [item["subject"] for item in compared["commits"]] == ["feat: c", "feat: a alone"]
    assert json.dumps(compared["diff"]).count('"path"') == 3
