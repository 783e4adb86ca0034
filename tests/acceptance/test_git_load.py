"""Many sessions at once on one repository: every commit arrives, in its own branch and its own pull request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.conftest import serving
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import Seat, Work, work
from tests.forge import GitHub, forge
from tests.protocol.engine import Engine

pytestmark = pytest.mark.timeout(1500)
SESSIONS, COMMITS = 20, 3
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "3600"}
PATIENCE = 600.0


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="4", DEFAULT_MEMORY_MB="128", DEFAULT_DISK_MB="256") as engine:
        yield engine


@pytest.fixture
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def platform(engine: Engine, postgres_url: str) -> Iterator[Platform]:
    """On PostgreSQL, where writers do not queue up by themselves."""
    with running(engine, postgres_url, **SETTINGS) as platform:
        yield platform


@pytest.mark.slow
def test_many_sessions_at_once(platform: Platform, github: GitHub) -> None:
    project = work(platform, github)

    def work_on(number: int) -> tuple[Seat, int]:
        seat = project.begin(f"Number {number}")
        until(lambda: seat.client.get(f"/git/{seat.sandbox}").status_code == 200, PATIENCE)
        for count in range(COMMITS):
            seat.change(f"of-{number}.txt", f"{number} {count}\n", f"feat: {number} {count}")
            if count:
                seat.git("push", wait=300)
        made, pull = seat.pull_request(title=f"feat: number {number}")
        assert made == 201
        return seat, pull["number"]

    with ThreadPoolExecutor(SESSIONS) as pool:
        done = list(pool.map(work_on, range(SESSIONS)))
    _check(project, github, done)
    for seat, _ in done:
        ok(seat.client.delete(f"/sessions/{seat.id}"))


def _check(project: Work, github: GitHub, done: list[tuple[Seat, int]]) -> None:
    pulls = {pull["number"]: pull for pull in github.colleague("grace").pulls(project.slug, "all")}
    assert len(pulls) == len(done) == len({number for _, number in done})
    commits: set[str] = set()
    for index, (seat, number) in enumerate(done):
        branch = seat.checkout()["branch"]
        pull, repository = pulls[number], project.repository
        assert (pull["head"]["ref"], pull["title"]) == (branch, f"feat: number {index}")
        assert pull["head"]["sha"] == repository.head(branch)
        own = repository.git("rev-list", f"main..{branch}").split()
        assert repository.log(f"main..{branch}") == [f"feat: {index} {count}" for count in reversed(range(COMMITS))]
        assert repository.git("diff", "--name-only", f"main...{branch}") == f"of-{index}.txt"
        assert repository.read(branch, f"of-{index}.txt") == f"{index} {COMMITS - 1}\n".encode()
        commits.update(own)
    assert len(commits) == len(done) * COMMITS
    assert len(project.repository.branches()) == len(done) + 1
    rows = ok(project.client.get("/github/pull-requests", params={"projectId": project.id, "limit": 100}))["items"]
    assert sorted(row["number"] for row in rows) == sorted(pulls)
