"""Test tasks from creation to pull request, with the demo agent, a real engine, a real git server and a third-party GitHub API emulator."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

import pytest
from e2b import Template

from sandyard.engine.drivers.gvisor.runsc import Runsc
from sandyard.kit.errors import UnsupportedError
from sandyard.kit.ids import make_random_id
from tests.acceptance.project_client import Session, check_problem, create_forge_project
from tests.acceptance.task_client import create_task, update_settings
from tests.forge import GitHub, forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, until

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


def test_a_task_from_creation_to_merge(platform: Platform, github: GitHub) -> None:
    """Task → edit → check → commit → pull request → feedback → second commit → changes requested → third commit → merged → done."""
    project = create_forge_project(platform, github)
    update_settings(project, verify={"command": "grep -q four src/data.txt", "fixes": 1}, tasks={"finished": "destroy"})
    text = "Count further\ncreate NEW.md: hello\nappend src/data.txt: four\nrun: wc -l src/data.txt\nsay: counted"
    task = create_task(project, text)
    attempt = task.wait_until_settled("in_review")
    assert attempt["verified"]
    assert (attempt["diff"]["files"], attempt["agent"]) == (2, "demo")
    assert [step["name"] for step in attempt["steps"]] == [
        "setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request",
    ]  # fmt: skip
    assert task.get()["status"] == "in_review"
    pull = task.get_pull_request()
    branch = f"task/count-further-{task.id[-4:]}"
    assert pull["headBranch"] == branch
    assert project.repository.read(branch, "src/data.txt") == b"one\ntwo\nthree\nfour\n"
    assert "counted" in task.read_agent_text(attempt["sessionId"])
    events = ok(task.client.get("/events/history", params={"sessionId": attempt["sessionId"], "limit": 200}))["items"]
    pushes = [item for item in events if item["kind"] == "git.completed" and item["data"]["operation"] == "push"]
    assert len(pushes) == 1, "opening the pull request must not push again"

    refusal = check_problem(task.move("in_progress"))
    assert "feedback" in refusal["detail"].lower()
    ok(task.move("in_progress", feedback="create SECOND.md: more"))
    assert task.wait_until_settled("in_review", round_=2)["round"] == 2
    assert project.repository.read(branch, "SECOND.md") == b"more\n"
    assert len(project.repository.log(f"main..{branch}")) == 2
    assert len(github.colleague("grace").pulls(project.slug, "all")) == 1

    grace = github.colleague("grace")
    grace.request_changes(project.slug, pull["number"], "create THIRD.md: asked for in review")
    assert task.wait_until_settled("in_review", round_=3)["round"] == 3
    assert project.repository.read(branch, "THIRD.md") is not None

    ok(task.client.post(f"/github/pull-requests/{pull['number']}/merge", json={"projectId": project.id}))
    until(lambda: task.get()["status"] == "done")
    assert task.get_attempt()["status"] == "merged"
    sandbox = ok(task.client.get(f"/sessions/{attempt['sessionId']}"))["sandboxId"]
    until(lambda: ok(task.client.get(f"/sandboxes/{sandbox}"))["status"] == "destroyed")
    assert "counted" in task.read_agent_text(attempt["sessionId"])


def test_a_failed_check_goes_back_to_the_agent(platform: Platform, github: GitHub) -> None:
    """If the verify command still fails, the task fails with its output; a retry continues with the existing work."""
    project = create_forge_project(platform, github)
    check = "mkdir build; date >build/log; echo checked >>README.md; echo FAIL: test_div; grep -q fixed src/data.txt"
    update_settings(project, verify={"command": check, "fixes": 1})
    fixed_task = create_task(project, "Divide\nappend src/data.txt: broken\nfix: replace src/data.txt: broken -> fixed")
    attempt = fixed_task.wait_until_settled("in_review")
    assert [(step["name"], step["outcome"]) for step in attempt["steps"]][3:] == [
        ("agent", "succeeded"), ("verify", "fixed"), ("agent", "succeeded"), ("verify", "succeeded"), ("commit", "succeeded"),
        ("push", "succeeded"), ("pull_request", "succeeded"),
    ]  # fmt: skip
    assert "FAIL: test_div" in fixed_task.read_transcript(attempt["sessionId"])
    branch = fixed_task.get_pull_request()["headBranch"]
    changed = project.repository.git("diff", "--name-only", f"main..{branch}").split()
    assert changed == ["src/data.txt"], "files written by the verify command must not be committed"
    assert project.repository.read(branch, "src/data.txt").endswith(b"\nfixed\n")

    update_settings(project, verify={"command": "test -f wanted || { echo there is no wanted; false; }", "fixes": 1})
    task = create_task(project, "Make something else\ncreate other: x")
    attempt = task.wait_until_settled("failed")
    assert attempt["error"] is not None
    assert "still fails" in attempt["error"]
    assert "there is no wanted" in task.read_transcript(attempt["sessionId"])
    outcomes = [(step["name"], step["outcome"]) for step in attempt["steps"]]
    assert outcomes.count(("verify", "failed")) == 2
    assert outcomes.count(("agent", "succeeded")) == 2
    assert "still fails" in task.get()["error"]

    update_settings(project, verify={"command": "test -f other", "fixes": 0})
    ok(task.client.post(f"/tasks/{task.id}/retry"))
    assert task.wait_until_settled("in_review", round_=2)["sessionId"] == attempt["sessionId"]


def test_questions_and_permission_requests_are_answered(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github)
    update_settings(project, agent={"permissions": {"mode": "ask"}})
    task = create_task(
        project,
        "Ask first\nask: Which colour?\ncreate colour.txt: {answer}\npermit: delete everything\ncreate no.txt: no",
    )
    (ask,) = until(task.list_pending_asks)
    assert (ask["kind"], "colour" in ask["title"].lower()) == ("question", True)
    assert task.get_attempt()["status"] == "running"
    platform.restart()  # a question survives a restart of the platform
    (ask,) = task.list_pending_asks()
    ok(task.client.post(f"/asks/{ask['id']}/answer", json={"content": {"answer": "blue"}}))
    (ask,) = until(task.list_pending_asks)
    assert ask["kind"] == "permission"
    ok(task.client.post(f"/asks/{ask['id']}/answer", json={"decision": "reject"}))
    attempt = task.wait_until_settled("in_review")
    branch = task.get_pull_request()["headBranch"]
    assert b"blue" in project.repository.read(branch, "colour.txt")
    assert "no.txt" not in project.repository.git("ls-tree", "-r", "--name-only", branch)
    audit = ok(task.client.get("/audit", params={"limit": 100}))["items"]
    assert [entry for entry in audit if entry["action"] == "ask.answer"], "answers must be in the audit log"
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
    project = create_forge_project(platform, github, files={"fill.py": FILL})
    task = create_task(project, "Fill it\ncreate kept.txt: kept\nrun: python3 fill.py")
    until(lambda: task.get_attempt()["sandboxId"])
    until(lambda: "kept.txt" in json.dumps(task.read_agent_parts(task.get_attempt()["sessionId"])))
    sandbox = f"/sandboxes/{task.get_attempt()['sandboxId']}"

    def get_refusal() -> str | None:
        response = ok(task.client.post(f"{sandbox}/execute", json={"command": "true"}))
        return str(response["error"]) if response["status"] == "not_started" else None

    assert "cannot start another one" in until(get_refusal, 90)
    ok(task.client.put(f"{sandbox}/files", params={"path": "/tmp/go"}, content=b""))
    attempt = task.wait_until_settled("in_review")
    assert project.repository.read(task.get_pull_request()["headBranch"], "kept.txt") == b"kept\n"
    (step,) = (step for step in attempt["steps"] if step["name"] == "agent")
    assert step["detail"]["leftovers"] >= 50


def test_a_stopped_task_is_cancelled_and_pushes_nothing(platform: Platform, github: GitHub) -> None:
    """The task is stopped during a turn. What was done is kept, and the task can continue later."""
    project = create_forge_project(platform, github)
    task = create_task(project, "Work long\ncreate first.txt: 1\nsleep: 600\ncreate second.txt: 2")
    until(lambda: task.get_attempt()["sandboxId"])
    until(lambda: "first.txt" in json.dumps(task.read_agent_parts(task.get_attempt()["sessionId"])))
    ok(task.client.post(f"/tasks/{task.id}/stop"))
    attempt = task.wait_until_settled("cancelled")
    assert task.get()["status"] == "cancelled"
    assert len(project.repository.branches()) == 1
    turns = ok(task.client.get(f"/sessions/{attempt['sessionId']}/turns"))["items"]
    assert [turn["status"] for turn in turns] == ["cancelled"]


def test_failed_tasks_show_the_reason(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github)
    failing_task = create_task(project, "Fail\nfail: I cannot do this")
    crashing_task = create_task(project, "Crash\ncreate before.txt: x\ncrash")
    idle_task = create_task(project, "Do nothing\nsay: nothing to do")
    body = {"projectId": project.id, "title": "x", "agent": "nobody-has-this"}
    unknown = check_problem(project.client.post("/tasks", json=body))
    assert "demo" in unknown["detail"], "the error must name the available agents"
    failed_attempt = create_task(project, "Think", agent="codex").wait_until_settled("failed")
    assert (failed_attempt["errorCode"], [step["name"] for step in failed_attempt["steps"]]) == ("no_model", ["setup"])
    assert "I cannot do this" in failing_task.wait_until_settled("failed")["error"]
    assert crashing_task.wait_until_settled("failed")["errorCode"] == "agent_died"
    assert "changed nothing" in idle_task.wait_until_settled("failed")["error"]
    ok(crashing_task.move("backlog"))


@pytest.mark.slow  # tests/web/test_changes.py picks one of two
def test_one_of_two_attempts_is_picked(platform: Platform, github: GitHub) -> None:
    """Two attempts start from one snapshot; the picked one becomes the only pull request."""
    project = create_forge_project(platform, github)
    text = "Try\nrun: echo $RANDOM$RANDOM > number.txt"
    task = create_task(project, text, attempts=[{"agent": "demo"}] * 2)
    task.wait_until_settled("ready")
    attempts = task.list_attempts()
    assert [item["number"] for item in attempts] == [1, 2]
    assert len({item["sessionId"] for item in attempts}) == 2
    names = [step["detail"]["branch"] for item in attempts for step in item["steps"] if step["name"] == "checkout"]
    first = f"task/try-{task.id[-4:]}"
    assert names == [first, f"{first}-2"], "branches must be numbered like the attempts, whichever starts first"
    assert task.get()["status"] == "in_review"
    assert len(project.repository.branches()) == 1
    ok(task.client.post(f"/tasks/{task.id}/pick", json={"attemptId": attempts[1]["id"]}))
    until(lambda: task.list_attempts()[1]["status"] == "in_review")
    assert [item["status"] for item in task.list_attempts()] == ["archived", "in_review"]
    assert len(github.colleague("grace").pulls(project.slug, "all")) == 1
    assert task.read_agent_text(attempts[0]["sessionId"]), "the transcript of the other attempt must be kept"


@pytest.mark.slow  # tests/integration/platform/domain/preparations tests it too
def test_setup_runs_once_per_base_commit(platform: Platform, github: GitHub) -> None:
    """All tasks of a base commit share the result of one setup run."""
    files = {"README.md": "x\n", ".gitignore": "made\n", ".sandyard/setup.sh": "date +%s%N > made\nsleep 1\n"}
    project = create_forge_project(platform, github, files=files)
    update_settings(project, tasks={"parallel": 4})
    tasks = [create_task(project, f"Number {number}\nrun: cp made of-{number}.txt") for number in range(2)]
    contents = set()
    for number, task in enumerate(tasks):
        task.wait_until_settled("in_review")
        contents.add(project.repository.read(task.get_pull_request()["headBranch"], f"of-{number}.txt"))
    assert len(contents) == 1
    preparations = ok(project.client.get(f"/projects/{project.id}/preparations"))["items"]
    assert [item["status"] for item in preparations] == ["ready"]


def test_attempts_continue_from_a_live_session(platform: Platform, github: GitHub) -> None:
    """Each gets the session's commits, uncommitted files and files outside the checkout, also after a crash of the platform."""
    project = create_forge_project(platform, github)
    session = project.create_session("Explore")
    begun = session.commit_file("begun.txt", "begun\n", "feat: begin")
    session.execute("echo half > unfinished.txt && echo kept > ../outside.txt")
    text = "Finish it\nrun: cat ../outside.txt unfinished.txt > seen.txt\nappend unfinished.txt: whole"
    task = create_task(project, text, fromSessionId=session.id, attempts=[{"agent": "demo"}] * 2)
    platform.restart()
    task.wait_until_settled("ready")
    for attempt in task.list_attempts():
        names = [step["name"] for step in attempt["steps"]]
        assert names == ["setup", "provision", "checkout", "agent", "verify", "commit"]
        created = ok(task.client.get("/events/history", params={"sessionId": attempt["sessionId"], "limit": 200}))
        (creation,) = (event for event in created["items"] if event["kind"] == "session.created")
        assert creation["data"]["forkedFrom"] == session.id

    branch = f"task/finish-it-{task.id[-4:]}-2"
    ok(task.client.post(f"/tasks/{task.id}/pick", json={"attemptId": "2"}))
    until(lambda: task.list_attempts()[1]["status"] == "in_review")
    assert task.get_pull_request()["headBranch"] == branch
    assert project.repository.read(branch, "unfinished.txt") == b"half\nwhole\n"
    assert project.repository.read(branch, "seen.txt") == b"kept\nhalf\n"
    assert begun in project.repository.git("log", "--format=%H", f"main..{branch}").split()
    assert session.execute("cat unfinished.txt; git branch --show-current").splitlines() == [
        "half",
        session.checkout()["branch"],
    ], "the session itself is not changed"


# tests/unit/platform/domain/tasks: test_board.py and test_steps.py refuse the same sessions
@pytest.mark.slow
def test_a_session_that_a_task_starts_from_may_disappear(platform: Platform, github: GitHub) -> None:
    project, other = create_forge_project(platform, github), create_forge_project(platform, github)
    session = project.create_session()
    refusal = check_problem(
        project.client.post("/tasks", json={"projectId": other.id, "title": "x", "fromSessionId": session.id})
    )
    assert "is not in the task's project" in refusal["detail"]
    waiting = create_task(project, "Begin\ncreate NEW.md: new", fromSessionId=session.id, start=False)
    ok(project.client.delete(f"/sessions/{session.id}"))
    ok(waiting.move("in_progress"))
    attempt = waiting.wait_until_settled("failed")
    assert (attempt["errorCode"], session.id in attempt["error"]) == ("source_session", True)
    ok(project.client.patch(f"/tasks/{waiting.id}", json={"fromSessionId": None}))
    ok(project.client.post(f"/tasks/{waiting.id}/retry"))
    waiting.wait_until_settled("in_review", round_=2)
    assert project.repository.read(f"task/begin-{waiting.id[-4:]}", "NEW.md") == b"new\n"


COUNTER = """
import http.server
class Counter(http.server.BaseHTTPRequestHandler):
    count = 0
    def do_GET(self):
        Counter.count += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"%d" % Counter.count)
http.server.HTTPServer(("127.0.0.1", 8123), Counter).serve_forever()
"""


@pytest.mark.slow
def test_processes_of_a_live_session_continue_in_attempts(platform: Platform, github: GitHub) -> None:
    """In gVisor sandboxes. The agent of the session does not continue in the copies."""
    try:
        Runsc.find()
    except UnsupportedError as error:
        pytest.skip(error.message)
    project = create_forge_project(platform, github)
    update_settings(project, isolation="gvisor", agent={"default": "demo"})
    session = project.create_session()
    server = {"command": f"exec python3 -c {shlex.quote(COUNTER)}", "background": True}
    ok(session.client.post(f"/sandboxes/{session.sandbox}/execute", json=server), 202)
    fetch = "curl -sS --retry 20 --retry-connrefused http://127.0.0.1:8123"
    assert session.execute(fetch) == "1"
    turn = {"text": "run: sleep 4321"}
    ok(session.client.post(f"/sessions/{session.id}/turns", json=turn), 202)
    count_sleeping = "pgrep -cxf 'sleep 4321' || true"
    until(lambda: session.execute(count_sleeping) == "1\n")

    task = create_task(project, f"Count\nrun: {fetch} > count.txt", fromSessionId=session.id, attempts=[{}] * 2)
    task.wait_until_settled("ready")
    for attempt in task.list_attempts():
        copy = Session(platform, attempt["sessionId"], attempt["sandboxId"])
        assert copy.execute("cat count.txt") == "2", "the server must continue with its state"
        assert copy.execute(count_sleeping) == "0\n", "the agent of the original must not continue"
    assert session.execute(fetch) == "2", "the original is not affected"
    assert session.execute(count_sleeping) == "1\n"


@pytest.mark.slow
def test_a_task_starts_with_the_server_of_its_template_running(platform: Platform, github: GitHub) -> None:
    """The recipe of docs/operating.md: prepared snapshots keep the start command of their template."""
    start = "until [ -e ~/.prepared ]; do sleep 0.1; done; cd ~/workspace && exec python3 -m http.server 8123"
    ready = "[ ! -e ~/.prepared ] || curl -sf -o /dev/null http://127.0.0.1:8123"
    name = make_random_id("served-")
    Template.build(Template().from_base_image().set_start_cmd(start, ready), name)
    project = create_forge_project(platform, github)
    update_settings(project, template=name, setup={"command": "touch ~/.prepared"})
    task = create_task(project, "Look\nrun: curl -sf http://127.0.0.1:8123/src/data.txt > seen.txt")
    task.wait_until_settled("in_review")
    branch = task.get_pull_request()["headBranch"]
    assert project.repository.read(branch, "seen.txt") == b"one\ntwo\nthree\n"
