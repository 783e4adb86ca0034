"""A card becomes a pull request: with the demo agent, a real engine, a real git server and a GitHub API nobody here wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.board import add, configure
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import problem, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(300)
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "1"}


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


def test_from_a_card_to_a_merge(platform: Platform, github: GitHub) -> None:
    """Task → edit → tests fail → mended → commit → pull request → changes requested → second commit → merged → done."""
    project = work(platform, github)
    configure(project, verify={"command": "grep -q four src/data.txt", "fixes": 1}, tasks={"finished": "destroy"})
    words = "Count further\ncreate NEW.md: hello\nappend src/data.txt: four\nrun: wc -l src/data.txt\nsay: counted"
    card = add(project, words)
    attempt = card.rests("in_review")
    assert attempt["verified"]
    assert (attempt["diff"]["files"], attempt["agent"]) == (2, "demo")
    assert [step["name"] for step in attempt["steps"]] == [
        "setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request",
    ]  # fmt: skip
    assert card.get()["status"] == "in_review"
    pull = card.pull()
    branch = f"task/count-further-{card.id[-4:]}"
    assert pull["headBranch"] == branch
    assert project.repository.read(branch, "src/data.txt") == b"one\ntwo\nthree\nfour\n"
    assert "counted" in card.said(attempt["sessionId"])
    done = ok(card.client.get("/events/history", params={"sessionId": attempt["sessionId"], "limit": 200}))["items"]
    pushes = [one for one in done if one["kind"] == "git.completed" and one["data"]["operation"] == "push"]
    assert len(pushes) == 1, "the pull request is of what was pushed before"

    refused = problem(card.move("in_progress"))
    assert "feedback" in refused["detail"].lower()
    ok(card.move("in_progress", feedback="create SECOND.md: more"))
    assert card.rests("in_review", round_=2)["round"] == 2
    assert project.repository.read(branch, "SECOND.md") == b"more\n"
    assert len(project.repository.log(f"main..{branch}")) == 2
    assert len(github.colleague("grace").pulls(project.slug, "all")) == 1

    grace = github.colleague("grace")
    grace.request_changes(project.slug, pull["number"], "create THIRD.md: asked for in review")
    assert card.rests("in_review", round_=3)["round"] == 3
    assert project.repository.read(branch, "THIRD.md") is not None

    ok(card.client.post(f"/github/pull-requests/{pull['number']}/merge", json={"projectId": project.id}))
    until(lambda: card.get()["status"] == "done")
    assert card.attempt()["status"] == "merged"
    sandbox = ok(card.client.get(f"/sessions/{attempt['sessionId']}"))["sandboxId"]
    until(lambda: ok(card.client.get(f"/sandboxes/{sandbox}"))["status"] == "destroyed")
    assert "counted" in card.said(attempt["sessionId"])


def test_what_fails_goes_back_to_the_agent(platform: Platform, github: GitHub) -> None:
    """And when it stays so, the task fails with what was found; once more goes on with the work that is there."""
    project = work(platform, github)
    check = "mkdir build; date >build/log; echo checked >>README.md; echo FAIL: test_div; grep -q fixed src/data.txt"
    configure(project, verify={"command": check, "fixes": 1})
    fixed = add(project, "Divide\nappend src/data.txt: broken\nfix: replace src/data.txt: broken -> fixed")
    attempt = fixed.rests("in_review")
    assert [(step["name"], step["outcome"]) for step in attempt["steps"]][3:] == [
        ("agent", "succeeded"), ("verify", "fixed"), ("agent", "succeeded"), ("verify", "succeeded"), ("commit", "succeeded"),
        ("push", "succeeded"), ("pull_request", "succeeded"),
    ]  # fmt: skip
    assert "FAIL: test_div" in fixed.transcript(attempt["sessionId"])
    branch = fixed.pull()["headBranch"]
    changed = project.repository.git("diff", "--name-only", f"main..{branch}").split()
    assert changed == ["src/data.txt"], "what the check wrote is not committed"
    assert project.repository.read(branch, "src/data.txt").endswith(b"\nfixed\n")

    configure(project, verify={"command": "test -f wanted || { echo there is no wanted; false; }", "fixes": 1})
    card = add(project, "Make something else\ncreate other: x")
    attempt = card.rests("failed")
    assert attempt["error"] is not None
    assert "still fails" in attempt["error"]
    assert "there is no wanted" in card.transcript(attempt["sessionId"])
    outcomes = [(step["name"], step["outcome"]) for step in attempt["steps"]]
    assert outcomes.count(("verify", "failed")) == 2
    assert outcomes.count(("agent", "succeeded")) == 2
    assert "still fails" in card.get()["error"]

    configure(project, verify={"command": "test -f other", "fixes": 0})
    ok(card.client.post(f"/tasks/{card.id}/retry"))
    assert card.rests("in_review", round_=2)["sessionId"] == attempt["sessionId"]


def test_questions_and_permissions(platform: Platform, github: GitHub) -> None:
    project = work(platform, github)
    configure(project, agent={"permissions": {"mode": "ask"}})
    card = add(
        project,
        "Ask first\nask: Which colour?\ncreate colour.txt: {answer}\npermit: delete everything\ncreate no.txt: no",
    )
    (ask,) = until(card.asks)
    assert (ask["kind"], "colour" in ask["title"].lower()) == ("question", True)
    assert card.attempt()["status"] == "running"
    platform.restart()  # a question outlives the platform
    (ask,) = card.asks()
    ok(card.client.post(f"/asks/{ask['id']}/answer", json={"content": {"answer": "blue"}}))
    (ask,) = until(card.asks)
    assert ask["kind"] == "permission"
    ok(card.client.post(f"/asks/{ask['id']}/answer", json={"decision": "reject"}))
    attempt = card.rests("in_review")
    branch = card.pull()["headBranch"]
    assert b"blue" in project.repository.read(branch, "colour.txt")
    assert "no.txt" not in project.repository.git("ls-tree", "-r", "--name-only", branch)
    audit = ok(card.client.get("/audit", params={"limit": 100}))["items"]
    assert [entry for entry in audit if entry["action"] == "ask.answer"], "answers are in the audit"
    assert attempt["round"] == 1


FILL = """import os, subprocess, time
end = time.monotonic() + 300
if os.fork():  # the other process also takes the slots that this one and those of the test free
    while not os.path.exists("/tmp/go") and time.monotonic() < end:
        time.sleep(0.1)
    os._exit(0)
while time.monotonic() < end:
    try:
        subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except BlockingIOError:
        time.sleep(0.05)
"""


@pytest.mark.slow  # filling the process table takes a while
def test_processes_left_by_a_turn_do_not_block_its_commit(platform: Platform, github: GitHub) -> None:
    """The processes take all process slots of the sandbox, so that neither git nor anything else can start."""
    project = work(platform, github, files={"fill.py": FILL})
    card = add(project, "Fill it\ncreate kept.txt: kept\nrun: python3 fill.py")
    until(lambda: card.attempt()["sandboxId"])
    until(lambda: "kept.txt" in json.dumps(card.parts(card.attempt()["sessionId"])))
    sandbox = f"/sandboxes/{card.attempt()['sandboxId']}"

    def refused() -> str | None:
        answer = ok(card.client.post(f"{sandbox}/execute", json={"command": "true"}))
        return str(answer["error"]) if answer["status"] == "not_started" else None

    assert "cannot start another one" in until(refused, 90)
    ok(card.client.put(f"{sandbox}/files", params={"path": "/tmp/go"}, content=b""))
    attempt = card.rests("in_review")
    assert project.repository.read(card.pull()["headBranch"], "kept.txt") == b"kept\n"
    (step,) = (step for step in attempt["steps"] if step["name"] == "agent")
    assert step["detail"]["leftovers"] >= 50


def test_stopped(platform: Platform, github: GitHub) -> None:
    """In mid-turn; nothing is pushed, what was done is kept, and it can go on."""
    project = work(platform, github)
    card = add(project, "Work long\ncreate first.txt: 1\nsleep: 600\ncreate second.txt: 2")
    until(lambda: card.attempt()["sandboxId"])
    until(lambda: "first.txt" in json.dumps(card.parts(card.attempt()["sessionId"])))
    ok(card.client.post(f"/tasks/{card.id}/stop"))
    attempt = card.rests("cancelled")
    assert card.get()["status"] == "cancelled"
    assert len(project.repository.branches()) == 1
    turns = ok(card.client.get(f"/sessions/{attempt['sessionId']}/turns"))["items"]
    assert [turn["status"] for turn in turns] == ["cancelled"]


def test_failures_are_honest(platform: Platform, github: GitHub) -> None:
    project = work(platform, github)
    failing = add(project, "Fail\nfail: I cannot do this")
    crashing = add(project, "Crash\ncreate before.txt: x\ncrash")
    idle = add(project, "Do nothing\nsay: nothing to do")
    body = {"projectId": project.id, "title": "x", "agent": "nobody-has-this"}
    unknown = problem(project.client.post("/tasks", json=body))
    assert "demo" in unknown["detail"], "it names the agents there are"
    unable = add(project, "Think", agent="codex").rests("failed")
    assert (unable["errorCode"], [step["name"] for step in unable["steps"]]) == ("no_model", ["setup"])
    assert "I cannot do this" in failing.rests("failed")["error"]
    assert crashing.rests("failed")["errorCode"] == "agent_died"
    assert "changed nothing" in idle.rests("failed")["error"]
    ok(crashing.move("backlog"))


@pytest.mark.slow  # tests/web/test_changes.py picks one of two
def test_attempts_side_by_side(platform: Platform, github: GitHub) -> None:
    """Two from one snapshot; one is picked and becomes the only pull request."""
    project = work(platform, github)
    words = "Try\nrun: echo $RANDOM$RANDOM > number.txt"
    card = add(project, words, attempts=[{"agent": "demo"}] * 2)
    card.rests("ready")
    attempts = card.attempts()
    assert [one["number"] for one in attempts] == [1, 2]
    assert len({one["sessionId"] for one in attempts}) == 2
    names = [step["detail"]["branch"] for one in attempts for step in one["steps"] if step["name"] == "checkout"]
    first = f"task/try-{card.id[-4:]}"
    assert names == [first, f"{first}-2"], "as the attempts are numbered, whoever is first"
    assert card.get()["status"] == "in_review"
    assert len(project.repository.branches()) == 1
    ok(card.client.post(f"/tasks/{card.id}/pick", json={"attemptId": attempts[1]["id"]}))
    until(lambda: card.attempts()[1]["status"] == "in_review")
    assert [one["status"] for one in card.attempts()] == ["archived", "in_review"]
    assert len(github.colleague("grace").pulls(project.slug, "all")) == 1
    assert card.said(attempts[0]["sessionId"]), "what was said is kept"


@pytest.mark.slow  # tests/integration/platform/domain/preparations has it
def test_setup_runs_once(platform: Platform, github: GitHub) -> None:
    """For all tasks of a base commit; what it made is there for each."""
    files = {"README.md": "x\n", ".gitignore": "made\n", ".sandyard/setup.sh": "date +%s%N > made\nsleep 1\n"}
    project = work(platform, github, files=files)
    configure(project, tasks={"parallel": 4})
    cards = [add(project, f"Number {number}\nrun: cp made of-{number}.txt") for number in range(2)]
    contents = set()
    for number, card in enumerate(cards):
        card.rests("in_review")
        contents.add(project.repository.read(card.pull()["headBranch"], f"of-{number}.txt"))
    assert len(contents) == 1
    made = ok(project.client.get(f"/projects/{project.id}/preparations"))["items"]
    assert [one["status"] for one in made] == ["ready"]
