"""Test PostgreSQL outages in every step of a task, and a standby platform that takes over when the first dies."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Iterator

import asyncpg
import httpx
import pytest

from tests.acceptance.project_client import create_forge_project
from tests.acceptance.task_client import create_task, update_settings
from tests.forge import GitHub, forge
from tests.harness.engine import Engine
from tests.harness.platform import Platform, ok, running, until
from tests.harness.postgres import Server
from tests.proof.record import record

STEPS = ["setup", "provision", "checkout", "agent", "verify", "commit", "push", "pull_request"]
DOWNTIME_S = 1.0
TAKEOVER_S = 15.0
SETTINGS = {"FORGE_POLL_S": "3600", "RECONCILE_EVERY_S": "1", "HEALTH_EVERY_S": "1"}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def github() -> Iterator[GitHub]:
    with forge() as github:
        yield github


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    name = asyncio.run(postgres.create())
    yield postgres.url(name)
    asyncio.run(postgres.drop(name))


async def _wait_for_step(url: str, step: str) -> bool:
    """Wait until the database records the step. Return whether the step is still running."""
    connection = await asyncpg.connect(url)
    notified = asyncio.Event()
    await connection.add_listener("sandyard_events", lambda *_: notified.set())
    later = STEPS[STEPS.index(step) + 1 :]
    while True:
        attempt = await connection.fetchrow("SELECT status, step FROM attempts")
        if attempt is not None and (attempt["step"] == step or attempt["step"] in later):
            await connection.close()
            return bool(attempt["step"] == step and attempt["status"] == "running")
        notified.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await notified.wait()


@pytest.mark.parametrize(
    "steps", [["setup", "agent", "push"], pytest.param(STEPS, marks=pytest.mark.slow)], ids=["some", "all"]
)
def test_a_task_continues_after_database_outages_in_its_steps(
    engine: Engine, github: GitHub, postgres: Server, url: str, steps: list[str]
) -> None:
    with running(engine, url, **SETTINGS) as platform:
        project = create_forge_project(platform, github)
        update_settings(
            project, setup={"command": "sleep 0.3 && touch ready"}, verify={"command": "sleep 0.3 && test -f a.txt"}
        )
        lines = ["Write it", "append a.txt: one", "commit: feat: the first", "sleep: 1", "append a.txt: two"]
        process = platform.process
        task = create_task(project, "\n".join(lines))
        interrupted_steps: list[str] = []
        for number, step in enumerate(steps):
            if asyncio.run(asyncio.wait_for(_wait_for_step(url, step), 120)):
                interrupted_steps.append(step)
            postgres.halt(signal.SIGQUIT if number % 3 == 2 else signal.SIGINT)
            halted_at = time.monotonic()
            response = platform.client.get("/projects")
            assert (response.status_code, response.json()["code"]) == (503, "database_unavailable")
            assert int(response.headers["Retry-After"]) >= 1
            ready = httpx.get(f"{platform.url}/ready", timeout=10)
            assert (ready.status_code, "database" in ready.json()["reasons"][0]) == (503, True)
            time.sleep(max(0.0, DOWNTIME_S - (time.monotonic() - halted_at)))
            postgres.resume()
            print(f"{step}: away for {time.monotonic() - halted_at:.1f} s")
        assert len(interrupted_steps) > len(steps) // 2, (
            f"on a busy machine a short step may end unnoticed, but most must be interrupted: {interrupted_steps}"
        )
        until(lambda: _is_ready(platform))
        task.wait_until_settled("in_review")
        assert platform.process is process
        assert process is not None
        assert process.poll() is None
        (pull,) = github.colleague("grace").pulls(project.slug, "all")
        branch = pull["head"]["ref"]
        assert project.repository.log(f"main..{branch}") == ["chore: write it", "feat: the first"]
        assert project.repository.read(branch, "a.txt") == b"one\ntwo\n"
        record({"outages of PostgreSQL": len(steps)}, {"tasks": 0})


def _list_sandboxes(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {row["sandboxID"] for row in client.get("/v2/sandboxes", params={"limit": 100}).json()}


def _is_standby(platform: Platform) -> bool:
    with contextlib.suppress(httpx.TransportError):
        response = httpx.get(f"{platform.url}/ready", timeout=5)
        return response.status_code == 503 and response.json().get("status") == "standby"
    return False


def _is_ready(platform: Platform) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{platform.url}/ready", timeout=5).status_code == 200
    return False


def test_a_second_platform_is_standby_until_the_first_dies(engine: Engine, postgres: Server, url: str) -> None:
    first, second = Platform(engine, url, SETTINGS), Platform(engine, url, SETTINGS)
    try:
        first.start()
        session = ok(first.client.post("/sessions", json={"title": "kept"}), 201)
        sandbox = session["sandbox"]["id"]
        ok(first.client.post(f"/sandboxes/{sandbox}/execute", json={"command": "echo kept >note"}))
        sandbox_ids = _list_sandboxes(engine)
        second.token = first.token
        second.launch()
        until(lambda: _is_standby(second))
        assert httpx.get(f"{second.url}/health").json()["status"] == "standby"
        refused = second.client.get("/projects")
        assert (refused.status_code, refused.json()["code"]) == (503, "standby")
        assert int(refused.headers["Retry-After"]) >= 1
        assert "platform_standing_by" in second.log.read_text()

        postgres.halt()
        postgres.resume()
        until(lambda: _is_ready(first))
        slow_command = {
            "command": "i=0; until [ -e enough ]; do i=$((i + 1)); echo $i >>count; sleep 0.2; done",
            "background": True,
        }
        command = ok(first.client.post(f"/sandboxes/{sandbox}/execute", json=slow_command), 200, 202)["id"]
        until(lambda: ok(first.client.get(f"/commands/{command}"))["status"] == "running")
        assert _is_standby(second)
        first.kill()
        until(lambda: "platform_takes_over" in second.log.read_text(), TAKEOVER_S)
        until(lambda: _is_ready(second))
        client = second.client
        assert ok(client.get(f"/sessions/{session['id']}"))["sandbox"]["status"] == "running"
        before = _count_lines(client, sandbox)
        until(lambda: _count_lines(client, sandbox) > before)
        ok(client.put(f"/sandboxes/{sandbox}/files", params={"path": "enough"}, content=b""))
        finished = until(
            lambda: (it := ok(client.get(f"/commands/{command}")))["status"] not in ("starting", "running") and it
        )
        assert (finished["status"], finished["exitCode"]) == ("exited", 0)
        result = ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": "cat note count"}))
        note, *numbers = result["stdout"].split()
        assert (note, numbers) == ("kept", [str(number) for number in range(1, len(numbers) + 1)])
        assert sandbox_ids <= _list_sandboxes(engine)

        first.launch()
        until(lambda: _is_standby(first))
        _disconnect(second, url)  # it cannot notice, because it is stopped
        until(lambda: _is_ready(first))
        assert second.process is not None
        second.process.send_signal(signal.SIGCONT)
        assert second.process.wait(60) == 1
        assert "has taken over this database" in second.log.read_text() + second.stdout_file.read_text()
        second.process = None
        assert ok(first.client.get(f"/sessions/{session['id']}"))["sandbox"]["status"] == "running"
        assert sandbox_ids <= _list_sandboxes(engine)
    finally:
        for platform in (first, second):
            if platform.process is not None:
                platform.process.send_signal(signal.SIGCONT)
            platform.stop()


def _count_lines(client: httpx.Client, sandbox: str) -> int:
    return int(ok(client.post(f"/sandboxes/{sandbox}/execute", json={"command": "wc -l <count"}))["stdout"])


def _disconnect(platform: Platform, url: str) -> None:
    """Stop the process with SIGSTOP and terminate its database connection, as for a machine that disappeared."""
    assert platform.process is not None
    platform.process.send_signal(signal.SIGSTOP)

    async def terminate_backend() -> None:
        connection = await asyncpg.connect(url)
        locks = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objid = $1"
        pid = await connection.fetchval(locks, 0x5359504C)
        await connection.execute(f"SELECT pg_terminate_backend({int(pid)})")
        await connection.close()

    asyncio.run(terminate_backend())
