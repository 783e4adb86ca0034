"""Sandboxes move between three hosts with networks of their own, while hosts, the engine and the network fail."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from sandyard.kit.listen import free_port
from tests.acceptance.joined_hosts import Cluster, start_cluster, wait_until
from tests.harness.engine import Engine

pytestmark = pytest.mark.timeout(600)
COUNT = 10
SETTINGS = {
    "POOL_SIZE": "0",
    "LOCAL_SANDBOXES": "false",
    "CHECKPOINT_INTERVAL_S": "1",
    "DISK_RESERVE_MB": "1024",
}


@pytest.fixture(params=["fake", pytest.param("namespace", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("hosts with networks of their own need root")
    with start_cluster(("one", "two", "three"), SETTINGS, str(request.param)) as cluster:
        yield cluster


def test_no_sandbox_is_lost_whose_host_lives(cluster: Cluster) -> None:
    one, two, three = cluster.hosts.values()
    copy = copy_database(cluster.engine)
    for host in (two, three):
        cluster.drain(host, evacuating=False)
    sandboxes = [cluster.create() for _ in range(COUNT)]
    for sandbox in sandboxes:
        sandbox.files.write("note.txt", sandbox.sandbox_id)
    paused = {sandboxes[0].sandbox_id, sandboxes[1].sandbox_id}
    for sandbox in sandboxes[:2]:
        sandbox.pause()
    assert count(cluster) == {"one": COUNT, "two": 0, "three": 0}

    # A drain that the death of the engine interrupts
    for host in (two, three):
        cluster.drain(host, draining=False)
    cluster.drain(one)
    wait_until(lambda: count(cluster)["one"] <= COUNT - 3, cluster.explain)
    cluster.engine.kill()
    cluster.engine.start()
    wait_until(lambda: count(cluster) | {"two": 0, "three": 0} == dict.fromkeys(cluster.hosts, 0), cluster.explain)
    cluster.drain(one, draining=False)
    check(cluster, sandboxes, paused)
    assert sum(count(cluster).values()) == COUNT

    # A drain of a host that dies and comes back
    before = count(cluster)["two"]
    cluster.drain(two)
    wait_until(lambda: count(cluster)["two"] < before, cluster.explain)
    two.kill()
    cluster.wait_for("unreachable", "two")
    two.serve()
    wait_until(lambda: count(cluster)["two"] == 0, cluster.explain)
    check(cluster, sandboxes, paused)
    assert sum(count(cluster).values()) == COUNT

    # A host whose network is cut while it is drained: what runs there goes on
    cluster.drain(two, draining=False)
    on_three = [sandbox for sandbox in sandboxes[2:] if cluster.find_host(sandbox) is three]
    counters = [(sandbox, sandbox.commands.run("sleep 1000", background=True).pid) for sandbox in on_three]
    assert three.cable is not None
    with three.cable.cut():
        cluster.wait_for("unreachable", "three")
        cluster.drain(three)
        wait_until(lambda: len(cluster.list()["three"]["evacuation"]["failures"]) >= len(on_three), cluster.explain)
        for sandbox in sandboxes[2:]:
            if sandbox not in on_three:
                assert sandbox.files.read("note.txt") == sandbox.sandbox_id
        cluster.drain(three, draining=False)
    cluster.wait_for("ready", "three")
    for sandbox, pid in counters:
        assert sandbox.commands.run(f"kill -0 {pid} && echo alive").stdout == "alive\n"
    check(cluster, sandboxes, paused)

    # A host that is lost, and comes back
    cluster.drain(two)
    wait_until(lambda: count(cluster)["two"] == 0, cluster.explain)
    on_three = [sandbox for sandbox in sandboxes if cluster.find_host(sandbox) is three]
    assert on_three
    wait_until(lambda: cluster.list()["three"]["checkpoints"]["count"] == len(on_three), cluster.explain)
    with three.cable.cut():
        cluster.wait_for("unreachable", "three")
        with cluster.engine.client() as client:
            assert client.post("/hosts/three/recover").json()["lost"] is True
        cluster.engine.kill()
        cluster.engine.start()
        wait_until(lambda: count(cluster)["three"] == 0, cluster.explain)
        check(cluster, sandboxes, paused)
        for sandbox in on_three:
            assert cluster.find_host(sandbox) is one
            with cluster.engine.client() as client:
                reason = client.get(f"/sandboxes/{sandbox.sandbox_id}").json()["memoryLost"]
            assert "was lost; its files are from" in reason or sandbox.sandbox_id in paused
        assert three.list_sandboxes(), "its copies do not know yet"
    cluster.wait_for("ready", "three")
    wait_until(lambda: not three.list_sandboxes(), cluster.explain)
    wait_until(lambda: not cluster.list()["three"]["lost"], cluster.explain)
    assert cluster.list()["three"]["draining"], "an administrator decides when it is used again"
    check(cluster, sandboxes, paused)

    # An engine with an older epoch changes nothing
    older = start_older_engine(cluster.engine, copy)
    try:
        with older.client() as client:
            wait_until(lambda: "has taken over" in str(client.get("/hosts").json()), older.tail)
            assert {host["state"] for host in client.get("/hosts").json()["hosts"] if not host["local"]} == {
                "unreachable"
            }
    finally:
        older.kill()
        older.stop()
    check(cluster, sandboxes, paused)

    for sandbox in sandboxes[:2]:
        sandbox.connect()
        assert sandbox.files.read("note.txt") == sandbox.sandbox_id
    for sandbox in sandboxes:
        sandbox.kill()
    wait_until(lambda: not any(host.list_leftovers() for host in cluster.hosts.values()), cluster.explain)


def count(cluster: Cluster) -> dict[str, int]:
    """Return how many sandboxes each host has, including those that are being removed there."""
    return {name: host["sandboxes"] for name, host in cluster.list().items() if name in cluster.hosts}


def check(cluster: Cluster, sandboxes: list[Sandbox], paused: set[str]) -> None:
    """Check that all are there, in the state that they had, with their files, each on one host."""
    with cluster.engine.client() as client:
        found = {
            sandbox["sandboxID"]: sandbox["state"]
            for sandbox in client.get("/v2/sandboxes", params={"limit": 100}).json()
        }
    assert found == {
        sandbox.sandbox_id: "paused" if sandbox.sandbox_id in paused else "running" for sandbox in sandboxes
    }
    for sandbox in sandboxes:
        if sandbox.sandbox_id not in paused:
            assert sandbox.files.read("note.txt") == sandbox.sandbox_id, cluster.explain()


def copy_database(engine: Engine) -> Path:
    """Copy what makes an engine the owner of its hosts."""
    copy = engine.folder / "copy"
    copy.mkdir()
    with sqlite3.connect(engine.data / "engine.db") as database, sqlite3.connect(copy / "engine.db") as target:
        database.backup(target)
    for name in ("ca",):
        if (engine.data / name).exists():
            shutil.copytree(engine.data / name, copy / name)
    return copy


def start_older_engine(engine: Engine, copy: Path) -> Any:
    older = Engine(
        {**SETTINGS, "DRIVER": "fake", "JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0"}, key=engine.key, port=free_port()
    )
    shutil.copytree(copy, older.data)
    older.start()
    return older
