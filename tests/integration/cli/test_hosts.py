"""`sandyard host` with an engine process on the fake driver."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from e2b import Sandbox

from sandyard.cli.main import cli
from sandyard.kit.listen import free_port
from tests.harness.engine import Engine
from tests.harness.processes import ROOT, Program


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    settings = {"DRIVER": "fake", "POOL_SIZE": "0", "JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0"}
    running = Engine(settings)
    running.start()
    yield running
    running.stop()


def run(engine: Engine, *words: str, input: str | None = None) -> Result:
    return CliRunner().invoke(
        cli,
        ["host", *words],
        input=input,
        env={"E2B_API_URL": engine.url, "E2B_API_KEY": engine.key, "SANDYARD_DATA_DIR": ""},
    )


def create_token(engine: Engine) -> str:
    result = run(engine, "token")
    assert result.exit_code == 0, result.output
    command = result.stdout.strip()
    assert command.startswith("sandyard host join syj_")
    return command.split()[-1]


def list_hosts(engine: Engine) -> dict[str, dict[str, object]]:
    return {host["name"]: host for host in json.loads(run(engine, "list").stdout)["hosts"]}


@contextlib.contextmanager
def join_host(engine: Engine, folder: Path, name: str) -> Iterator[None]:
    result = run(
        *(engine, "join", create_token(engine), "--name", name, "--label", "zone=a", "--data-dir", str(folder)),
    )
    assert result.exit_code == 0, result.output
    assert f"sandyard host serve --data-dir {folder}" in result.stdout
    yield
    run(engine, "forget", name, "--force")


def test_a_machine_joins_and_is_managed(engine: Engine, tmp_path: Path) -> None:
    with join_host(engine, tmp_path / "host", "two"):
        assert list(list_hosts(engine)) == ["local", "two"]
        assert list_hosts(engine)["two"]["labels"] == {"zone": "a"}
        assert run(engine, "label", "two", "zone-", "disk=fast").stdout == "two: disk=fast\n"
        assert "no new sandboxes" in run(engine, "drain", "two").stdout
        assert list_hosts(engine)["two"]["draining"] is True
        assert "new sandboxes again" in run(engine, "drain", "two", "--undo").stdout
        table = run(engine, "list", "-o", "table").stdout
        assert "two" in table
        assert "disk=fast" in table
        assert run(engine, "forget", "two").stdout == "Removed two.\n"
        assert list(list_hosts(engine)) == ["local"]


def test_a_token_is_good_for_one_machine(engine: Engine, tmp_path: Path) -> None:
    token = create_token(engine)
    first = run(engine, "join", token, "--name", "one", "--data-dir", str(tmp_path / "one"))
    assert first.exit_code == 0, first.output
    second = run(engine, "join", token, "--name", "two", "--data-dir", str(tmp_path / "two"))
    assert second.exit_code == 1
    assert "used by another host" in second.output
    assert (tmp_path / "one" / "identity" / "key.pem").exists()
    left = run(engine, "leave", "--data-dir", str(tmp_path / "one"))
    assert "no longer a host" in left.stdout, left.output
    assert list(list_hosts(engine)) == ["local"]
    assert not (tmp_path / "one" / "identity" / "key.pem").exists()


def test_a_token_can_be_given_on_standard_input(engine: Engine, tmp_path: Path) -> None:
    token, data = create_token(engine), ["--data-dir", str(tmp_path / "quiet")]
    joined = CliRunner().invoke(cli, ["host", "join", "-", "--name", "quiet", *data], input=f"{token}\n")
    assert joined.exit_code == 0, joined.output
    assert token not in joined.output
    run(engine, "forget", "quiet")


def test_hosts_survive_a_restart_of_the_engine(engine: Engine, tmp_path: Path) -> None:
    with join_host(engine, tmp_path / "host", "two"):
        before = list_hosts(engine)["two"]["certificateExpiresAt"]
        engine.kill()
        engine.start()
        assert list_hosts(engine)["two"]["certificateExpiresAt"] == before


def test_joining_needs_a_token_and_serving_needs_to_have_joined(engine: Engine, tmp_path: Path) -> None:
    result = run(engine, "join", "nonsense", "--data-dir", str(tmp_path))
    assert "not a join token" in result.output
    result = run(engine, "leave", "--data-dir", str(tmp_path / "nothing"))
    assert "has not joined an engine" in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def host(engine: Engine, tmp_path: Path) -> Iterator[str]:
    """A host that serves, by its name."""
    folder, port = tmp_path / "host", str(free_port())
    place = ("--name", "two", "--port", port, "--address", "127.0.0.1", "--data-dir", str(folder))
    result = run(engine, "join", create_token(engine), *place)
    assert result.exit_code == 0, result.output
    log = tmp_path / "host.log"
    arguments = ["host", "serve", "--listen", "127.0.0.1", "--driver", "fake", "--data-dir", str(folder)]
    process = Program(arguments, {**os.environ}, ROOT, out=log, err=log)
    try:
        wait_until(lambda: list_hosts(engine)["two"]["state"] == "ready", log)
        yield "two"
    finally:
        engine.clear()
        run(engine, "forget", "two", "--force")
        process.terminate()
        process.wait(30)


def create_on(engine: Engine, name: str) -> Sandbox:
    """Create sandboxes until one is on this host: the host with most free memory is chosen."""
    before = list_hosts(engine)[name]["sandboxes"]
    for _ in range(30):
        created = Sandbox.create(**get_options(engine))
        if list_hosts(engine)[name]["sandboxes"] != before:
            return created
    raise AssertionError(f"no sandbox was placed on {name}")


def get_options(engine: Engine) -> dict[str, Any]:
    return {"api_url": engine.url, "sandbox_url": engine.url, "api_key": engine.key}


def test_sandboxes_run_on_a_host_that_serves(engine: Engine, host: str) -> None:
    sandbox = create_on(engine, host)
    assert sandbox.commands.run("echo from $((1 + 1))").stdout == "from 2\n"
    assert run(engine, "drain", host, "--keep").exit_code == 0
    for _ in range(3):
        Sandbox.create(**get_options(engine))
    assert list_hosts(engine)[host]["sandboxes"] == 1
    refused = run(engine, "forget", host)
    assert "still has 1 sandbox, which would be lost" in refused.output
    sandbox.kill()
    assert run(engine, "forget", host).exit_code == 0


def test_a_drained_host_gives_its_sandboxes_to_others(engine: Engine, host: str) -> None:
    sandbox = create_on(engine, host)
    sandbox.files.write("work", "content")
    paused = create_on(engine, host)
    paused.files.write("work", "of the paused one")
    paused.pause()
    result = run(engine, "drain", host, "--wait")
    assert result.exit_code == 0, result.output
    assert result.output.endswith(f"2 of 2 sandboxes moved\n{host} is empty.\n"), result.output
    assert list_hosts(engine)[host]["sandboxes"] == 0
    assert sandbox.files.read("work") == "content"
    detail = engine.client().get(f"/sandboxes/{sandbox.sandbox_id}").json()
    assert (detail["state"], detail["memoryLost"]) == ("running", "Its host two was drained")
    assert engine.client().get(f"/sandboxes/{paused.sandbox_id}").json()["state"] == "paused"
    paused.connect()
    assert paused.files.read("work") == "of the paused one"
    assert run(engine, "forget", host).exit_code == 0
    assert sandbox.commands.run("cat work").stdout == "content"
    engine.kill()
    engine.start()
    assert sandbox.files.read("work") == "content"


def test_the_sandboxes_of_a_lost_host_are_recovered(engine: Engine, tmp_path: Path) -> None:
    folder, log = tmp_path / "host", tmp_path / "host.log"
    place = ("--name", "three", "--port", str(free_port()), "--address", "127.0.0.1", "--data-dir", str(folder))
    assert run(engine, "join", create_token(engine), *place).exit_code == 0
    arguments = ["host", "serve", "--listen", "127.0.0.1", "--driver", "fake", "--data-dir", str(folder)]
    process = Program(arguments, {**os.environ}, ROOT, out=log, err=log)
    try:
        wait_until(lambda: list_hosts(engine)["three"]["state"] == "ready", log)
        sandbox = create_on(engine, "three")
        sandbox.files.write("work", "content")
        refused = run(engine, "recover", "three", "--yes")
        assert "can be reached" in refused.output
        sandbox.pause()
        wait_until(lambda: get_checkpoints(engine, "three") == 1, log)
        process.kill()
        process.wait()
        wait_until(lambda: list_hosts(engine)["three"]["state"] == "unreachable", log)
        assert run(engine, "forget", "three").exit_code == 1
        result = run(engine, "recover", "three", "--wait", input="y\n")
        assert result.exit_code == 0, result.output
        assert "1 of 1 sandbox can be recovered with files from" in result.output
        assert "1 of 1 sandbox moved" in result.output
        sandbox.connect()
        assert sandbox.files.read("work") == "content"
    finally:
        process.kill()
        process = Program(arguments, {**os.environ}, ROOT, out=log, err=log)  # the host comes back
        wait_until(lambda: list_hosts(engine)["three"]["state"] == "ready", log)
        engine.clear()
        wait_until(lambda: not list((folder / "fake/sandboxes").iterdir()), log)
        assert run(engine, "forget", "three").exit_code == 0
        process.terminate()
        process.wait(30)


def get_checkpoints(engine: Engine, name: str) -> int:
    found: Any = list_hosts(engine)[name]["checkpoints"]
    return int(found["count"])


def wait_until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)
