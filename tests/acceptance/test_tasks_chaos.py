"""Test tasks while platform and engine are killed at random: each ends in exactly one pull request with exactly its commits and a complete
transcript. `make test` runs a few tasks, the slow test `SANDYARD_CHAOS_TASKS` (12)."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.project_client import ForgeProject, create_forge_project
from tests.acceptance.task_client import Task, create_task, update_settings
from tests.forge import GitHub, forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, running
from tests.proof.record import record

FEW, TASKS = 3, int(os.environ.get("SANDYARD_CHAOS_TASKS", "12"))
SEED = int(os.environ.get("SANDYARD_CHAOS_SEED", "1"))
KILL_INTERVAL = (0.5, 3.0)
"""Time between two kills, relative to the duration of an undisturbed task, because a busy machine is slower."""
AGENT_SLEEPS = (1.5, 1.0)
"""Seconds that the agent of each task sleeps. No task ends before that, so the first kill hits running tasks."""
pytestmark = pytest.mark.timeout(600 + 120 * TASKS)
SETTINGS = {
    "CREATES_PER_MINUTE": "100000",
    "EXECUTES_PER_MINUTE": "100000",
    "FORGE_POLL_S": "3600",
    "PARALLEL_ATTEMPTS": "6",
    "PARALLEL_ATTEMPTS_PER_USER": "6",
    "IDLE_SECONDS": "60",
}


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


class RandomKiller:
    """Kills and restarts the platform or the engine at random until it is stopped."""

    def __init__(self, platform: Platform, engine: Engine, task_seconds: float) -> None:
        self.platform, self.engine = platform, engine
        self._interval = [part * task_seconds for part in KILL_INTERVAL]
        self.kills = {"platform": 0, "engine": 0}
        self.failure: BaseException | None = None
        self._random = random.Random(SEED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> RandomKiller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            pause, first = self._random.uniform(0, AGENT_SLEEPS[0]), ["platform", "engine"]
            while not self._stop.wait(pause):
                pause = self._random.uniform(*self._interval)
                victim = first.pop() if first else self._random.choice(("platform", "platform", "engine"))
                self.kills[victim] += 1
                if victim == "platform":
                    self.platform.kill()
                    time.sleep(self._random.uniform(0, 0.5))
                    self.platform.start()
                else:
                    self.engine.kill()
                    time.sleep(self._random.uniform(0, 0.5))
                    self.engine.start()
        except BaseException as error:
            self.failure = error


def task_text(number: int) -> str:
    """Return a task with two commits by the agent, one by the platform, and text in between."""
    return "\n".join(
        [
            f"Number {number}",
            f"say: begin {number}",
            f"append log-{number}.txt: one",
            f"commit: feat: first of {number}",
            f"sleep: {AGENT_SLEEPS[0]}",
            f"say: middle {number}",
            f"run: for i in $(seq 200); do echo line $i of {number}; done",
            f"append log-{number}.txt: two",
            f"commit: feat: second of {number}",
            f"sleep: {AGENT_SLEEPS[1]}",
            f"append log-{number}.txt: three",
            f"say: end {number}",
        ]
    )


@pytest.mark.parametrize("count", [pytest.param(FEW, id="few"), pytest.param(TASKS, marks=pytest.mark.slow, id="many")])
def test_every_task_ends_in_one_pull_request(platform: Platform, engine: Engine, github: GitHub, count: int) -> None:
    project = create_forge_project(platform, github)
    update_settings(project, tasks={"parallel": 6, "finished": "destroy"})
    started = time.monotonic()
    created = [create_task(project, task_text(0))]
    created[0].wait_until_settled("in_review", patience=300)
    task_seconds = time.monotonic() - started
    created += [create_task(project, task_text(number)) for number in range(1, count)]
    with RandomKiller(platform, engine, task_seconds) as killer:
        _wait_for_all(created, task_seconds)
    assert sum(killer.kills.values()) > 0
    print(f"{count} tasks in {time.monotonic() - started:.0f} s, kills: {killer.kills}")
    pulls = github.colleague("grace").pulls(project.slug, "all")
    assert len(pulls) == count
    assert len({pull["head"]["ref"] for pull in pulls}) == count
    for number, task in enumerate(created):
        _check(project, task, number)
    record(
        {"tasks": count, **{f"kills of the {victim}": kills for victim, kills in killer.kills.items()}},
        {"tasks": 0, "commits": 0, "messages": 0},
    )


def _wait_for_all(created: list[Task], task_seconds: float) -> None:
    unfinished, deadline = set(range(len(created))), time.monotonic() + 60 + 4 * task_seconds * len(created)
    while unfinished and time.monotonic() < deadline:
        for number in sorted(unfinished):
            try:
                attempt = created[number].get_attempt()
            except (httpx.TransportError, AssertionError):
                continue  # the platform is down at the moment
            assert attempt["status"] not in ("failed", "cancelled"), (number, attempt["error"], attempt["steps"])
            if attempt["status"] == "in_review":
                unfinished.discard(number)
        time.sleep(0.5)
    assert not unfinished, f"not done: {[(number, created[number].get_attempt()) for number in unfinished]}"


def _check(project: ForgeProject, task: Task, number: int) -> None:
    attempt = task.get_attempt()
    branch = task.get_pull_request()["headBranch"]
    assert project.repository.log(f"main..{branch}") == [
        f"chore: number {number}", f"feat: second of {number}", f"feat: first of {number}",
    ]  # fmt: skip
    assert project.repository.read(branch, f"log-{number}.txt") == b"one\ntwo\nthree\n"
    assert project.repository.git("diff", "--name-only", f"main...{branch}") == f"log-{number}.txt"
    messages = task.read_messages(attempt["sessionId"])
    parts = [part for message in messages if message["role"] == "agent" for part in message["parts"]]
    agent_text = "".join(part["text"] for part in parts if part["type"] == "text")
    for word in ("begin", "middle", "end"):
        assert agent_text.count(f"{word} {number}") == 1, agent_text
    output = "".join(f"line {line} of {number}\n" for line in range(1, 201))
    calls = [part for part in parts if part["type"] == "tool_call"]
    executed = [call for call in calls if call["kind"] == "execute" and "seq 200" in call["title"]]
    assert len(executed) == 1
    assert output in "".join(piece.get("text", "") for piece in executed[0]["content"]), "the output must be complete"
    assert {call["status"] for call in calls} == {"completed"}
    (turn,) = _list_turns(task, attempt["sessionId"])
    assert turn["status"] == "completed"


def _list_turns(task: Task, session_id: str) -> list[dict[str, str]]:
    return list(task.client.get(f"/sessions/{session_id}/turns").json()["items"])
