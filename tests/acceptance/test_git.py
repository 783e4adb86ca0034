"""From a repository's address to a merged pull request: real platform, real engine, real git, and GitHub as tests/forge has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Seat, problem, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(400)
SETTINGS = {"RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2", "FORGE_POLL_S": "2", "CREATES_PER_MINUTE": "1000"}
NEVER = "86400"


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def platform(engine: Engine, database_url: str) -> Iterator[Platform]:
    with running(engine, database_url, **SETTINGS) as platform:
        yield platform


@pytest.fixture(scope="module")
def one(engine: Engine) -> Iterator[Platform]:
    """On SQLite alone, for what has nothing to do with the database."""
    with running(engine, None, **SETTINGS) as platform:
        yield platform


def test_from_an_address_to_a_merged_pull_request(platform: Platform, github: GitHub) -> None:
    project = work(platform, github, labels=["sandyard"], reviewers=["grace"])
    grace = github.colleague("grace")
    tested = ok(platform.client.post(f"/projects/{project.id}/test"))
    assert tested["ok"], tested
    assert tested["budget"]["remaining"] > 0

    # the checkout makes itself
    seat = project.session("Mend the login")
    checkout = seat.checkout()
    branch = checkout["branch"]
    assert branch.startswith("session/mend-the-login-")
    assert (checkout["baseBranch"], checkout["baseCommit"]) == ("main", project.repository.head("main"))
    assert seat.execute("git rev-parse --abbrev-ref HEAD; cat README.md").split("\n")[:2] == [branch, "# Website"]
    assert project.token.text not in seat.execute("git config --list; git remote -v; env")

    # work, and a commit
    seat.execute("echo 'print(1)' > src/login.py; sed -i s/two/zwei/ src/data.txt; rm src/app.py")
    status = ok(seat.client.get(f"/git/{seat.sandbox}/status"))
    assert {entry["path"] for entry in status["entries"]} == {"src/login.py", "src/data.txt", "src/app.py"}
    refused = problem(seat.ask("commit", message="mended the login"))
    assert (refused["code"], refused["status"]) == ("commit_message", 400)
    commit = seat.git("commit", message=refused["suggestion"])["commit"]
    history = ok(seat.client.get(f"/git/{seat.sandbox}/history"))["items"]
    assert [one["id"] for one in history] == [commit]
    diff = ok(seat.client.get(f"/git/{seat.sandbox}/diff"))
    assert {file["path"]: file["change"] for file in diff["files"]} == {
        "src/app.py": "deleted",
        "src/data.txt": "modified",
        "src/login.py": "added",
    }

    # push, and again
    pushed = seat.git("push")
    assert (pushed["branch"], pushed["commit"], pushed["commits"]) == (branch, commit, 1)
    assert project.repository.head(branch) == commit
    assert seat.git("push")["commit"] == commit

    # a pull request, once
    made, pull = seat.pull_request()
    number = pull["number"]
    assert made == 201
    theirs = grace.pull(project.slug, number)
    assert (theirs["head"]["ref"], theirs["head"]["sha"], theirs["base"]["ref"]) == (branch, commit, "main")
    assert theirs["title"] == pull["title"]
    assert theirs["body"]
    assert theirs["user"]["login"] == "sandyard-bot"
    assert [label["name"] for label in theirs["labels"]] == ["sandyard"]
    assert [user["login"] for user in theirs["requested_reviewers"]] == ["grace"]
    again, same = seat.pull_request()
    assert (again, same["number"], same["id"]) == (200, number, pull["id"])
    assert len(grace.pulls(project.slug, "all")) == 1
    assert ok(seat.client.get(f"/sessions/{seat.id}/pull-request"))["number"] == number

    # what people and checks say comes back
    grace.request_changes(
        project.slug, number, "The login needs a test.", path="src/login.py", remark="Where is it used?"
    )
    grace.check(project.slug, commit, "failure", name="tests", title="2 failed", summary="test_login: 2 failed")
    until(lambda: seat.events("pull_request.reviewed") and seat.events("pull_request.checks_failed"))
    seen = until(lambda: (row := project.pull(number))["checks"] == "failing" and row)
    assert seen["review"] == "changes_requested"
    told = until(lambda: "test_login" in (text := seat.messages()) and text)
    for words in ("The login needs a test.", "Where is it used?", "src/login.py"):
        assert words in told

    # a new commit goes to the same branch and the same pull request
    second = seat.change("src/test_login.py", "def test_login(): pass\n", "test: the login")
    seat.git("push")
    made, pull = seat.pull_request()
    assert (made, pull["number"], pull["headCommit"]) == (200, number, second)
    assert grace.pull(project.slug, number)["head"]["sha"] == second
    grace.check(project.slug, second, "success", name="tests")
    grace.approve(project.slug, number)
    until(lambda: (row := project.pull(number))["checks"] == "passing" and row["review"] == "approved")
    assert seat.events("pull_request.checks_passed")

    # merged, and tidied up
    merged = project.does(number, "merge")
    assert merged["state"] == "merged"
    assert project.does(number, "merge")["state"] == "merged", "again: nothing more happens"
    assert project.repository.read("main", "src/login.py") == b"print(1)\n"
    parents = project.repository.git("rev-list", "--parents", "-1", "main").split()
    assert len(parents) == 2, "squashed: one parent"
    until(lambda: branch not in project.repository.branches())
    until(lambda: project.pull(number)["branchDeletedAt"])
    kinds = [event["kind"] for event in seat.events()]
    for kind in (
        "git.started",
        "git.completed",
        "pull_request.opened",
        "pull_request.merged",
        "pull_request.branch_deleted",
    ):
        assert kind in kinds
    assert kinds.count("pull_request.opened") == kinds.count("pull_request.merged") == 1
    ok(seat.client.delete(f"/sessions/{seat.id}"))


def test_what_happens_on_the_forge_is_told_by_webhook(engine: Engine, github: GitHub) -> None:
    """With polling as good as off; and a delivery that comes twice acts once."""
    secret = "whsec-0123456789abcdef"
    with running(engine, None, **{**SETTINGS, "FORGE_POLL_S": NEVER}) as platform:
        project = work(platform, github)
        project.credentials(webhookSecret=secret)
        url = f"{platform.url}/api/v1/webhooks/github"
        hook = github.hook(project.slug, url, secret)
        seat = project.session()
        commit = seat.change("a.txt", "a\n", "feat: a")
        number = seat.pull_request()[1]["number"]
        grace = github.colleague("grace")
        grace.request_changes(project.slug, number, "Not like this.")
        until(lambda: seat.events("pull_request.reviewed"))
        grace.comment(project.slug, number, "One more word.")
        until(lambda: seat.events("pull_request.commented"))
        grace.check(project.slug, commit, "failure", name="lint", summary="E501")
        until(lambda: seat.events("pull_request.checks_failed"))
        until(lambda: "One more word." in (text := seat.messages()) and "E501" in text)
        grace.merge(project.slug, number)
        until(lambda: project.pull(number)["state"] == "merged")
        until(lambda: seat.events("pull_request.merged"))
        delivered = grace.deliveries(project.slug, hook)
        assert delivered
        assert {delivery["status_code"] for delivery in delivered} <= {202}
        counts = [len(seat.events(f"pull_request.{kind}")) for kind in ("reviewed", "commented", "merged")]
        assert counts == [1, 1, 1]
        unsigned = platform.client.post("/webhooks/github", json={"repository": {"full_name": project.slug}})
        assert unsigned.status_code == 401


def test_a_github_app_opens_the_repository(one: Platform, github: GitHub) -> None:
    project = work(one, github)
    app = github.app("acme", repositories=[project.slug])
    ok(one.client.delete(f"/projects/{project.id}/credentials/token"))
    key = {"appId": str(app.app_id), "installationId": str(app.installation_id), "privateKey": app.private_key}
    project.credentials(app=key)
    assert ok(one.client.post(f"/projects/{project.id}/test"))["ok"]
    seat = project.session()
    seat.change("a.txt", "a\n", "feat: a")
    made, pull = seat.pull_request()
    assert made == 201
    theirs = github.colleague("grace").pull(project.slug, pull["number"])
    assert theirs["user"]["login"] == f"{app.slug}[bot]"


def test_a_draft_becomes_ready_and_is_closed(one: Platform, github: GitHub) -> None:
    project = work(one, github, draft=True)
    seat = project.session()
    seat.change("a.txt", "a\n", "feat: a")
    number = seat.pull_request(title="feat: something", body="Because.")[1]["number"]
    grace = github.colleague("grace")
    theirs = grace.pull(project.slug, number)
    assert (theirs["draft"], theirs["title"]) == (True, "feat: something")
    assert "Because." in theirs["body"]
    assert project.does(number, "ready")["draft"] is False
    assert grace.pull(project.slug, number)["draft"] is False
    assert project.does(number, "close")["state"] == "closed"
    grace.reopen(project.slug, number)
    assert project.pull(number, refresh=True)["state"] == "open"
    assert seat.events("pull_request.reopened")


@pytest.mark.slow
def test_conflicts_are_told_file_by_file(one: Platform, github: GitHub) -> None:
    project = work(one, github)
    seat = project.session()
    seat.execute("sed -i s/two/zwei/ src/data.txt; echo mine > both.txt; rm src/app.py")
    ours = seat.git("commit", message="feat: ours")["commit"]
    project.repository.commit(
        {"src/data.txt": "one\ndeux\nthree\n", "both.txt": "theirs\n", "src/app.py": "print('changed')\n"},
        "feat: theirs",
    )
    found = seat.git("update", how="check")
    assert {conflict["path"] for conflict in found["conflicts"]} == {"src/data.txt", "both.txt", "src/app.py"}
    for how in ("rebase", "merge"):
        told = problem(seat.ask("update", how=how))
        assert (told["status"], told["code"]) == (409, "conflicts")
        assert {file["path"]: bool(file["kind"]) for file in told["files"]} == {
            "src/data.txt": True,
            "both.txt": True,
            "src/app.py": True,
        }
        assert set(told["choices"]) >= {"give_up", "agent"}
        assert seat.execute("git rev-parse HEAD; git status --porcelain").strip() == ours, "nothing was changed"
    seat.git("update", how="agent")
    assert "<<<<<<<" in seat.execute("cat src/data.txt")
    assert ok(seat.client.get(f"/git/{seat.sandbox}/status"))["underWay"]
    seat.git("update", how="give_up")
    assert seat.execute("git rev-parse HEAD; git status --porcelain").strip() == ours

    # without a conflict it is brought in
    other = project.session("Other")
    other.change("other.txt", "other\n", "feat: other")
    project.repository.commit({"late.txt": "late\n"}, "feat: late")
    other.git("update", how="rebase")
    assert other.execute("cat late.txt other.txt") == "late\nother\n"
    other.git("push")
    assert project.repository.is_ancestor("main", other.checkout()["branch"])


def test_what_was_not_committed_survives_its_sandbox(one: Platform, github: GitHub) -> None:
    """Kept before a pause and before the end, shown while it sleeps, and put back into a new sandbox."""
    project = work(one, github)
    seat = project.session()
    commit = seat.change("done.txt", "done\n", "feat: done")
    seat.execute(
        "echo staged > staged.txt; git add staged.txt; echo loose > loose.txt; echo four >> src/data.txt; rm README.md"
    )
    before = seat.execute("git status --porcelain")
    ok(seat.client.post(f"/sandboxes/{seat.sandbox}/pause"))
    asleep = ok(seat.client.get(f"/git/{seat.sandbox}/status"))
    assert asleep["live"] is False
    assert {entry["path"] for entry in asleep["entries"]} == {"staged.txt", "loose.txt", "src/data.txt", "README.md"}
    assert ok(seat.client.get(f"/git/{seat.sandbox}/history"))["items"][0]["id"] == commit
    diff = ok(seat.client.get(f"/git/{seat.sandbox}/diff", params={"against": "head"}))
    assert {file["path"] for file in diff["files"]} == {"staged.txt", "loose.txt", "src/data.txt", "README.md"}
    assert ok(seat.client.get(f"/sandboxes/{seat.sandbox}"))["status"] == "paused", "to look does not wake"
    assert seat.execute("cat loose.txt") == "loose\n"
    seat.execute("echo later > later.txt")
    ok(seat.client.delete(f"/sandboxes/{seat.sandbox}"))
    kept = ok(seat.client.get(f"/sessions/{seat.id}/checkpoints"))["items"]
    assert {"pause", "destroy"} <= {one["reason"] for one in kept}
    newest = kept[0]
    assert (newest["head"], newest["changed"]) == (commit, 5)
    restored = ok(seat.client.post("/git/restore", json={"checkpointId": newest["id"]}), 200)
    again = Seat(one, seat.id, restored["sandboxId"])
    assert again.sandbox != seat.sandbox
    assert ok(again.client.get(f"/sessions/{seat.id}"))["sandboxId"] == again.sandbox
    status = again.execute("git status --porcelain").splitlines()
    assert sorted(status) == sorted([*before.splitlines(), "?? later.txt"])
    assert again.execute("cat staged.txt loose.txt later.txt; tail -1 src/data.txt") == "staged\nloose\nlater\nfour\n"
    assert again.checkout()["branch"] == newest["branch"]
    again.git("commit", message="feat: the rest")
    assert again.git("push")["commits"] == 2


def test_who_may_not_see_a_project_sees_nothing_of_it(one: Platform, github: GitHub) -> None:
    project = work(one, github)
    seat = project.session()
    seat.change("a.txt", "a\n", "feat: a")
    number = seat.pull_request()[1]["number"]
    client = _stranger(one)
    for path in (
        f"/git/{seat.sandbox}",
        f"/git/{seat.sandbox}/diff",
        f"/git/{seat.sandbox}/status",
        f"/projects/{project.id}/credentials",
        f"/projects/{project.id}/compare?base=main&head=main",
        f"/github/pull-requests/{number}?projectId={project.id}",
        f"/sessions/{seat.id}/pull-request",
    ):
        assert client.get(path).status_code == 404, path
    assert ok(client.get("/git/operations"))["items"] == []
    assert ok(client.get("/github/pull-requests"))["items"] == []
    for path in ("/git/push", "/git/commit", "/github/pull-requests"):
        body: dict[str, Any] = {"sandboxId": seat.sandbox, **({"message": "feat: x"} if path == "/git/commit" else {})}
        assert client.post(path, json=body).status_code == 404, path


def _stranger(platform: Platform) -> httpx.Client:
    """Somebody who has nothing to do with any of it."""
    who = {"name": "eve", "password": "correct horse battery"}
    ok(platform.client.post("/users", json={**who, "role": "member"}), 201)
    with httpx.Client(base_url=f"{platform.url}/api/v1", headers={"X-Sandyard-CSRF": "1"}) as browser:
        ok(browser.post("/login", json=who))
        token = ok(browser.post("/tokens", json={"name": "test"}), 201)["value"]
    client = platform.client
    client.headers["Authorization"] = f"Bearer {token}"
    assert ok(client.get("/me"))["user"]["name"] == "eve"
    return client


@pytest.mark.slow
def test_tags_branches_and_single_files(one: Platform, github: GitHub) -> None:
    project = work(one, github)
    seat = project.session()
    seat.execute("echo a > a.txt; echo b > b.txt; echo junk > src/app.py")
    seat.git("discard", paths=["src/app.py"])
    assert seat.execute("cat src/app.py") == "print('hello')\n"
    seat.git("stage", paths=["a.txt"])
    first = seat.git("commit", message="feat: a alone", everything=False)["commit"]
    assert seat.execute("git show --stat --format= HEAD").split()[0] == "a.txt"
    early = problem(seat.ask("tag", name="v1.0.0", message="First.", push=True))
    assert "Push the branch first" in early["detail"]
    seat.git("push")
    seat.git("tag", name="v1.0.0", message="First.", push=True)
    assert project.repository.resolve("v1.0.0") == first
    seat.git("branch", name="other-name")
    seat.change("c.txt", "c\n", "feat: c")
    assert seat.git("push")["branch"] == "other-name"
    assert project.repository.log("other-name")[:2] == ["feat: c", "feat: a alone"]
    compared = ok(seat.client.get(f"/projects/{project.id}/compare", params={"base": "main", "head": "other-name"}))
    assert [one["subject"] for one in compared["commits"]] == ["feat: c", "feat: a alone"]
    assert json.dumps(compared["diff"]).count('"path"') == 3
