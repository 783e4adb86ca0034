"""Hosts on the nodes of a real Ray cluster: the head, the engine's own machine and two nodes for sandboxes, on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2b import Sandbox
from e2b.exceptions import ServiceBusyException

from sandyard.engine.hosts.ray_cluster.credentials import TOKEN, create, make_environment
from sandyard.engine.hosts.ray_cluster.nodes import FIRST_PORT, LAST_PORT
from tests.harness.engine import SCRATCH
from tests.harness.ray_cluster import PYTHON, EngineWithRay, RayCluster
from tests.proof.record import record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(os.geteuid() != 0, reason="networks and sandboxes of nodes need root"),
    pytest.mark.skipif(not PYTHON.exists(), reason="needs Ray: make setup-ray"),
]

SECONDS = 480
HEAD_AWAY_SECONDS = 120


class Setup:
    """The cluster with its engine, and its sandboxes."""

    def __init__(self, cluster: RayCluster, engine: EngineWithRay) -> None:
        self.cluster = cluster
        self.engine = engine

    def create(self) -> Sandbox:
        urls: dict[str, Any] = {"api_url": self.engine.url, "sandbox_url": self.engine.url, "api_key": self.engine.key}
        deadline = time.monotonic() + SECONDS
        while True:
            try:
                return Sandbox.create(timeout=3600, **urls)
            except ServiceBusyException:  # the template is being copied to the hosts
                assert time.monotonic() < deadline, self.explain()

    def get_hosts(self) -> dict[str, Any]:
        """Return the hosts by their addresses. The engine's own machine is not one of them."""
        with self.engine.client() as client:
            return {host["address"]: host for host in client.get("/hosts").json()["hosts"] if not host["local"]}

    def get_source(self) -> dict[str, Any]:
        with self.engine.client() as client:
            sources = client.get("/hosts").json()["sources"]
        return next(source for source in sources if source["name"] == "ray")

    def wait_for(self, condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < deadline, self.explain()
            time.sleep(0.2)

    def wait_for_state(self, state: str, *addresses: str) -> None:
        self.wait_for(lambda: all(self.get_hosts().get(address, {}).get("state") == state for address in addresses))

    def explain(self) -> str:
        return f"{self.get_hosts()}\n{self.get_source()}\n{self.engine.tail()}\n{self.cluster.tail()}"


@pytest.fixture
def setup() -> Iterator[Setup]:
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir=SCRATCH))  # short, because Ray puts sockets into it
    cluster = RayCluster(folder, 2, {"SANDYARD_MEMORY_RESERVE_MB": "256", "SANDYARD_LOG_LEVEL": "warning"})
    engine = EngineWithRay(
        {
            "POOL_SIZE": "0",
            "JOIN_ADDRESS": cluster.network.address,
            "JOIN_PORT": "0",
            "LOCAL_SANDBOXES": "false",
            "HOSTS_RAY_ADDRESS": cluster.address,
            "HOSTS_RAY_CREDENTIALS": str(cluster.engine.credentials),
        }
    )
    try:
        for node in cluster.all:
            node.start()
        engine.start()
        yield Setup(cluster, engine)
        engine.clear()
    finally:
        left = engine.stop()
        cluster.stop()
        shutil.rmtree(folder, ignore_errors=True)
    assert not left


def test_hosts_of_a_ray_cluster(setup: Setup) -> None:
    first, second = (node.address for node in setup.cluster.nodes)
    setup.wait_for_state("ready", first, second)
    hosts = setup.get_hosts()
    assert {host["source"] for host in hosts.values()} == {"ray"}
    assert set(hosts) == {first, second}, "the head and the engine's machine run no sandboxes"

    sandboxes = [setup.create() for _ in range(4)]
    assert [host["sandboxes"] for host in setup.get_hosts().values()] == [2, 2]
    sleepers = [sandbox.commands.run("sleep 3600", background=True, timeout=0).pid for sandbox in sandboxes]

    def assert_untouched() -> None:
        for sandbox, pid in zip(sandboxes, sleepers, strict=True):
            assert sandbox.commands.run(f"kill -0 {pid} && echo alive").stdout == "alive\n"

    assert_strangers_are_refused(setup)
    assert_ports_unreachable(setup, sandboxes[0])
    assert_keeper_restarts_service(setup)
    assert_ray_restarts_keeper(setup)
    assert_untouched()
    setup.engine.kill()
    setup.engine.start()
    setup.wait_for_state("ready", first, second)
    setup.wait_for(lambda: len(setup.get_source()["machines"]) == 2)
    assert_untouched()
    assert_node_comes_back(setup, assert_untouched)
    assert_head_is_not_needed(setup, sandboxes, assert_untouched)
    record({"nodes": len(setup.cluster.nodes), "sandboxes": len(sandboxes)}, {"sandboxes": 0, "processes": 0})


def assert_strangers_are_refused(setup: Setup) -> None:
    """Programs on a node that have no credentials, or those of another cluster, cannot use Ray."""
    network = setup.cluster.network
    (stranger,) = create(setup.cluster.folder / "stranger", [network.address])
    foreign = make_environment(stranger)
    token = {"RAY_AUTH_TOKEN_PATH": str(setup.cluster.engine.credentials / TOKEN)}
    ours = make_environment(setup.cluster.engine.credentials)
    program = f"import ray; ray.init(address={setup.cluster.address!r}, log_to_driver=False); print('connected')"

    def run(variables: dict[str, str]) -> subprocess.Popen[str]:
        environment = {**os.environ, **variables}
        return subprocess.Popen([PYTHON, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)

    others = [run({}), run({**foreign, **token}), run({**ours, "RAY_AUTH_TOKEN_PATH": str(stranger / TOKEN)})]
    member = run(ours)
    assert "connected" in member.communicate(timeout=120)[0]
    try:
        for process in others:
            with contextlib.suppress(subprocess.TimeoutExpired):
                assert "connected" not in process.communicate(timeout=10)[0]
    finally:
        for process in others:
            process.kill()
            assert "connected" not in process.communicate()[0]


def assert_ports_unreachable(setup: Setup, sandbox: Sandbox) -> None:
    """A sandbox can reach no port of Ray, on any machine."""
    program = (
        "import socket, sys\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def connect(target):\n"
        "    try: socket.create_connection(target, 1).close(); return target\n"
        "    except OSError: return None\n"
        f"targets = [(a, p) for a in sys.argv[1:] for p in [*range({FIRST_PORT}, {LAST_PORT + 1}), 3011]]\n"
        "with ThreadPoolExecutor(128) as pool: print([t for t in pool.map(connect, targets) if t])\n"
    )
    addresses = [node.address for node in setup.cluster.all]
    sandbox.files.write("scan.py", program)
    done = sandbox.commands.run(f"python3 scan.py {' '.join(addresses)}", timeout=120)
    assert done.stdout.strip() == "[]"


def assert_keeper_restarts_service(setup: Setup) -> None:
    node = setup.cluster.nodes[0]
    before = node.kill_service()
    setup.wait_for(lambda: node.find_service() not in {None, before})
    setup.wait_for_state("ready", node.address)
    status = Path(f"/proc/{node.find_service()}")
    assert (status / "oom_score_adj").read_text() == "0\n", "Ray's workers are the first to be killed, hosts are not"
    assert os.getpriority(os.PRIO_PROCESS, int(status.name)) == 0


def assert_ray_restarts_keeper(setup: Setup) -> None:
    node = setup.cluster.nodes[0]
    (keeper,) = node.list_processes("ray::Keeper")
    os.kill(keeper, signal.SIGKILL)
    before = node.kill_service()
    setup.wait_for(lambda: node.find_service() not in {None, before})
    setup.wait_for_state("ready", node.address)


def assert_node_comes_back(setup: Setup, assert_untouched: Callable[[], None]) -> None:
    node = setup.cluster.nodes[1]
    node.kill()
    setup.wait_for(lambda: setup.get_hosts()[node.address]["missingFromSource"])
    assert setup.get_hosts()[node.address]["state"] == "ready", "its host service does not need Ray"
    assert_untouched()

    node.kill_service()
    setup.wait_for_state("unreachable", node.address)
    node.start()
    setup.wait_for_state("ready", node.address)
    setup.wait_for(lambda: not setup.get_hosts()[node.address]["missingFromSource"])
    assert len(setup.get_hosts()) == 2, "it is the same host as before"
    assert_untouched()


def assert_head_is_not_needed(setup: Setup, sandboxes: list[Sandbox], assert_untouched: Callable[[], None]) -> None:
    """Kill the head for two minutes: Ray ends its other nodes after one. Sandboxes keep working, and new ones are created."""
    failures: list[str] = []
    stopping = threading.Event()

    def work(sandbox: Sandbox) -> None:
        while not stopping.wait(0.5):
            try:
                assert sandbox.commands.run("echo works", timeout=10).stdout == "works\n"
            except Exception as error:
                failures.append(f"{sandbox.sandbox_id}: {error!r}")

    workers = [threading.Thread(target=work, args=(sandbox,)) for sandbox in sandboxes]
    for worker in workers:
        worker.start()
    services = [node.find_service() for node in setup.cluster.nodes]
    setup.cluster.head.kill()
    back_at = time.monotonic() + HEAD_AWAY_SECONDS
    setup.wait_for(lambda: setup.get_source()["problem"])
    while time.monotonic() < back_at:
        extra = setup.create()
        assert extra.commands.run("echo new").stdout == "new\n"
        extra.kill()
        time.sleep(5)
    assert [node.find_service() for node in setup.cluster.nodes] == services
    setup.cluster.head.start()
    addresses = {node.address for node in setup.cluster.nodes}
    setup.wait_for(
        lambda: (
            setup.get_source()["problem"] is None
            and {machine["address"] for machine in setup.get_source()["machines"]} == addresses
        )
    )
    stopping.set()
    for worker in workers:
        worker.join()
    assert not failures
    assert [node.find_service() for node in setup.cluster.nodes] == services
    setup.wait_for(lambda: not any(machine["problem"] for machine in setup.get_source()["machines"]))
    assert_keeper_restarts_service(setup)
    assert_untouched()
