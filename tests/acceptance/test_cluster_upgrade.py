"""Engine and hosts are upgraded one after the other, while sandboxes run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from e2b import Sandbox

from sandyard import __version__
from sandyard.engine.drivers.cluster.connections import OLDEST_PROTOCOL, PROTOCOL
from tests.acceptance.joined_hosts import Cluster, Host, wait_until
from tests.harness.engine import Engine
from tests.harness.releases import Release
from tests.proof.record import record

pytestmark = pytest.mark.timeout(300)
NEXT = Release("next", PROTOCOL + 1, PROTOCOL)
TOO_NEW = Release("too-new", PROTOCOL + 9, PROTOCOL + 2)
TOO_OLD = Release("too-old", OLDEST_PROTOCOL - 1, OLDEST_PROTOCOL - 1)
SETTINGS = {"POOL_SIZE": "0", "JOIN_ADDRESS": "127.0.0.1", "JOIN_PORT": "0", "LOCAL_SANDBOXES": "false"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    engine = Engine({**SETTINGS, "DRIVER": "fake"})
    engine.start()
    folder = Path(tmp_path_factory.mktemp("hosts", numbered=True))
    cluster = Cluster(engine, {name: Host(name, folder / name, "fake") for name in ("one", "two")})
    try:
        for host in cluster.hosts.values():
            host.join(engine)
            host.serve()
        cluster.wait_for("ready", "one", "two")
        yield cluster
    finally:
        for host in cluster.hosts.values():
            host.stop()
        engine.stop()


def wait_for_release(cluster: Cluster, host: Host, version: str) -> None:
    def is_ready() -> bool:
        found = cluster.list()[host.name]
        return (found["state"], found["version"]) == ("ready", version)

    wait_until(is_ready, cluster.explain)


def check_running(processes: dict[Sandbox, int]) -> None:
    for sandbox, pid in processes.items():
        assert sandbox.commands.run(f"kill -0 {pid} && echo alive").stdout == "alive\n"


def test_hosts_and_engine_of_neighbouring_releases_work_together(cluster: Cluster) -> None:
    sandboxes = [cluster.create() for _ in range(4)]
    processes = {sandbox: sandbox.commands.run("sleep 1000", background=True).pid for sandbox in sandboxes}
    assert {cluster.find_host(sandbox).name for sandbox in sandboxes} == {"one", "two"}
    for host in cluster.hosts.values():
        wait_for_release(cluster, host, __version__)
        host.upgrade(NEXT)
        wait_for_release(cluster, host, NEXT.version)
        check_running(processes)
        processes[cluster.create()] = cluster.created[-1].commands.run("sleep 1000", background=True).pid
    cluster.engine.kill()
    cluster.engine.release = NEXT
    cluster.engine.start()
    for host in cluster.hosts.values():
        wait_for_release(cluster, host, NEXT.version)
    assert cluster.list()["local"]["version"] == NEXT.version
    check_running(processes)
    record({"upgrades of hosts": len(cluster.hosts), "upgrades of the engine": 1}, {"sandboxes": 0, "processes": 0})


def test_hosts_are_drained_for_an_upgrade(cluster: Cluster) -> None:
    cluster.engine.clear()
    sandboxes = [cluster.create() for _ in range(2)]
    for sandbox in sandboxes:
        sandbox.files.write("note.txt", sandbox.sandbox_id)
    for host in cluster.hosts.values():
        cluster.drain(host)
        wait_until(lambda host=host: cluster.list()[host.name]["sandboxes"] == 0, cluster.explain)
        host.stop()
        for sandbox in sandboxes:
            assert sandbox.files.read("note.txt") == sandbox.sandbox_id, "it is used during the upgrade"
        host.upgrade(NEXT)
        wait_for_release(cluster, host, NEXT.version)
        cluster.drain(host, draining=False)
    assert {cluster.find_host(sandbox).name for sandbox in sandboxes} == {"one"}
    for sandbox in sandboxes:
        assert sandbox.files.read("note.txt") == sandbox.sandbox_id
    record({"upgrades of hosts": len(cluster.hosts)}, {"sandboxes": 0})


@pytest.mark.parametrize(("release", "behind"), [(TOO_NEW, "the engine"), (TOO_OLD, "this host")])
def test_other_releases_are_refused_with_what_to_upgrade(cluster: Cluster, release: Release, behind: str) -> None:
    cluster.drain(cluster.hosts["two"], evacuating=False)
    sandbox = cluster.create()
    pid = sandbox.commands.run("sleep 1000", background=True).pid
    host = cluster.hosts["one"]
    host.upgrade(release)
    wait_until(lambda: "host protocol" in (cluster.list()["one"]["reason"] or ""), cluster.explain)
    found = cluster.list()["one"]
    assert found["state"] == "unreachable"
    assert found["reason"].endswith(f"Releases may be one apart: upgrade {behind}.")
    host.upgrade(NEXT)
    wait_for_release(cluster, host, NEXT.version)
    check_running({sandbox: pid})
    cluster.drain(cluster.hosts["two"], draining=False)
