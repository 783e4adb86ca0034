"""An engine whose sandboxes run on two other hosts, used by the unmodified SDK as if it were one machine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox

from tests.acceptance.joined_hosts import Cluster, Host
from tests.harness.engine import Engine

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["fake", pytest.param("namespace", marks=pytest.mark.slow)])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    driver = str(request.param)
    if driver == "namespace" and os.geteuid() != 0:
        pytest.skip("hosts with real sandboxes need root")
    settings = {"POOL_SIZE": "0", "JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0", "LOCAL_SANDBOXES": "false"}
    engine = Engine({**settings, "DRIVER": driver})
    engine.start()
    folder = Path(tmp_path_factory.mktemp("hosts", numbered=True)) if driver == "fake" else engine.folder / "hosts"
    folder.mkdir(exist_ok=True)
    cluster = Cluster(engine, {name: Host(name, folder / name, driver) for name in ("one", "two")})
    try:
        for host in cluster.hosts.values():
            host.join(engine)
            host.serve()
        cluster.wait_for("ready", "one", "two")
        yield cluster
        for sandbox in cluster.created:
            sandbox.kill()
    finally:
        engine.clear()
        for host in cluster.hosts.values():
            host.stop()
        engine.stop()


def read(sandbox: Sandbox, path: str) -> str:
    return str(sandbox.files.read(path))


def test_two_hosts_are_like_one_machine(cluster: Cluster) -> None:
    first = cluster.create()
    second = cluster.create_elsewhere(first)
    for sandbox in (first, second):
        sandbox.files.write("note.txt", sandbox.sandbox_id)
        assert sandbox.commands.run("cat note.txt").stdout == sandbox.sandbox_id
    home = cluster.find_host(first)
    counter = first.commands.run("sleep 1000", background=True)

    snapshot = first.create_snapshot()
    cluster.drain(home, evacuating=False)
    copy = cluster.create(template=snapshot.snapshot_id)
    assert cluster.find_host(copy).name != home.name
    assert read(copy, "note.txt") == first.sandbox_id
    cluster.drain(home, draining=False)

    home.kill()
    cluster.wait_for("unreachable", home.name)
    assert read(second, "note.txt") == second.sandbox_id, "the other host is not affected"
    home.serve()
    cluster.wait_for("ready", home.name)
    assert first.commands.run(f"kill -0 {counter.pid} && echo alive").stdout == "alive\n"

    first.pause()
    cluster.engine.kill()
    cluster.engine.start()
    cluster.wait_for("ready", "one", "two")
    assert {info.sandbox_id for info in _list(cluster)} == {first.sandbox_id, second.sandbox_id, copy.sandbox_id}
    first.connect()
    assert first.commands.run(f"kill -0 {counter.pid} && echo alive").stdout == "alive\n"
    assert read(copy, "note.txt") == first.sandbox_id

    for sandbox in (first, second, copy):
        sandbox.kill()
    assert {name: host["sandboxes"] for name, host in cluster.list().items()} == {"local": 0, "one": 0, "two": 0}


def _list(cluster: Cluster) -> list[Any]:
    found: list[Any] = Sandbox.list(api_url=cluster.engine.url, api_key=cluster.engine.key).next_items()
    return found
