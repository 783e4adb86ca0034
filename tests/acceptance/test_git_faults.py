"""Whatever breaks between the platform and the forge: it ends well or in one clear error, and to ask again is safe."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import httpx
import pytest

from sandyard.kit.ids import random_id
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Seat, Work, problem, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(400)
SETTINGS = {"RECONCILE_EVERY_S": "2", "HEALTH_EVERY_S": "2", "FORGE_POLL_S": "2", "CREATES_PER_MINUTE": "1000"}
LARGE = 3_000_000
"""Of a file that makes a push one in several pieces."""


@pytest.fixture(scope="module")
def forge_() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def github(forge_: GitHub) -> Iterator[GitHub]:
    yield forge_
    forge_.faults.clear()


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, None, **SETTINGS) as platform:
        yield platform


@pytest.fixture
def project(platform: Platform, github: GitHub) -> Work:
    return work(platform, github)


@pytest.fixture
def seat(project: Work) -> Seat:
    """With a commit that is not pushed."""
    seat = project.session()
    seat.change("new.txt", "new\n", "feat: new")
    return seat


@pytest.fixture(scope="module")
def shared(platform: Platform, forge_: GitHub) -> tuple[Work, Seat]:
    """For tests that push, and leave nothing else behind."""
    project = work(platform, forge_)
    return project, project.session()


@pytest.fixture
def unpushed(shared: tuple[Work, Seat], github: GitHub) -> tuple[Work, Seat]:
    """The same, with one more commit that is not pushed."""
    name = random_id()
    shared[1].change(f"{name}.txt", "new\n", f"feat: {name}")
    return shared


def pushed(project: Work, seat: Seat) -> None:
    """Once, all of it, and asking again changes nothing."""
    branch = seat.checkout()["branch"]
    head = seat.execute("git rev-parse HEAD").strip()
    assert project.repository.head(branch) == head
    assert seat.git("push")["commit"] == head
    assert project.repository.log(f"main..{branch}") == seat.execute("git log --format=%s origin/main..").splitlines()


def _most(names: Iterable[str], *always: str) -> list[Any]:
    """Those in `always` run in `make test`, the others only in the long run."""
    return [name if name in always else pytest.param(name, marks=pytest.mark.slow) for name in names]


BREAKS: dict[str, Callable[[GitHub], None]] = {
    "502 twice": lambda github: github.faults.answer(502, times=2, on="git"),
    "503 in the push itself": lambda github: github.faults.answer(503, on="push"),
    "429": lambda github: github.faults.answer(429, on="push", headers={"Retry-After": "1"}),
    "cut in the middle": lambda github: github.faults.cut("push", after=300),
    "cut in the middle twice": lambda github: github.faults.cut("push", after=300, times=2),
    "arrived, but not told": lambda github: github.faults.cut_answer(),
    "slow": lambda github: github.faults.slow(3, on="push"),
}


@pytest.mark.parametrize("name", _most(BREAKS, "arrived, but not told"))
def test_a_push_gets_through(unpushed: tuple[Work, Seat], github: GitHub, name: str) -> None:
    project, seat = unpushed
    BREAKS[name](github)
    seat.git("push")
    assert github.faults.left == 0
    pushed(project, seat)


@pytest.mark.parametrize("name", _most(["502", "cut", "unanswered"], "cut"))
def test_a_push_that_does_not_get_through_says_so(unpushed: tuple[Work, Seat], github: GitHub, name: str) -> None:
    project, seat = unpushed
    if name == "502":
        github.faults.answer(502, times=1000, on="git")
    elif name == "cut":
        github.faults.cut("push", after=300, times=1000)
    else:
        github.faults.cut("refs", after=10, times=1000)
    told = problem(seat.ask("push"))
    assert (told["code"], told["status"]) == ("remote_unreachable", 502)
    github.faults.clear()
    seat.git("push")
    pushed(project, seat)


def test_a_clone_gets_through(platform: Platform, github: GitHub) -> None:
    project = work(platform, github, files={"large.bin": os.urandom(LARGE), "README.md": "# x\n"})
    github.faults.cut("fetch", after=LARGE // 2)
    seat = project.session()
    assert github.faults.left == 0
    assert seat.execute("ls; git fsck --no-dangling; git status --porcelain") == "README.md\nlarge.bin\n"


def test_a_token_that_runs_out(project: Work, seat: Seat, github: GitHub) -> None:
    project.token.expire()
    told = problem(seat.ask("push"))
    assert told["code"] == "remote_refused"
    assert project.token.text not in str(told)
    told = problem(seat.client.post("/github/pull-requests", json={"sandboxId": seat.sandbox}))
    assert told["code"] == "forge_unauthorized"  # the permission is looked at before anything is pushed
    tested = ok(seat.client.post(f"/projects/{project.id}/test"))
    assert tested["ok"] is False
    project.credentials(token=github.tokens.make("sandyard-bot").text)
    assert ok(seat.client.post(f"/projects/{project.id}/test"))["ok"]
    seat.git("push")
    pushed(project, seat)
    assert seat.pull_request()[0] == 201


def test_a_token_that_may_not(project: Work, seat: Seat, github: GitHub) -> None:
    project.credentials(token=github.tokens.make("reader", write=False).text)
    told = problem(seat.ask("push"))
    assert told["code"] == "remote_refused"
    project.credentials(token=github.tokens.make("stranger", repositories=["acme/other"]).text)
    assert problem(seat.ask("push"))["code"] == "remote_missing"
    project.credentials(token=project.token.text)
    seat.git("push")
    pushed(project, seat)


def test_a_branch_that_moved_under_us(project: Work, seat: Seat, github: GitHub) -> None:
    seat.git("push")
    branch = seat.checkout()["branch"]
    seat.change("more.txt", "more\n", "feat: more")
    theirs: list[str] = []
    github.faults.before_push(
        lambda: theirs.append(project.repository.commit({"theirs.txt": "x\n"}, "fix: x", branch=branch))
    )
    told = problem(seat.ask("push"))
    assert (told["status"], told["code"]) == (409, "branch_moved")
    assert project.repository.head(branch) == theirs[0], "nothing was forced"
    assert problem(seat.ask("push"))["code"] == "branch_moved"
    seat.git("update", how="merge", source="branch")
    seat.git("push")
    assert project.repository.is_ancestor(theirs[0], branch)
    assert seat.execute("cat theirs.txt more.txt") == "x\nmore\n"


def test_what_the_remote_rejects(unpushed: tuple[Work, Seat]) -> None:
    project, seat = unpushed
    project.repository.reject("Not on Sundays.")
    told = problem(seat.ask("push"))
    assert told["code"] == "remote_rejected"
    assert "Not on Sundays." in told["detail"]
    project.repository.accept()
    seat.git("push")
    pushed(project, seat)


API_BREAKS: dict[str, Callable[[GitHub], None]] = {
    "502 twice": lambda github: github.faults.answer(502, times=2, on="api", path="/pulls"),
    "made, but not told": lambda github: github.faults.cut_answer(on="api", path="/pulls", method="POST"),
    "cut": lambda github: github.faults.cut("api", path="/pulls"),
    "out of budget": lambda github: github.limit.exhaust(reset_in_s=3),
    "too quick": lambda github: github.faults.answer(
        403,
        on="api",
        path="/pulls",
        headers={"Retry-After": "1"},
        body=b'{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."}',
    ),
}


@pytest.mark.parametrize("name", _most(API_BREAKS, "made, but not told"))
def test_a_pull_request_is_opened_once(project: Work, seat: Seat, github: GitHub, name: str) -> None:
    """At once, or when asked again after one clear error."""
    API_BREAKS[name](github)
    answer = seat.client.post("/github/pull-requests", json={"sandboxId": seat.sandbox})
    if not answer.is_success:
        problem(answer)
    number = until(
        lambda: seat.client.post("/github/pull-requests", json={"sandboxId": seat.sandbox}).json().get("number")
    )
    found = github.colleague("grace").pulls(project.slug, "all")
    assert [pull["number"] for pull in found] == [number]
    rows = ok(seat.client.get("/github/pull-requests", params={"projectId": project.id}))["items"]
    assert [row["number"] for row in rows] == [number]
    assert [event["data"]["number"] for event in seat.events("pull_request.opened")] == [number]


@pytest.mark.parametrize("fault", _most(["502", "unanswered", "limit"], "unanswered"))
def test_a_merge_is_done_once(project: Work, seat: Seat, github: GitHub, fault: str) -> None:
    number = seat.pull_request()[1]["number"]
    if fault == "502":
        github.faults.answer(502, on="api", path="/merge")
    elif fault == "unanswered":
        github.faults.cut_answer(on="api", path="/merge")
    else:
        github.limit.exhaust(reset_in_s=3)

    def merged() -> bool:
        answer = seat.client.post(f"/github/pull-requests/{number}/merge", json={"projectId": project.id})
        if not answer.is_success:
            problem(answer)
        return answer.is_success and answer.json()["state"] == "merged"

    until(merged)
    assert len(project.repository.log("main")) == 2
    until(lambda: seat.checkout()["branch"] not in project.repository.branches())


# the platform itself dies -------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


def meanwhile(ask: Callable[[], Any]) -> threading.Thread:
    """Whoever asked is cut off with the platform."""

    def run() -> None:
        try:
            ask()
        except httpx.TransportError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    return thread


@pytest.mark.parametrize("arrives", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_platform_dies_in_the_middle_of_a_push(mortal: Platform, github: GitHub, arrives: bool) -> None:
    project = work(mortal, github)
    seat = project.session()
    seat.execute(f"head -c {LARGE} /dev/urandom > large.bin")
    head = seat.git("commit", message="feat: large")["commit"]
    gate = github.faults.hold("push", after=LARGE // 2)
    asking = meanwhile(lambda: seat.ask("push"))
    gate.wait()
    mortal.kill()
    asking.join()
    gate.release() if arrives else gate.cut()
    mortal.start()
    until(lambda: all(row["status"] in ("completed", "failed") for row in _operations(seat)))
    assert seat.git("push")["commit"] == head
    pushed(project, seat)
    assert seat.pull_request()[0] == 201


@pytest.mark.slow  # a push and a pull request are left to die in
def test_the_platform_dies_in_the_middle_of_a_clone(mortal: Platform, github: GitHub) -> None:
    project = work(mortal, github, files={"large.bin": os.urandom(LARGE), "README.md": "# x\n"})
    gate = github.faults.hold("fetch", after=LARGE // 2)
    seat = project.begin()
    gate.wait()
    mortal.kill()
    gate.cut()
    mortal.start()
    seat.mark_ready()
    assert seat.execute("ls; git fsck --no-dangling; git status --porcelain") == "README.md\nlarge.bin\n"
    seat.change("new.txt", "new\n", "feat: new")
    seat.git("push")
    pushed(project, seat)


def test_the_platform_dies_while_it_opens_a_pull_request(mortal: Platform, github: GitHub) -> None:
    project = work(mortal, github)
    seat = project.session()
    seat.change("new.txt", "new\n", "feat: new")
    gate = github.faults.hold("api", path="/pulls", method="POST")
    asking = meanwhile(seat.pull_request)
    gate.wait()
    mortal.kill()
    asking.join()
    gate.release()
    grace = github.colleague("grace")
    until(lambda: grace.pulls(project.slug))
    mortal.start()
    number = seat.pull_request()[1]["number"]
    assert [pull["number"] for pull in grace.pulls(project.slug, "all")] == [number]
    assert len(ok(seat.client.get("/github/pull-requests"))["items"]) == 1


def _operations(seat: Seat) -> list[dict[str, Any]]:
    found = ok(seat.client.get("/git/operations", params={"sandboxId": seat.sandbox}))["items"]
    assert found
    return list(found)
