"""Test faults between the platform and the forge: each operation succeeds or fails with one clear error, and retrying is safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from sandyard.kit.ids import make_random_id
from tests.acceptance.project_client import ForgeProject, Session, check_problem, create_forge_project
from tests.forge import GitHub, forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.timeout(400)
SETTINGS = {"RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2", "FORGE_POLL_S": "2", "CREATES_PER_MINUTE": "1000"}
LARGE = 3_000_000
"""Size of a file that makes a push take several chunks."""


@pytest.fixture(scope="module")
def module_forge() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def github(module_forge: GitHub) -> Iterator[GitHub]:
    yield module_forge
    module_forge.faults.clear()


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, None, **SETTINGS) as platform:
        yield platform


@pytest.fixture
def project(platform: Platform, github: GitHub) -> ForgeProject:
    return create_forge_project(platform, github)


@pytest.fixture
def session(project: ForgeProject) -> Session:
    """A session with a commit that is not pushed."""
    session = project.create_session()
    session.commit_file("new.txt", "new\n", "feat: new")
    return session


@pytest.fixture(scope="module")
def shared_session(platform: Platform, module_forge: GitHub) -> tuple[ForgeProject, Session]:
    """A project and session for tests that only push."""
    project = create_forge_project(platform, module_forge)
    return project, project.create_session()


@pytest.fixture
def unpushed(shared_session: tuple[ForgeProject, Session], github: GitHub) -> tuple[ForgeProject, Session]:
    """The shared project and session, with one more commit that is not pushed."""
    name = make_random_id()
    shared_session[1].commit_file(f"{name}.txt", "new\n", f"feat: {name}")
    return shared_session


def assert_pushed_once(project: ForgeProject, session: Session) -> None:
    """Check that every commit was pushed once, and that pushing again changes nothing."""
    branch = session.checkout()["branch"]
    head = session.execute("git rev-parse HEAD").strip()
    assert project.repository.head(branch) == head
    assert session.run_git("push")["commit"] == head
    assert (
        project.repository.log(f"main..{branch}") == session.execute("git log --format=%s origin/main..").splitlines()
    )


def _mark_slow_except(names: Iterable[str], *always: str) -> list[Any]:
    """Mark all names as slow except those in `always`, which also run in `make test`."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.slow) for name in names]


PUSH_FAULTS: dict[str, Callable[[GitHub], None]] = {
    "502 twice": lambda github: github.faults.answer(502, times=2, on="git"),
    "503 during the push": lambda github: github.faults.answer(503, on="push"),
    "429": lambda github: github.faults.answer(429, on="push", headers={"Retry-After": "1"}),
    "connection cut": lambda github: github.faults.cut("push", after=300),
    "connection cut twice": lambda github: github.faults.cut("push", after=300, times=2),
    "response lost after the push": lambda github: github.faults.cut_answer(),
    "slow": lambda github: github.faults.slow(3, on="push"),
}


@pytest.mark.parametrize("name", _mark_slow_except(PUSH_FAULTS, "response lost after the push"))
def test_a_push_succeeds_despite_transient_faults(
    unpushed: tuple[ForgeProject, Session], github: GitHub, name: str
) -> None:
    project, session = unpushed
    PUSH_FAULTS[name](github)
    session.run_git("push")
    assert github.faults.left == 0
    assert_pushed_once(project, session)


@pytest.mark.parametrize("name", _mark_slow_except(["502", "cut", "unanswered"], "cut"))
def test_a_push_with_lasting_faults_fails_with_an_error(
    unpushed: tuple[ForgeProject, Session], github: GitHub, name: str
) -> None:
    project, session = unpushed
    if name == "502":
        github.faults.answer(502, times=1000, on="git")
    elif name == "cut":
        github.faults.cut("push", after=300, times=1000)
    else:
        github.faults.cut("refs", after=10, times=1000)
    error = check_problem(session.post_git("push"))
    assert (error["code"], error["status"]) == ("remote_unreachable", 502)
    github.faults.clear()
    session.run_git("push")
    assert_pushed_once(project, session)


def test_a_clone_succeeds_after_a_broken_connection(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github, files={"large.bin": os.urandom(LARGE), "README.md": "# x\n"})
    github.faults.cut("fetch", after=LARGE // 2)
    session = project.create_session()
    assert github.faults.left == 0
    assert session.execute("ls; git fsck --no-dangling; git status --porcelain") == "README.md\nlarge.bin\n"


def test_an_expired_token_can_be_replaced(project: ForgeProject, session: Session, github: GitHub) -> None:
    project.token.expire()
    error = check_problem(session.post_git("push"))
    assert error["code"] == "remote_refused"
    assert project.token.text not in str(error)
    error = check_problem(session.client.post("/github/pull-requests", json={"sandboxId": session.sandbox}))
    assert error["code"] == "forge_unauthorized"  # the permission is checked before anything is pushed
    tested = ok(session.client.post(f"/projects/{project.id}/test"))
    assert tested["ok"] is False
    project.set_credentials(token=github.tokens.make("sandyard-bot").text)
    assert ok(session.client.post(f"/projects/{project.id}/test"))["ok"]
    session.run_git("push")
    assert_pushed_once(project, session)
    assert session.open_pull_request()[0] == 201


def test_a_token_without_permission_is_refused(project: ForgeProject, session: Session, github: GitHub) -> None:
    project.set_credentials(token=github.tokens.make("reader", write=False).text)
    error = check_problem(session.post_git("push"))
    assert error["code"] == "remote_refused"
    project.set_credentials(token=github.tokens.make("stranger", repositories=["acme/other"]).text)
    assert check_problem(session.post_git("push"))["code"] == "remote_missing"
    project.set_credentials(token=project.token.text)
    session.run_git("push")
    assert_pushed_once(project, session)


def test_a_branch_changed_on_the_forge_is_not_overwritten(
    project: ForgeProject, session: Session, github: GitHub
) -> None:
    session.run_git("push")
    branch = session.checkout()["branch"]
    session.commit_file("more.txt", "more\n", "feat: more")
    their_commits: list[str] = []
    github.faults.before_push(
        lambda: their_commits.append(project.repository.commit({"theirs.txt": "x\n"}, "fix: x", branch=branch))
    )
    error = check_problem(session.post_git("push"))
    assert (error["status"], error["code"]) == (409, "branch_moved")
    assert project.repository.head(branch) == their_commits[0], "the push must not be forced"
    assert check_problem(session.post_git("push"))["code"] == "branch_moved"
    session.run_git("update", how="merge", source="branch")
    session.run_git("push")
    assert project.repository.is_ancestor(their_commits[0], branch)
    assert session.execute("cat theirs.txt more.txt") == "x\nmore\n"


def test_a_push_rejected_by_the_remote_shows_the_reason(unpushed: tuple[ForgeProject, Session]) -> None:
    project, session = unpushed
    project.repository.reject("Not on Sundays.")
    error = check_problem(session.post_git("push"))
    assert error["code"] == "remote_rejected"
    assert "Not on Sundays." in error["detail"]
    project.repository.accept()
    session.run_git("push")
    assert_pushed_once(project, session)


API_FAULTS: dict[str, Callable[[GitHub], None]] = {
    "502 twice": lambda github: github.faults.answer(502, times=2, on="api", path="/pulls"),
    "response lost after creation": lambda github: github.faults.cut_answer(on="api", path="/pulls", method="POST"),
    "cut": lambda github: github.faults.cut("api", path="/pulls"),
    "rate limit exhausted": lambda github: github.limit.exhaust(reset_in_s=3),
    "secondary rate limit": lambda github: github.faults.answer(
        403,
        on="api",
        path="/pulls",
        headers={"Retry-After": "1"},
        body=b'{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}',
    ),
}


@pytest.mark.parametrize("name", _mark_slow_except(API_FAULTS, "response lost after creation"))
def test_a_pull_request_is_opened_once(project: ForgeProject, session: Session, github: GitHub, name: str) -> None:
    """The first request succeeds, or fails with one clear error and can be repeated."""
    API_FAULTS[name](github)
    response = session.client.post("/github/pull-requests", json={"sandboxId": session.sandbox})
    if not response.is_success:
        check_problem(response)
    number = until(
        lambda: session.client.post("/github/pull-requests", json={"sandboxId": session.sandbox}).json().get("number")
    )
    pulls = github.colleague("grace").pulls(project.slug, "all")
    assert [pull["number"] for pull in pulls] == [number]
    rows = ok(session.client.get("/github/pull-requests", params={"projectId": project.id}))["items"]
    assert [row["number"] for row in rows] == [number]
    assert [event["data"]["number"] for event in session.list_events("pull_request.opened")] == [number]


@pytest.mark.parametrize("fault", _mark_slow_except(["502", "unanswered", "limit"], "unanswered"))
def test_a_merge_is_done_once(project: ForgeProject, session: Session, github: GitHub, fault: str) -> None:
    number = session.open_pull_request()[1]["number"]
    if fault == "502":
        github.faults.answer(502, on="api", path="/merge")
    elif fault == "unanswered":
        github.faults.cut_answer(on="api", path="/merge")
    else:
        github.limit.exhaust(reset_in_s=3)

    def is_merged() -> bool:
        response = session.client.post(f"/github/pull-requests/{number}/merge", json={"projectId": project.id})
        if not response.is_success:
            check_problem(response)
        return response.is_success and response.json()["state"] == "merged"

    until(is_merged)
    assert len(project.repository.log("main")) == 2
    until(lambda: session.checkout()["branch"] not in project.repository.branches())


# The platform is killed -------------------------------------------------------------------------------------------------


def run_in_background(request: Callable[[], Any]) -> threading.Thread:
    """Run `request` in a thread. Its connection breaks when the platform is killed."""

    def run() -> None:
        try:
            request()
        except httpx.TransportError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("arrives", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_platform_is_killed_during_a_push(platform: Platform, github: GitHub, arrives: bool) -> None:
    project = create_forge_project(platform, github)
    session = project.create_session()
    session.execute(f"head -c {LARGE} /dev/urandom > large.bin")
    head = session.run_git("commit", message="feat: large")["commit"]
    gate = github.faults.hold("push", after=LARGE // 2)
    request = run_in_background(lambda: session.post_git("push"))
    gate.wait()
    platform.kill()
    request.join()
    gate.release() if arrives else gate.cut()
    platform.start()
    until(lambda: all(row["status"] in ("completed", "failed") for row in _operations(session)))
    assert session.run_git("push")["commit"] == head
    assert_pushed_once(project, session)
    assert session.open_pull_request()[0] == 201


@pytest.mark.slow  # the push and the pull request cover the same recovery
def test_the_platform_is_killed_during_a_clone(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github, files={"large.bin": os.urandom(LARGE), "README.md": "# x\n"})
    gate = github.faults.hold("fetch", after=LARGE // 2)
    session = project.start_session()
    gate.wait()
    platform.kill()
    gate.cut()
    platform.start()
    session.wait_for_checkout()
    assert session.execute("ls; git fsck --no-dangling; git status --porcelain") == "README.md\nlarge.bin\n"
    session.commit_file("new.txt", "new\n", "feat: new")
    session.run_git("push")
    assert_pushed_once(project, session)


def test_the_platform_is_killed_while_it_opens_a_pull_request(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github)
    session = project.create_session()
    session.commit_file("new.txt", "new\n", "feat: new")
    gate = github.faults.hold("api", path="/pulls", method="POST")
    request = run_in_background(session.open_pull_request)
    gate.wait()
    platform.kill()
    request.join()
    gate.release()
    grace = github.colleague("grace")
    until(lambda: grace.pulls(project.slug))
    platform.start()
    number = session.open_pull_request()[1]["number"]
    assert [pull["number"] for pull in grace.pulls(project.slug, "all")] == [number]
    assert len(ok(session.client.get("/github/pull-requests", params={"projectId": project.id}))["items"]) == 1


def _operations(session: Session) -> list[dict[str, Any]]:
    operations = ok(session.client.get("/git/operations", params={"sandboxId": session.sandbox}))["items"]
    assert operations
    return list(operations)
