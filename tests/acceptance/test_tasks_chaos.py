"""Tasks while platform and engine are killed at random: each ends in exactly one pull request with exactly its commits, and its
transcript is complete. A few tasks in `make test`, `SANDYARD_CHAOS_TASKS` (12) in the long run."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.acceptance.board import Card, add, configure
from tests.acceptance.conftest import serving
from tests.acceptance.platform import Platform, running
from tests.acceptance.workshop import Work, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

FEW, TASKS = 3, int(os.environ.get("SANDYARD_CHAOS_TASKS", "12"))
SEED = int(os.environ.get("SANDYARD_CHAOS_SEED", "1"))
PACE = (0.5, 3.0)
"""Between two deaths, as parts of the time that one task takes in peace: on a busy machine everything is slower."""
SLEEPS = (1.5, 1.0)
"""Seconds, of each task's agent: before they have passed, none is done, and the first death comes in time."""
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
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="2", DEFAULT_MEMORY_MB="128", DEFAULT_DISK_MB="256") as engine:
        yield engine


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine, **SETTINGS) as platform:
        yield platform


class Reaper:
    """Kills the platform or the engine, and starts it again, until it is told to stop."""

    def __init__(self, platform: Platform, engine: Engine, took: float) -> None:
        self.platform, self.engine = platform, engine
        self._every = [part * took for part in PACE]
        self.deaths = {"platform": 0, "engine": 0}
        self.failure: BaseException | None = None
        self._random = random.Random(SEED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reaper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            pause = self._random.uniform(0, SLEEPS[0])
            while not self._stop.wait(pause):
                pause = self._random.uniform(*self._every)
                victim = self._random.choice(("platform", "platform", "engine"))
                self.deaths[victim] += 1
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


def words(number: int) -> str:
    """Two commits of the agent's own, one of the platform's, and words in between."""
    return "\n".join(
        [
            f"Number {number}",
            f"say: begin {number}",
            f"append log-{number}.txt: one",
            f"commit: feat: first of {number}",
            f"sleep: {SLEEPS[0]}",
            f"say: middle {number}",
            f"run: for i in $(seq 200); do echo line $i of {number}; done",
            f"append log-{number}.txt: two",
            f"commit: feat: second of {number}",
            f"sleep: {SLEEPS[1]}",
            f"append log-{number}.txt: three",
            f"say: end {number}",
        ]
    )


@pytest.mark.parametrize("tasks", [FEW, pytest.param(TASKS, marks=pytest.mark.slow)])
def test_every_task_ends_in_one_pull_request(platform: Platform, engine: Engine, github: GitHub, tasks: int) -> None:
    project = work(platform, github)
    configure(project, tasks={"parallel": 6, "finished": "destroy"})
    begun = time.monotonic()
    cards = [add(project, words(0))]
    cards[0].rests("in_review", patience=300)
    took = time.monotonic() - begun
    cards += [add(project, words(number)) for number in range(1, tasks)]
    with Reaper(platform, engine, took) as reaper:
        _wait(cards, took)
    assert sum(reaper.deaths.values()) > 0
    print(f"{tasks} tasks in {time.monotonic() - begun:.0f} s, deaths: {reaper.deaths}")
    pulls = github.colleague("grace").pulls(project.slug, "all")
    assert len(pulls) == tasks
    assert len({pull["head"]["ref"] for pull in pulls}) == tasks
    for number, card in enumerate(cards):
        _check(project, card, number)


def _wait(cards: list[Card], took: float) -> None:
    left, deadline = set(range(len(cards))), time.monotonic() + 60 + 4 * took * len(cards)
    while left and time.monotonic() < deadline:
        for number in sorted(left):
            try:
                attempt = cards[number].attempt()
            except (httpx.TransportError, AssertionError):
                continue  # it is dead just now
            assert attempt["status"] not in ("failed", "cancelled"), (number, attempt["error"], attempt["steps"])
            if attempt["status"] == "in_review":
                left.discard(number)
        time.sleep(0.5)
    assert not left, f"not done: {[(number, cards[number].attempt()) for number in left]}"


def _check(project: Work, card: Card, number: int) -> None:
    attempt = card.attempt()
    branch = card.pull()["headBranch"]
    assert project.repository.log(f"main..{branch}") == [
        f"chore: number {number}", f"feat: second of {number}", f"feat: first of {number}",
    ]  # fmt: skip
    assert project.repository.read(branch, f"log-{number}.txt") == b"one\ntwo\nthree\n"
    assert project.repository.git("diff", "--name-only", f"main...{branch}") == f"log-{number}.txt"
    messages = card.messages(attempt["sessionId"])
    parts = [part for message in messages if message["role"] == "agent" for part in message["parts"]]
    said = "".join(part["text"] for part in parts if part["type"] == "text")
    for word in ("begin", "middle", "end"):
        assert said.count(f"{word} {number}") == 1, said
    output = "".join(f"line {line} of {number}\n" for line in range(1, 201))
    calls = [part for part in parts if part["type"] == "tool_call"]
    ran = [call for call in calls if call["kind"] == "execute" and "seq 200" in call["title"]]
    assert len(ran) == 1
    assert output in "".join(piece.get("text", "") for piece in ran[0]["content"]), "byte for byte"
    assert {call["status"] for call in calls} == {"completed"}
    (turn,) = _items(card, attempt["sessionId"])
    assert turn["status"] == "completed"


def _items(card: Card, session_id: str) -> list[dict[str, str]]:
    return list(card.client.get(f"/sessions/{session_id}/turns").json()["items"])
