"""An engine process with a layer store, as the E2B SDK and an operator see it: published, killed, lost, restored."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.harness.engine import Engine, pointed_at
from tests.integration.engine.layers.harness import lose
from tests.later import Later

if TYPE_CHECKING:
    import e2b
else:
    e2b = Later("e2b")

WAIT_S = 90.0
PACK_S = 600.0  # for the template `base`, on a busy machine


@contextlib.contextmanager
def started(**settings: str) -> Iterator[Engine]:
    engine = Engine({"POOL_SIZE": "0", **settings})
    engine.start()
    try:
        with pointed_at(engine):
            yield engine
    finally:
        engine.stop()


def wait_for(condition: Callable[[], Any], engine: Engine, seconds: float = WAIT_S) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, engine.tail()
        time.sleep(0.05)


def is_durable(client: httpx.Client, ref: str) -> bool:
    found = {item["snapshotID"]: item["durable"] for item in client.get("/snapshots").json()}
    return bool(found[ref])


def run(*words: str) -> str:
    result = CliRunner().invoke(cli, ["snapshot", *words])
    assert result.exit_code == 0, result.output
    return result.output


def restart_without_data(engine: Engine) -> None:
    """Kill the engine and delete everything it had on this machine."""
    engine.kill()
    lose(engine.data)
    engine.launch()
    engine.wait_until_ready()


@pytest.mark.slow
def test_a_lost_engine_gets_its_snapshots_back(directory: Path) -> None:
    with started(DRIVER="fake", LAYER_STORE=str(directory)) as engine, engine.client() as client:
        sandbox = e2b.Sandbox.create()
        sandbox.files.write("note", "kept")
        ref = sandbox.create_snapshot(name="mine").snapshot_id
        wait_for(lambda: is_durable(client, ref), engine)
        assert run("list").split() == ["durable", "mine:default"]
        status = client.get("/layer-store").json()
        assert (status["location"], status["published"], status["pending"]) == (str(directory), 1, 0)
        assert client.get("/ready").status_code == 204
        directory.rename(away := directory.with_name("away"))
        later = sandbox.create_snapshot().snapshot_id
        wait_for(lambda: client.get("/ready").status_code == 200, engine)
        assert "does not exist" in client.get("/ready").json()["message"]
        assert "sandyard_engine_layer_store_up 0" in client.get("/metrics").text
        assert not is_durable(client, later)
        sandbox.kill()
        restart_without_data(engine)
        assert client.get("/snapshots").json() == []
        response = client.post("/v2/sandboxes", json={"templateID": "mine"})
        assert (response.status_code, "could not be asked" in response.text) == (502, True)
        away.rename(directory)
        wait_for(lambda: client.get("/ready").status_code == 204, engine)
        assert run("list").split()[:2] == ["published", "mine:default"]
        restored = e2b.Sandbox.create("mine")
        assert restored.files.read("note") == "kept"
        assert run("list").split() == ["durable", "mine:default"]
        metrics = client.get("/metrics").text
        assert "layer_store_up 1" in metrics and "layer_store_snapshots_published 1" in metrics
        assert httpx.get(f"{engine.url}/metrics").status_code == 401
        response = client.post("/v2/sandboxes", json={"templateID": "unknown"})
        assert (response.status_code, "not found" in response.text) == (404, True)
        restored.kill()
        assert client.delete("/templates/mine").status_code == 204
        wait_for(lambda: not list((directory / "snapshots").iterdir()), engine)


def test_an_engine_without_a_layer_store_says_so() -> None:
    with started(DRIVER="fake") as engine, engine.client() as client:
        sandbox = e2b.Sandbox.create()
        ref = sandbox.create_snapshot().snapshot_id
        assert run("list").split() == ["local", ref]
        assert client.get("/snapshots").json()[0]["durable"] is False
        assert "--layer-store" in client.get("/layer-store").json()["message"]
        result = CliRunner().invoke(cli, ["snapshot", "pull", ref])
        assert result.exit_code == 1 and "--layer-store" in result.output


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(os.geteuid() != 0, reason="the copy-on-write store needs root")
@pytest.mark.parametrize("isolation", ["namespace", "gvisor"])
def test_the_template_base_travels_too(directory: Path, tmp_path: Path, isolation: str) -> None:
    """With the template that everybody uses, and an engine that has another version of it."""
    sidecars = list(Path("/var/lib/sandyard/templates").glob("*/*/layer.json"))
    with (
        started(LAYER_STORE=str(directory), BUILD_DESKTOP="false", BUILD_DOCKER="false") as engine,
        engine.client() as client,
    ):
        metadata = {"sandyard.isolation": isolation}
        sandbox = e2b.Sandbox.create(metadata=metadata, timeout=3600)
        script = "head -c 50000000 /dev/urandom > big; sudo rm -r /usr/share/doc; sudo mv /usr/share/man /usr/share/old"
        sandbox.commands.run(f"{script}; sudo useradd new; git init repo; find /usr /etc -type f -xdev | sort > list")
        check = "sha256sum big list; find /usr /etc -type f -xdev | sort | cmp - list; id new; ls -d /usr/share/*; git -C repo status"
        expected = sandbox.commands.run(check).stdout
        ref = sandbox.create_snapshot().snapshot_id
        wait_for(lambda: is_durable(client, ref), engine, PACK_S)
        sandbox.kill()
        for path in Path("/var/lib/sandyard/templates").glob("*/*/layer.json"):
            if path not in sidecars:
                path.unlink()  # then the template here is not known to be the same
        restart_without_data(engine)
        run("pull", ref.partition(":")[0])
        restored = e2b.Sandbox.create(ref, metadata=metadata, timeout=3600)
        assert restored.commands.run(check).stdout == expected
        restored.kill()
