"""PostgreSQL goes away and comes back in every step of a task, and a second platform on the same database waits until the first dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator

import asyncpg
import httpx
import pytest

from tests.acceptance.board import add, configure
from tests.acceptance.conftest import serving
from tests.acceptance.platform import Platform, ok, running, until
from tests.acceptance.workshop import work
from tests.forge import GitHub, forge
from tests.postgres import Server
from tests.protocol.engine import Engine

STEPS = ["setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request"]
AWAY_S = 1.0
TAKES_OVER_S = 15.0
SETTINGS = {"FORGE_POLL_S": "3600", "RECONCILE_EVERY_S": "1", "HEALTH_EVERY_S": "1"}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with serving(POOL_SIZE="1", DEFAULT_MEMORY_MB="128", DEFAULT_DISK_MB="256") as engine:
        yield engine


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    name = asyncio.run(postgres.create())
    yield postgres.url(name)
    asyncio.run(postgres.drop(name))


async def _begins(url: str, step: str) -> bool:
    """Returns the moment in which it is written that the step has begun; False if it is over already."""
    connection = await asyncpg.connect(url)
    news = asyncio.Event()
    await connection.add_listener("sandyard_events", lambda *_: news.set())
    later = STEPS[STEPS.index(step) + 1 :]
    while True:
        attempt = await connection.fetchrow("SELECT status, step FROM attempts")
        if attempt is not None and (attempt["step"] == step or attempt["step"] in later):
            await connection.close()
            return bool(attempt["step"] == step and attempt["status"] == "running")
        news.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await news.wait()


@pytest.mark.parametrize(
    "steps", [["setup", "agent", "push"], pytest.param(STEPS, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_task_goes_on_when_the_database_is_away_in_its_steps(
    engine: Engine, github: GitHub, postgres: Server, url: str, steps: list[str]
) -> None:
    with running(engine, url, **SETTINGS) as platform:
        project = work(platform, github)
        configure(
            project, setup={"command": "sleep 0.3 && touch ready"}, verify={"command": "sleep 0.3 && test -f a.txt"}
        )
        words = ["Write it", "append a.txt: one", "commit: feat: the first", "sleep: 1", "append a.txt: two"]
        process = platform.process
        card = add(project, "\n".join(words))
        hit: list[str] = []
        for number, step in enumerate(steps):
            if asyncio.run(asyncio.wait_for(_begins(url, step), 120)):
                hit.append(step)
            postgres.halt(signal.SIGQUIT if number % 3 == 2 else signal.SIGINT)
            gone = time.monotonic()
            answer = platform.client.get("/projects")
            assert (answer.status_code, answer.json()["code"]) == (503, "database_unavailable")
            assert int(answer.headers["Retry-After"]) >= 1
            ready = httpx.get(f"{platform.url}/ready", timeout=10)
            assert (ready.status_code, "database" in ready.json()["reasons"][0]) == (503, True)
            time.sleep(max(0.0, AWAY_S - (time.monotonic() - gone)))
            postgres.resume()
            print(f"{step}: away for {time.monotonic() - gone:.1f} s")
        assert len(hit) > len(steps) // 2, (
            f"on a busy machine a short step may be over before it is seen, but not most: {hit}"
        )
        until(lambda: _is_ready(platform))
        card.rests("in_review")
        assert platform.process is process
        assert process is not None
        assert process.poll() is None
        (pull,) = github.colleague("grace").pulls(project.slug, "all")
        branch = pull["head"]["ref"]
        assert project.repository.log(f"main..{branch}") == ["chore: write it", "feat: the first"]
        assert project.repository.read(branch, "a.txt") == b"one\ntwo\n"


def _boxes(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {box["sandboxID"] for box in client.get("/v2/sandboxes", params={"limit": 100}).json()}


def _standby(platform: Platform) -> bool:
    with contextlib.suppress(httpx.TransportError):
        answer = httpx.get(f"{platform.url}/ready", timeout=5)
        return answer.status_code == 503 and answer.json().get("status") == "standby"
    return False


def _is_ready(platform: Platform) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{platform.url}/ready", timeout=5).status_code == 200
    return False


def test_a_second_platform_stands_by_and_takes_over(engine: Engine, postgres: Server, url: str) -> None:
    first, second = Platform(engine, url, SETTINGS), Platform(engine, url, SETTINGS)
    try:
        first.start()
        session = ok(first.client.post("/sessions", json={"title": "kept"}), 201)
        sandbox = session["sandbox"]["id"]
        ok(first.client.post(f"/sandboxes/{sandbox}/execute", json={"command": "echo kept >note"}))
        boxes = _boxes(engine)
        second.token = first.token
        second.launch()
        until(lambda: _standby(second))
        assert httpx.get(f"{second.url}/health").json()["status"] == "standby"
        refused = second.client.get("/projects")
        assert (refused.status_code, refused.json()["code"]) == (503, "standby")
        assert int(refused.headers["Retry-After"]) >= 1
        assert "platform_standing_by" in second.log.read_text()

        postgres.halt()
        postgres.resume()
        until(lambda: _is_ready(first))
        slow = {"command": "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo $i >>count; sleep 1; done", "background": True}
        command = ok(first.client.post(f"/sandboxes/{sandbox}/execute", json=slow), 200, 202)["id"]
        until(lambda: ok(first.client.get(f"/commands/{command}"))["status"] == "running")
        assert _standby(second)
        first.kill()
        until(lambda: "platform_takes_over" in second.log.read_text(), TAKES_OVER_S)
        until(lambda: _is_ready(second))
        client = second.client
        assert ok(client.get(f"/sessions/{session['id']}"))["sandbox"]["status"] == "running"
        over = until(
            lambda: (it := ok(client.get(f"/commands/{command}")))["status"] not in ("starting", "running") and it
        )
        assert (over["status"], over["exitCode"]) == ("exited", 0)
        said = ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": "cat note count | tr '\\n' ' '"}))
        assert said["stdout"] == "kept 1 2 3 4 5 6 7 8 9 10 11 12 "
        assert boxes <= _boxes(engine)

        first.launch()
        until(lambda: _standby(first))
        _lose(second, url)  # it cannot even notice
        until(lambda: _is_ready(first))
        assert second.process is not None
        second.process.send_signal(signal.SIGCONT)
        assert second.process.wait(60) == 1
        assert "has taken over this database" in second.log.read_text() + second.said.read_text()
        second.process = None
        assert ok(first.client.get(f"/sessions/{session['id']}"))["sandbox"]["status"] == "running"
        assert boxes <= _boxes(engine)
    finally:
        for platform in (first, second):
            if platform.process is not None:
                platform.process.send_signal(signal.SIGCONT)
            platform.stop()


def _lose(platform: Platform, url: str) -> None:
    """Stop the process in its tracks, and let the server close its connection, as that of a machine that has vanished."""
    assert platform.process is not None
    platform.process.send_signal(signal.SIGSTOP)

    async def cut() -> None:
        connection = await asyncpg.connect(url)
        locks = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1"
        pid = await connection.fetchval(locks, 0x5359504C)
        await connection.execute(f"SELECT pg_terminate_backend({int(pid)})")
        await connection.close()

    asyncio.run(cut())
