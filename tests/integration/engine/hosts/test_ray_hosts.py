"""The sidecar and the keeper in their real processes, with a real host service and a fake Ray. `tests/acceptance/test_ray.py` uses
the real Ray."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.hosts.machines import Machine
from sandyard.engine.hosts.ray_cluster import credentials, keeper, source
from sandyard.engine.hosts.ray_cluster.messages import encode
from sandyard.engine.hosts.ray_cluster.source import RayMachines, RayOptions, require_ray
from sandyard.engine.hosts.supply import HostSupply
from sandyard.kit.errors import SandyardError, UnreachableError, UnsupportedError
from sandyard.kit.listen import free_port
from sandyard.kit.python import make_python_command
from tests.harness.processes import kill_users
from tests.unit.engine.hosts.support import EngineSide, open_engine

SECONDS = 60
FAKE_RAY = Path(__file__).parent / "fake_ray"
NODE = {
    "NodeID": "a1",
    "NodeName": "worker",
    "NodeManagerAddress": "127.0.0.1",
    "Alive": True,
    "Resources": {"sandyard": 1.0},
}
ELSEWHERE = [
    {**NODE, "NodeID": "b2", "Alive": False},
    {**NODE, "NodeID": "c3", "Resources": {"CPU": 8.0}},
]


class Cluster:
    """The cluster of the fake Ray, whose only node is this machine."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "nodes.json"
        self.host = folder / "host"

    def set_nodes(self, *nodes: dict[str, Any]) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps(nodes))
        new.replace(self.file)

    def kill_service(self) -> int | None:
        pid = keeper.find_service(self.host)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        return pid


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.05)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path)
    variables = {
        "PYTHONPATH": str(FAKE_RAY),
        "FAKE_RAY_NODES": str(made.file),
        "SANDYARD_DATA_DIR": str(made.host),
        "SANDYARD_DRIVER": "fake",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(source, "MAX_RETRY_S", 0.5)
    return made


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[EngineSide]:
    with open_engine(tmp_path / "engine") as opened:
        async with opened.serve():
            yield opened


@pytest.fixture
async def machines(cluster: Cluster, engine: EngineSide, tmp_path: Path) -> AsyncIterator[RayMachines]:
    (folder,) = credentials.create(tmp_path / "ray", ["127.0.0.1"])
    options = RayOptions("127.0.0.1:6379", folder, free_port(), engine.enrollment.fingerprint)
    made = RayMachines(options)
    made.open()
    yield made
    await made.close()
    kill_users(cluster.host)


async def test_nodes_become_hosts_that_are_kept_running(
    cluster: Cluster, engine: EngineSide, machines: RayMachines
) -> None:
    supply = HostSupply([machines], engine.hosts, engine.enrollment, engine.database)
    supply.start()
    try:
        await wait_until(lambda: machines.problem and "Could not find a Ray cluster" in machines.problem)
        assert not machines.list()

        cluster.set_nodes(NODE, *ELSEWHERE)
        await wait_until(engine.hosts.list)
        (host,) = engine.hosts.list()
        assert (host.source, host.record.name, host.record.address) == ("ray", "worker", "127.0.0.1")
        await wait_until(lambda: keeper.find_service(cluster.host))
        first = cluster.kill_service()
        await wait_until(lambda: keeper.find_service(cluster.host) not in {None, first})
        await wait_until(lambda: supply.list()[0].machines == [(Machine("a1", "worker", "127.0.0.1"), None)])

        cluster.set_nodes(*ELSEWHERE)
        await wait_until(lambda: not machines.list())
        assert supply.is_missing("ray", host.record)
        assert keeper.find_service(cluster.host), "a node that is gone from Ray may be back: its sandboxes run"
    finally:
        await supply.close()


async def test_removed_machine_comes_back_as_another_host(
    cluster: Cluster, engine: EngineSide, machines: RayMachines
) -> None:
    supply = HostSupply([machines], engine.hosts, engine.enrollment, engine.database)
    supply.start()
    try:
        cluster.set_nodes(NODE)
        await wait_until(lambda: keeper.find_service(cluster.host))
        (before,) = engine.hosts.list()
        service = keeper.find_service(cluster.host)
        supply.remove("ray", before.record)
        engine.hosts.forget(before.record.id)
        cluster.set_nodes({**NODE, "NodeID": "f6"})
        await wait_until(engine.hosts.list)
        (after,) = engine.hosts.list()
        assert after.record.id != before.record.id
        await wait_until(lambda: keeper.find_service(cluster.host) not in {None, service})
    finally:
        await supply.close()


async def test_sidecar_is_replaced_and_its_machines_remain(cluster: Cluster, machines: RayMachines) -> None:
    cluster.set_nodes(NODE)
    await wait_until(machines.list)
    cluster.file.write_text("what Ray says when it fails")
    await wait_until(lambda: machines.problem)
    assert [machine.id for machine in machines.list()] == ["a1"]
    with pytest.raises(UnreachableError):
        await machines.start(machines.list()[0], None)
    cluster.set_nodes(NODE, {**NODE, "NodeID": "d4", "NodeManagerAddress": "127.0.0.2"})
    await wait_until(lambda: machines.problem is None)
    await wait_until(lambda: len(machines.list()) == 2)


def test_sidecar_ends_with_its_engine(cluster: Cluster, tmp_path: Path) -> None:
    cluster.set_nodes(NODE)
    (folder,) = credentials.create(tmp_path / "ray", ["127.0.0.1"])
    environment = {**os.environ, **credentials.make_environment(folder)}
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        command = make_python_command(source.MODULE, str(number))
        process = subprocess.Popen(command, env=environment, pass_fds=(number,))
    with ours, ours.makefile("rb") as lines:
        ours.sendall(encode({"connect": {"address": "127.0.0.1:6379", "namespace": "n"}}))
        assert b"machines" in lines.readline()
        assert process.poll() is None
    assert process.wait(SECONDS) == 0


async def test_errors_on_a_node_are_reported(cluster: Cluster, engine: EngineSide, machines: RayMachines) -> None:
    cluster.set_nodes(NODE)
    await wait_until(machines.list)
    (machine,) = machines.list()
    token = engine.enrollment.create_token(60, "ray").token
    engine.enrollment.address = "127.0.0.1:1"
    unreachable = engine.enrollment.create_token(60, "ray").token
    with pytest.raises(SandyardError, match="The engine does not respond"):
        await machines.start(machine, unreachable)
    await machines.start(machine, token)
    with pytest.raises(SandyardError, match="public address"):
        await machines.start(Machine("e5", "cloud", "8.8.8.8"), token)


def test_missing_package_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match=r"pip install 'sandyard\[ray\]'"):
        require_ray()
