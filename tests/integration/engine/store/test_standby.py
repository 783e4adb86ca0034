"""Two engine processes on one PostgreSQL database: one is active, and the other one takes over."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import pytest
from click.testing import CliRunner
from e2b import Sandbox
from e2b.exceptions import SandboxException

from sandyard.cli.main import cli
from sandyard.kit.listen import free_port
from tests.harness.engine import Engine
from tests.harness.postgres import Server
from tests.harness.processes import ROOT, Program, kill_users

TAKEOVER_SECONDS = 15
SECONDS = 60


def wait_until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def get_health(engine: Engine) -> tuple[int, str]:
    """Return the status of the engine's health, and what it says about itself."""
    try:
        response = httpx.get(f"{engine.url}/health", timeout=2)
    except httpx.TransportError:
        return 0, ""
    return response.status_code, response.text


def list_ids(engine: Engine) -> set[str]:
    with engine.client() as client:
        return {sandbox["sandboxID"] for sandbox in client.get("/v2/sandboxes").raise_for_status().json()}


def read_rows(url: str) -> list[tuple[Any, ...]]:
    """Return the records of all sandboxes in the database."""

    async def read() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            rows = await connection.fetch("SELECT id, state, handle FROM sandyard_engine.sandboxes ORDER BY seq")
            return [tuple(row) for row in rows]
        finally:
            await connection.close()

    return asyncio.run(read())


def get_options(engine: Engine) -> dict[str, Any]:
    return {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}


def create_sandbox(engine: Engine) -> Sandbox:
    return Sandbox.create(timeout=600, **get_options(engine))


@pytest.fixture
def server(postgres: Server) -> Iterator[str]:
    """URL of a database of its own. A synchronous fixture, because these tests have no event loop."""
    name = asyncio.run(postgres.create())
    yield postgres.url(name)
    asyncio.run(postgres.drop(name))


@pytest.fixture
def make_engine(server: str) -> Iterator[Callable[..., Engine]]:
    made: list[Engine] = []

    def make(**settings: str) -> Engine:
        key = {"key": made[0].key} if made else {}
        engine = Engine({"DRIVER": "fake", "POOL_SIZE": "0", "ENGINE_DATABASE_URL": server, **settings}, **key)
        made.append(engine)
        return engine

    yield make
    for engine in made:
        if engine.process is not None and engine.process.poll() is None:
            os.kill(engine.process.pid, signal.SIGCONT)
    for engine in made:
        engine.stop()
        kill_users(engine.folder)  # sandboxes of an engine that ended before


@pytest.fixture
def engines(make_engine: Callable[..., Engine]) -> tuple[Engine, Engine]:
    """The active engine and one that stands by, as if on two machines."""
    first, second = make_engine(), make_engine()
    first.start()
    second.launch()
    wait_until(lambda: get_health(second)[0] == 200)
    return first, second


def run_host_command(engine: Engine, *words: str) -> str:
    environment = {"E2B_API_URL": engine.url, "E2B_API_KEY": engine.key, "SANDYARD_DATA_DIR": ""}
    result = CliRunner().invoke(cli, ["host", *words], env=environment)
    assert result.exit_code == 0, result.output
    return result.stdout


@contextlib.contextmanager
def serve_host(engine: Engine, folder: Path) -> Iterator[None]:
    """Run a host of this engine."""
    token = run_host_command(engine, "token").split()[-1]
    place = ("--name", "two", "--port", str(free_port()), "--address", "127.0.0.1", "--data-dir", str(folder))
    run_host_command(engine, "join", token, *place)
    log = folder / "host.log"
    arguments = ["host", "serve", "--listen", "127.0.0.1", "--driver", "fake", "--data-dir", str(folder)]
    process = Program(arguments, {**os.environ}, ROOT, out=log, err=log)
    try:
        wait_until(lambda: '"state": "ready"' in run_host_command(engine, "list").partition('"two"')[2])
        yield
    finally:
        process.terminate()
        process.wait(30)


def create_on_host(engine: Engine) -> Sandbox:
    """Create sandboxes until one is on the engine's host: the one with most free memory is chosen."""
    for _ in range(30):
        sandbox = create_sandbox(engine)
        with engine.client() as client:
            hosts = {host["name"]: host for host in client.get("/hosts").raise_for_status().json()["hosts"]}
        if hosts["two"]["sandboxes"]:
            return sandbox
    raise AssertionError("no sandbox was placed on the host")


def test_the_standby_takes_over_within_15_seconds(engines: tuple[Engine, Engine], server: str) -> None:
    first, second = engines
    assert '"standby"' in get_health(second)[1]
    with second.client() as client:
        refused = client.post("/v2/sandboxes", json={"templateID": "base"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert "stands by" in refused.json()["message"]
        assert client.get("/ready").status_code == 503
    sandbox = create_sandbox(first)
    sandbox.files.write("note.txt", "kept")
    rows = read_rows(server)

    first.kill()
    wait_until(lambda: get_health(second)[0] == 204, TAKEOVER_SECONDS)

    assert list_ids(second) == {sandbox.sandbox_id}
    with pytest.raises(SandboxException):  # it is on the machine of the first one
        Sandbox.connect(sandbox.sandbox_id, **get_options(second)).commands.run("true")
    assert list_ids(second) == {sandbox.sandbox_id}
    assert read_rows(server) == rows

    first.launch()
    wait_until(lambda: get_health(first)[0] == 200)
    second.kill()
    wait_until(lambda: get_health(first)[0] == 204, TAKEOVER_SECONDS)
    again = Sandbox.connect(sandbox.sandbox_id, **get_options(first))
    assert again.commands.run("cat note.txt").stdout == "kept"
    first.clear()


@pytest.mark.slow
def test_sandboxes_on_hosts_do_not_notice(make_engine: Callable[..., Engine], server: str, tmp_path: Path) -> None:
    joining = {"JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0"}
    first, second = make_engine(**joining), make_engine(**joining)
    first.start()
    with serve_host(first, tmp_path / "host"):
        there = create_on_host(first)
        command = there.commands.run("sleep 600", background=True)
        there.files.write("note.txt", "kept")
        shutil.copytree(first.data / "ca", second.data / "ca")
        second.launch()
        wait_until(lambda: get_health(second)[0] == 200)
        rows = read_rows(server)

        first.kill()
        wait_until(lambda: get_health(second)[0] == 204, TAKEOVER_SECONDS)

        assert read_rows(server) == rows
        again = Sandbox.connect(there.sandbox_id, **get_options(second))
        assert again.commands.run("cat note.txt").stdout == "kept"
        assert command.pid in {process.pid for process in again.commands.list()}
        second.clear()


@pytest.mark.slow
def test_an_engine_that_was_stopped_and_continues_does_not_write(engines: tuple[Engine, Engine], server: str) -> None:
    first, second = engines
    sandbox = create_sandbox(first)
    assert first.process is not None
    os.kill(first.process.pid, signal.SIGSTOP)
    answers: list[int] = []

    def create_late() -> None:
        """Send a request that the stopped engine finds when it continues."""
        with first.client() as client, contextlib.suppress(httpx.TransportError):
            answers.append(client.post("/v2/sandboxes", json={"templateID": "base"}).status_code)

    late = threading.Thread(target=create_late)
    late.start()
    wait_until(lambda: get_health(second)[0] == 204, TAKEOVER_SECONDS)
    created = create_sandbox(second)
    rows = read_rows(server)
    assert created.sandbox_id in {row[0] for row in rows}
    os.kill(first.process.pid, signal.SIGCONT)
    wait_until(lambda: first.process is not None and first.process.poll() is not None)
    late.join()
    assert first.process.poll() != 0
    assert "has taken over" in first.tail() or "interrupted" in first.tail()
    assert set(answers) <= {503}
    assert read_rows(server) == rows
    created.kill()
    second.kill()
    first.launch()
    wait_until(lambda: get_health(first)[0] == 204, TAKEOVER_SECONDS)
    assert Sandbox.connect(sandbox.sandbox_id, **get_options(first)).commands.run("echo hi").stdout == "hi\n"
    first.clear()


@pytest.mark.slow
def test_a_restart_of_postgresql_loses_nothing(
    make_engine: Callable[..., Engine], postgres: Server, server: str
) -> None:
    engine = make_engine()
    engine.start()
    assert engine.process is not None
    sandbox, doomed, pid = create_sandbox(engine), create_sandbox(engine), engine.process.pid
    rows = read_rows(server)
    postgres.halt()
    with engine.client() as client:
        wait_until(lambda: client.get("/ready").status_code == 503)
        refused = client.post("/v2/sandboxes", json={"templateID": "base"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert client.delete(f"/sandboxes/{doomed.sandbox_id}").status_code == 503
        assert list_ids(engine) == {sandbox.sandbox_id, doomed.sandbox_id}
        assert sandbox.commands.run("echo still here").stdout == "still here\n"
        postgres.resume()
        wait_until(lambda: client.get("/ready").status_code == 204)
    assert read_rows(server) == rows
    doomed.kill()
    assert [row[0] for row in read_rows(server)] == [sandbox.sandbox_id]
    assert engine.process.pid == pid
    assert engine.process.poll() is None


@pytest.mark.slow
def test_an_engine_with_the_same_data_directory_adopts_the_sandboxes(make_engine: Callable[..., Engine]) -> None:
    first, second = make_engine(), make_engine()
    second.data = first.data
    first.start()
    sandbox = create_sandbox(first)
    second.launch()
    wait_until(lambda: get_health(second)[0] == 200)
    assert "data directory" in get_health(second)[1]
    first.kill()
    wait_until(lambda: get_health(second)[0] == 204, TAKEOVER_SECONDS)
    assert Sandbox.connect(sandbox.sandbox_id, **get_options(second)).commands.run("echo hi").stdout == "hi\n"
    second.clear()


@pytest.mark.slow
def test_an_engine_that_stops_properly_is_replaced_at_once(engines: tuple[Engine, Engine]) -> None:
    first, second = engines
    assert first.process is not None
    first.process.terminate()
    wait_until(lambda: get_health(second)[0] == 204, TAKEOVER_SECONDS)
    assert "unless it returns" not in second.tail()


@pytest.mark.slow
def test_the_standby_of_other_hosts_is_told_what_it_lacks(make_engine: Callable[..., Engine]) -> None:
    joining = {"JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0"}
    first, second = make_engine(**joining), make_engine(**joining)
    first.start()
    first.kill()
    second.launch()
    wait_until(lambda: second.process is not None and second.process.poll() is not None)
    assert "Copy the folder `ca`" in second.tail()
