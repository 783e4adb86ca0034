"""The files in deploy/monitoring with a real Prometheus, which reads the metrics of a real platform and engine."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.kit.listen import free_port
from tests.harness.deployment import DEPLOY, find_program, running_program
from tests.harness.engine import Engine, serving
from tests.harness.platform import Platform, ok, running, until

pytestmark = pytest.mark.slow
FOLDER = DEPLOY / "monitoring"
_NAME = re.compile(r"\bsandyard_[a-z0-9_]+\b")
UNHAPPENED = {
    "sandyard_engine_operation_failures_total",  # nothing has failed in the engine of this test
    "sandyard_engine_pool_ready",  # it has no pool
    "sandyard_engine_pool_target",
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    with serving(POOL_SIZE="0", LAYER_STORE=str(tmp_path_factory.mktemp("layers"))) as engine:
        yield engine


@pytest.fixture(scope="module")
def platform(engine: Engine) -> Iterator[Platform]:
    with running(engine) as platform:
        yield platform


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("prometheus")


@pytest.fixture(scope="module")
def prometheus(engine: Engine, platform: Platform, folder: Path) -> Iterator[httpx.Client]:
    """The API of a Prometheus with the configuration as it is shipped, except for addresses and intervals."""
    config = (FOLDER / "prometheus.yml").read_text()
    for before, after in {
        "127.0.0.1:8700": httpx.URL(platform.url).netloc.decode(),
        "127.0.0.1:8701": f"127.0.0.1:{engine.port}",
        "interval: 15s": "interval: 1s",
    }.items():
        assert before in config
        config = config.replace(before, after)
    (folder / "prometheus.yml").write_text(config)
    (folder / "engine.key").write_text(engine.key)
    shutil.copy(FOLDER / "sandyard.rules.yml", folder)
    port = free_port()
    command = [find_program("prometheus"), "--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    with (
        running_program([*command, f"--web.listen-address=127.0.0.1:{port}"], folder / "prometheus.log"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=10) as client,
    ):
        yield client


def read(client: httpx.Client, path: str, **query: str) -> Any:
    answer = client.get(path, params=query)
    found = answer.json()
    assert found["status"] == "success", found
    return found["data"]


def responds(client: httpx.Client) -> bool:
    try:
        return client.get("/status/runtimeinfo").is_success
    except httpx.TransportError:
        return False


def list_expressions() -> list[str]:
    panels = json.loads((FOLDER / "grafana-dashboard.json").read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_files_are_valid() -> None:
    promtool = find_program("promtool")
    done = subprocess.run(
        [promtool, "check", "rules", str(FOLDER / "sandyard.rules.yml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_all_metrics_of_alerts_and_dashboard_are_read_from_real_servers(
    platform: Platform, prometheus: httpx.Client
) -> None:
    until(lambda: responds(prometheus))
    sandbox = ok(platform.client.post("/sandboxes", json={}))["id"]
    ok(platform.client.post(f"/sandboxes/{sandbox}/execute", json={"command": "true"}))
    ok(platform.client.delete(f"/sandboxes/{sandbox}"))

    used = set(_NAME.findall((FOLDER / "sandyard.rules.yml").read_text()))
    used |= {name for expression in list_expressions() for name in _NAME.findall(expression)}

    def find_missing() -> set[str]:
        return used - UNHAPPENED - set(read(prometheus, "/label/__name__/values"))

    until(lambda: not find_missing() or None, patience=60)
    targets = read(prometheus, "/targets")["activeTargets"]
    assert {target["labels"]["job"]: target["health"] for target in targets} == {
        "sandyard": "up",
        "sandyard-engine": "up",
    }

    rules = [rule for group in read(prometheus, "/rules")["groups"] for rule in group["rules"]]
    assert len(rules) > 15
    for rule in rules:
        assert rule["labels"]["severity"] in ("page", "ticket"), rule["name"]
        assert rule["annotations"]["summary"].endswith("."), rule["name"]
    until(
        lambda: all(rule["health"] == "ok" for group in read(prometheus, "/rules")["groups"] for rule in group["rules"])
    )
    for expression in list_expressions():
        read(prometheus, "/query", query=expression)


def test_an_alert_is_raised_if_the_engine_refuses_the_key(prometheus: httpx.Client, folder: Path) -> None:
    until(lambda: responds(prometheus))

    def get_states() -> dict[str, str]:
        rules = (rule for group in read(prometheus, "/rules")["groups"] for rule in group["rules"])
        return {rule["name"]: rule["state"] for rule in rules}

    until(lambda: get_states()["SandyardEngineDown"] == "inactive")
    (folder / "engine.key").write_text("e2b_another")
    until(lambda: get_states()["SandyardEngineDown"] == "pending")  # it fires after two minutes
    assert get_states()["SandyardDown"] == "inactive"
