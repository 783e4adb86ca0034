"""Pods of a cluster become hosts, with a fake API server. tests/integration/engine/hosts/test_kubernetes.py runs most of these tests with a
real one."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from sandyard.engine.certificates.authority import Authority
from sandyard.engine.hosts import supply as supply_module
from sandyard.engine.hosts.identity import HostIdentity
from sandyard.engine.hosts.kubernetes import api_server, pod, source
from sandyard.engine.hosts.kubernetes.api_server import ApiServer, ExpiredVersionError, Json
from sandyard.engine.hosts.kubernetes.pod import PodFiles, join_engine
from sandyard.engine.hosts.kubernetes.pods import LABEL, parse_pod
from sandyard.engine.hosts.kubernetes.source import KubernetesMachines, KubernetesOptions
from sandyard.engine.hosts.machines import Claim, Machine
from sandyard.engine.hosts.supply import HostSupply
from sandyard.engine.settings import EngineSettings
from sandyard.kit.errors import (
    BusyError,
    ForbiddenError,
    InvalidInputError,
    NotFoundError,
    SandyardError,
    UnauthenticatedError,
    UnreachableError,
)
from sandyard.kit.secret import Secret
from tests.harness.fake_kubernetes import FakeKubernetes
from tests.unit.engine.hosts.support import EngineSide, open_engine

PORT = 3011
SECONDS = 20


class Cluster(Protocol):
    """What the tests need of a cluster, so that another one than `FakeKubernetes` can serve them."""

    credentials: Path
    token: str
    shortest_watch_s: float

    @property
    def pods(self) -> dict[str, Any]: ...
    @property
    def config(self) -> dict[str, str]: ...
    def serve(self) -> AbstractAsyncContextManager[str]: ...
    def create_pod(self, name: str, node: str, address: str, *, labelled: bool = True) -> dict[str, Any]: ...
    def set_status(self, pod: dict[str, Any], **status: Any) -> None: ...
    def delete_pod(self, name: str) -> None: ...
    def create_token(self, pod: dict[str, Any], account: str = ..., audience: str = ...) -> str: ...
    def compact(self) -> None: ...
    def refuse_everything(self) -> AbstractContextManager[None]: ...


class Side:
    """The engine with its source, and the cluster."""

    def __init__(self, engine: EngineSide, cluster: Cluster, url: str, folder: Path) -> None:
        self.engine = engine
        self.cluster = cluster
        self.folder = folder
        options = KubernetesOptions(url, cluster.credentials, engine.enrollment.address, engine.enrollment.fingerprint)
        self.machines = KubernetesMachines(options, self._is_host)
        self.supply = HostSupply([self.machines], engine.hosts, engine.enrollment, engine.database)
        engine.administration._supply = self.supply

    def _is_host(self, host_id: str, machine: Machine) -> bool:
        host = self.engine.hosts.find_by_address("kubernetes", machine.address)
        return host is not None and host.record.id == host_id

    def get_problem(self) -> str | None:
        ((_, problem),) = self.supply.list()[0].machines
        return problem

    def make_files(self, created: dict[str, Any]) -> PodFiles:
        """Return the files that a node puts into a pod."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        for name, value in self.cluster.config.items():
            (folder / name).write_text(value)
        (folder / "token").write_text(self.cluster.create_token(created))
        return PodFiles(folder, folder / "token")

    async def join(self, created: dict[str, Any], data: str = "data") -> HostIdentity:
        """Do what a pod does at its start."""
        identity = HostIdentity(self.folder / data)
        await run_join(self.make_files(created), identity)
        return identity


async def run_join(files: PodFiles, identity: HostIdentity) -> None:
    """Do what a pod does at its start, in a thread that does not keep a failed test from ending."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        join_engine(files, identity, PORT)
        loop.call_soon_threadsafe(done.set)

    threading.Thread(target=run, daemon=True).start()
    async with asyncio.timeout(SECONDS):
        await done.wait()


async def wait_until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supply_module, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(supply_module, "CHECK_S", 0.05)
    monkeypatch.setattr(supply_module, "MAX_RETRY_S", 0.1)
    monkeypatch.setattr(source, "FIRST_RETRY_S", 0.01)
    monkeypatch.setattr(source, "MAX_RETRY_S", 0.05)
    monkeypatch.setattr(source, "CLAIM_S", 0.05)
    monkeypatch.setattr(pod, "PAUSE_S", 0.02)
    monkeypatch.setattr("sandyard.engine.e2b.join_app.BURST", 1000)


@contextlib.asynccontextmanager
async def open_side(folder: Path, cluster: Cluster) -> AsyncIterator[Side]:
    async with contextlib.AsyncExitStack() as stack:
        engine = stack.enter_context(open_engine(folder / "engine"))
        await stack.enter_async_context(engine.serve())
        url = await stack.enter_async_context(cluster.serve())
        made = Side(engine, cluster, url, folder)
        stack.push_async_callback(made.machines.close)
        made.machines.open()
        stack.push_async_callback(made.supply.close)
        made.supply.start()
        await wait_until(lambda: made.machines.problem is None)
        yield made


@pytest.fixture
async def side(tmp_path: Path) -> AsyncIterator[Side]:
    async with open_side(tmp_path, FakeKubernetes(tmp_path / "cluster")) as opened:
        yield opened


async def test_pod_makes_its_node_a_host(side: Side) -> None:
    assert side.cluster.config["fingerprint"] == side.engine.enrollment.fingerprint
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    side.cluster.create_pod("unrelated", "node-2", "10.0.0.2", labelled=False)
    identity = await side.join(created)
    (host,) = side.engine.hosts.list()
    assert (host.source, host.record.name, host.record.address) == ("kubernetes", "node-1", "10.0.0.1")
    assert identity.get().id == host.record.id
    await wait_until(lambda: side.get_problem() is None)


async def test_replaced_pod_is_the_same_host(side: Side) -> None:
    before = await side.join(side.cluster.create_pod("one-x", "node-1", "10.0.0.1"))
    tokens = len(side.engine.database.query("SELECT id FROM join_tokens"))
    side.cluster.delete_pod("one-x")
    await wait_until(lambda: not side.machines.list())
    (host,) = side.engine.hosts.list()
    assert side.supply.is_missing("kubernetes", host.record)
    after = await side.join(side.cluster.create_pod("one-y", "node-1", "10.0.0.1"))
    assert before.get() == after.get() and len(side.engine.hosts.list()) == 1
    assert len(side.engine.database.query("SELECT id FROM join_tokens")) == tokens, "it needed no token"
    assert not side.supply.is_missing("kubernetes", host.record)


async def test_node_without_its_data_is_no_longer_the_same_host(side: Side) -> None:
    await side.join(side.cluster.create_pod("one-x", "node-1", "10.0.0.1"))
    side.cluster.delete_pod("one-x")
    created = side.cluster.create_pod("one-y", "node-1", "10.0.0.1")
    joining = asyncio.create_task(side.join(created, "other"))
    await wait_until(lambda: "Another host is called 'node-1'" in (side.get_problem() or ""))
    (host,) = side.engine.hosts.list()
    side.engine.hosts.forget(host.record.id)
    assert (await joining).get().id != host.record.id


async def test_removed_host_joins_again_only_with_another_pod(side: Side) -> None:
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    before = (await side.join(created)).get()
    side.supply.remove("kubernetes", side.engine.hosts.get(before.id).record)
    side.engine.hosts.forget(before.id)
    claim = Claim(Secret(side.cluster.create_token(created)), before.id)
    for _ in range(20):
        with pytest.raises(BusyError):
            await side.supply.claim("kubernetes", claim)
        await asyncio.sleep(0.005)
    (machine,) = side.machines.list()
    late = side.engine.enrollment.create_token(600, "kubernetes").token
    with pytest.raises(SandyardError, match="has not asked for its join token"):
        await side.machines.start(machine, late)  # a token that was made just before the removal
    with pytest.raises(BusyError, match="An administrator has removed this host"):
        await side.supply.claim("kubernetes", claim)
    side.cluster.delete_pod("one-x")
    after = await side.join(side.cluster.create_pod("one-y", "node-1", "10.0.0.1"))
    assert after.get().id != before.id and len(side.engine.hosts.list()) == 1


@pytest.mark.parametrize(
    "options", [{"account": "default"}, {"audience": "https://kubernetes.default.svc"}], ids=["account", "audience"]
)
async def test_other_tokens_are_refused(side: Side, options: dict[str, str]) -> None:
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await wait_until(side.machines.list)
    for token in (side.cluster.create_token(created, **options), "made-up", side.cluster.token):
        with pytest.raises(UnauthenticatedError):
            await side.supply.claim("kubernetes", Claim(Secret(token)))
    assert not side.engine.hosts.list()


async def test_token_of_a_deleted_pod_is_refused(side: Side) -> None:
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    token = side.cluster.create_token(created)
    side.cluster.delete_pod("one-x")
    side.cluster.create_pod("one-x", "node-1", "10.0.0.1")  # of the same name
    with pytest.raises(UnauthenticatedError):
        await side.supply.claim("kubernetes", Claim(Secret(token)))
    with pytest.raises(NotFoundError):
        await side.supply.claim("ray", Claim(Secret(token)))


async def test_pod_gets_the_token_of_its_own_node(side: Side) -> None:
    created = [side.cluster.create_pod(f"pod-{n}", f"node-{n}", f"10.0.0.{n}") for n in (1, 2)]
    await asyncio.gather(*(side.join(made, f"data{n}") for n, made in enumerate(created)))
    found = {host.record.name: host.record.address for host in side.engine.hosts.list()}
    assert found == {"node-1": "10.0.0.1", "node-2": "10.0.0.2"}


async def test_why_a_pod_does_not_run_is_shown(side: Side) -> None:
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    side.cluster.set_status(
        created,
        phase="Pending",
        containerStatuses=[{"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}],
    )
    expected = "The pod one-x does not run: ImagePullBackOff: no such image."
    await wait_until(lambda: side.machines.list() and side.get_problem() == expected)
    side.cluster.set_status(created, containerStatuses=[{"state": {"running": {}}}])
    await wait_until(lambda: "has not asked for its join token" in (side.get_problem() or ""))
    await side.join(created)
    await wait_until(lambda: side.get_problem() is None)


async def test_pod_that_has_ended_is_deleted(side: Side) -> None:
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await side.join(created)
    side.cluster.set_status(created, phase="Failed", reason="Evicted", message="The node had no memory.")
    await wait_until(lambda: not side.cluster.pods)
    await wait_until(lambda: not side.machines.list())
    other = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await side.machines._server.delete_pod("one-x", created["metadata"]["uid"])
    assert side.cluster.pods["one-x"]["metadata"]["uid"] == other["metadata"]["uid"], "it is another pod"


async def test_api_server_is_not_needed_by_hosts(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod, "PATIENCE_S", 0.1)
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await side.join(created)
    files = side.make_files(created)
    with side.cluster.refuse_everything():
        side.cluster.compact()
        await wait_until(lambda: "cannot patch" in (side.machines.problem or ""))
        assert [machine.name for machine in side.machines.list()] == ["node-1"]
        (host,) = side.engine.hosts.list()
        assert not side.supply.is_missing("kubernetes", host.record)
        await run_join(files, HostIdentity(side.folder / "data"))
        side.cluster.delete_pod("one-x")
    await wait_until(lambda: side.machines.problem is None and not side.machines.list())


async def test_all_pages_and_all_changes_are_seen(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_server, "PAGE", 2)
    monkeypatch.setattr(api_server, "WATCH_S", side.cluster.shortest_watch_s)
    for number in range(5):
        side.cluster.create_pod(f"pod-{number}", f"node-{number}", f"10.0.0.{number}")
    side.cluster.compact()
    await wait_until(lambda: len(side.machines.list()) == 5)
    side.cluster.delete_pod("pod-3")
    await wait_until(lambda: {machine.name for machine in side.machines.list()} == {f"node-{n}" for n in (0, 1, 2, 4)})
    assert side.machines.problem is None


async def test_watch_from_an_old_version_is_refused(side: Side) -> None:
    side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    side.cluster.compact()
    with pytest.raises(ExpiredVersionError):
        async for _ in side.machines._server.watch_pods(LABEL, "1"):
            pass


async def test_pods_are_listed_again_if_changes_are_missing(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    problems: list[str | None] = []
    list_pods = side.machines._server.list_pods

    async def list_late(selector: str) -> tuple[list[Json], str]:
        """Return an old version the first time, as if the watch began long after the list."""
        problems.append(side.machines.problem)
        found, version = await list_pods(selector)
        return found, version if len(problems) > 1 else "1"

    monkeypatch.setattr(side.machines._server, "list_pods", list_late)
    side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    side.cluster.compact()
    await wait_until(lambda: len(problems) >= 2 and side.machines.list())
    assert problems[1] is None, "that is no failure of the server"
    side.cluster.delete_pod("one-x")
    await wait_until(lambda: not side.machines.list())


async def test_wrong_credentials_are_explained(side: Side, tmp_path: Path) -> None:
    folder = shutil.copytree(side.cluster.credentials, tmp_path / "wrong")
    (folder / "token").write_text("made-up")
    await expect_refusal(side, folder, ForbiddenError, "Unauthorized")
    (folder / "token").write_text(side.cluster.token)
    (folder / "ca.crt").write_bytes(Authority.load(tmp_path / "other").pem)
    await expect_refusal(side, folder, UnreachableError, "certificate verify failed")


async def expect_refusal(side: Side, credentials: Path, error: type[SandyardError], message: str) -> None:
    server = ApiServer(side.machines._options.url, credentials)
    try:
        with pytest.raises(error, match=message):
            await server.list_pods(LABEL)
    finally:
        await server.close()


async def test_pod_sends_its_token_only_to_its_engine(side: Side, tmp_path: Path) -> None:
    assert isinstance(side.cluster, FakeKubernetes)
    created = side.cluster.create_pod("one-x", "node-1", "10.0.0.1")
    files = side.make_files(created)
    (files.engine / "fingerprint").write_text("0" * 64)
    task = asyncio.create_task(run_join(files, HostIdentity(tmp_path / "data")))
    await asyncio.sleep(0.1)
    assert "create tokenreviews" not in side.cluster.requests
    (files.engine / "fingerprint").write_text(side.engine.enrollment.fingerprint)
    await task


def test_pod_that_no_node_has_accepted_is_no_machine() -> None:
    assert parse_pod({"metadata": {"uid": "u", "name": "n"}, "spec": {"nodeName": "x"}, "status": {}}) is None
    assert parse_pod({"metadata": {"uid": "u", "name": "n"}, "status": {"hostIP": "10.0.0.1"}}) is None
    long = {"metadata": {"uid": "u", "name": "n"}, "spec": {"nodeName": "x" * 62 + ".y"}, "status": {"hostIP": "::1"}}
    parsed = parse_pod(long)
    assert (
        parsed is not None
        and parsed.machine.name == "x" * 62
        and parsed.problem == "The pod n does not run: it is pending."
    )


def test_incomplete_credentials_are_explained(tmp_path: Path) -> None:
    FakeKubernetes(tmp_path)
    folder = tmp_path / "credentials"
    (folder / "ca.crt").write_text("nothing")
    with pytest.raises(InvalidInputError, match=r"ca\.crt is not a certificate"):
        KubernetesMachines(KubernetesOptions("https://127.0.0.1:1", folder, "", ""), lambda *_: False)
    (folder / "namespace").unlink()
    with pytest.raises(InvalidInputError, match=r"Could not read .*namespace"):
        KubernetesMachines(KubernetesOptions("https://127.0.0.1:1", folder, "", ""), lambda *_: False)


def test_settings_require_a_join_address() -> None:
    with pytest.raises(SandyardError, match="requires join_address"):
        EngineSettings.load(hosts_kubernetes_url="https://10.0.0.1:6443")
    settings = EngineSettings.load(hosts_kubernetes_url="https://10.0.0.1:6443", join_address="10.0.0.1")
    assert settings.hosts_kubernetes_credentials == Path("/var/run/secrets/kubernetes.io/serviceaccount")
