"""Test many concurrent sessions on one repository: every commit arrives in the right branch and pull request."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.acceptance.project_client import ForgeProject, Session, create_forge_project
from tests.forge import GitHub, forge
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.timeout(1500)
SESSIONS, COMMITS = 20, 3
SETTINGS = {"CREATES_PER_MINUTE": "10000", "EXECUTES_PER_MINUTE": "10000", "FORGE_POLL_S": "3600"}
CHECKOUT_SECONDS = 600.0


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
    """A platform on PostgreSQL, which does not serialize writers."""
    with running(engine, postgres_url, **SETTINGS) as platform:
        yield platform


@pytest.mark.slow
def test_many_concurrent_sessions_on_one_repository(platform: Platform, github: GitHub) -> None:
    project = create_forge_project(platform, github)

    def work_on(number: int) -> tuple[Session, int]:
        session = project.start_session(f"Number {number}")
        until(lambda: session.client.get(f"/git/{session.sandbox}").status_code == 200, CHECKOUT_SECONDS)
        for count in range(COMMITS):
            session.commit_file(f"of-{number}.txt", f"{number} {count}\n", f"feat: {number} {count}")
            if count:
                session.run_git("push", wait=300)
        status_code, pull = session.open_pull_request(title=f"feat: number {number}")
        assert status_code == 201
        return session, pull["number"]

    with ThreadPoolExecutor(SESSIONS) as pool:
        results = list(pool.map(work_on, range(SESSIONS)))
    _check_branches_and_pull_requests(project, github, results)
    for session, _ in results:
        ok(session.client.delete(f"/sessions/{session.id}"))


def _check_branches_and_pull_requests(
    project: ForgeProject, github: GitHub, results: list[tuple[Session, int]]
) -> None:
    pulls = {pull["number"]: pull for pull in github.colleague("grace").pulls(project.slug, "all")}
    assert len(pulls) == len(results) == len({number for _, number in results})
    commits: set[str] = set()
    for index, (session, number) in enumerate(results):
        branch = session.checkout()["branch"]
        pull, repository = pulls[number], project.repository
        assert (pull["head"]["ref"], pull["title"]) == (branch, f"feat: number {index}")
        assert pull["head"]["sha"] == repository.head(branch)
        own_commits = repository.git("rev-list", f"main..{branch}").split()
        assert repository.log(f"main..{branch}") == [f"feat: {index} {count}" for count in reversed(range(COMMITS))]
        assert repository.git("diff", "--name-only", f"main...{branch}") == f"of-{index}.txt"
        assert repository.read(branch, f"of-{index}.txt") == f"{index} {COMMITS - 1}\n".encode()
        commits.update(own_commits)
    assert len(commits) == len(results) * COMMITS
    assert len(project.repository.branches()) == len(results) + 1
    rows = ok(project.client.get("/github/pull-requests", params={"projectId": project.id, "limit": 100}))["items"]
    assert sorted(row["number"] for row in rows) == sorted(pulls)
