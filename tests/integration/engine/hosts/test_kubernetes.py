"""Pods of a cluster with a real API server become hosts: the tests that also run with the fake one, rights, and restarts of the server.
No kubelet and no controller runs, so these tests create the pods, and say how they are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandyard.engine.hosts.machines import Machine
from tests.harness.deployment import DEPLOY
from tests.harness.real_kubernetes import NAMESPACE, RealKubernetes
from tests.unit.engine.hosts import test_kubernetes as shared
from tests.unit.engine.hosts.test_kubernetes import (
    Side,
    hurry,
    open_side,
    test_all_pages_and_all_changes_are_seen,
    test_api_server_is_not_needed_by_hosts,
    test_node_without_its_data_is_no_longer_the_same_host,
    test_other_tokens_are_refused,
    test_pod_gets_the_token_of_its_own_node,
    test_pod_makes_its_node_a_host,
    test_pod_that_has_ended_is_deleted,
    test_pods_are_listed_again_if_changes_are_missing,
    test_removed_host_joins_again_only_with_another_pod,
    test_replaced_pod_is_the_same_host,
    test_token_of_a_deleted_pod_is_refused,
    test_watch_from_an_old_version_is_refused,
    test_why_a_pod_does_not_run_is_shown,
    test_wrong_credentials_are_explained,
    wait_until,
)

__all__ = [
    "hurry",
    "test_all_pages_and_all_changes_are_seen",
    "test_api_server_is_not_needed_by_hosts",
    "test_node_without_its_data_is_no_longer_the_same_host",
    "test_other_tokens_are_refused",
    "test_pod_gets_the_token_of_its_own_node",
    "test_pod_makes_its_node_a_host",
    "test_pod_that_has_ended_is_deleted",
    "test_pods_are_listed_again_if_changes_are_missing",
    "test_removed_host_joins_again_only_with_another_pod",
    "test_replaced_pod_is_the_same_host",
    "test_token_of_a_deleted_pod_is_refused",
    "test_watch_from_an_old_version_is_refused",
    "test_why_a_pod_does_not_run_is_shown",
    "test_wrong_credentials_are_explained",
]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealKubernetes]:
    made = RealKubernetes(tmp_path_factory.mktemp("kubernetes"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
async def side(tmp_path: Path, cluster: RealKubernetes, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Side]:
    monkeypatch.setattr(shared, "SECONDS", 120)
    async with open_side(tmp_path, cluster) as opened:
        yield opened


def test_server_accepts_and_keeps_the_files(cluster: RealKubernetes) -> None:
    for file in sorted((DEPLOY / "kubernetes").glob("[!k]*.yaml")):
        for written in yaml.safe_load_all(file.read_text()):
            kept = yaml.safe_load(
                cluster.kubectl("-n", NAMESPACE, "get", written["kind"], written["metadata"]["name"], "-o", "yaml")
            )
            for key in set(written) - {"metadata"}:
                assert_contains(kept[key], written[key], f"{file.name}: {key}")
    again = cluster.kubectl("apply", "--kustomize", str(DEPLOY / "kubernetes")).splitlines()
    assert again
    assert [line for line in again if not line.endswith(" unchanged")] == []


def assert_contains(kept: Any, written: Any, where: str) -> None:
    """The server adds defaults, but leaves out what it does not know."""
    if isinstance(written, dict):
        for key, value in written.items():
            assert key in kept, f"{where}.{key}"
            assert_contains(kept[key], value, f"{where}.{key}")
    elif isinstance(written, list):
        assert len(kept) == len(written), where
        for number, value in enumerate(written):
            assert_contains(kept[number], value, f"{where}[{number}]")
    elif where.endswith("].image"):
        assert kept == f"{written}:latest"
    else:
        assert kept == written, where


def test_engine_has_only_its_rights(cluster: RealKubernetes) -> None:
    other = cluster.create_pod("one-x", "node-1", "10.0.0.1", labelled=False)
    try:
        nothing = cluster.create_token(other, audience="https://kubernetes.default.svc")
        everyone = read_rights(cluster, nothing)
        assert {resource for _, _, resource, _ in everyone} == {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
        assert read_rights(cluster, cluster.token) - everyone == {
            ("list", "", "pods", ""),
            ("watch", "", "pods", ""),
            ("delete", "", "pods", ""),
            ("patch", "", "configmaps", "sandyard-engine"),
            ("create", "authentication.k8s.io", "tokenreviews", ""),
        }
    finally:
        cluster.delete_pod("one-x")


def read_rights(cluster: RealKubernetes, token: str) -> set[tuple[str, str, str, str]]:
    """Return what an account may do in the namespace: verb, group, resource and name."""
    body = {"spec": {"namespace": NAMESPACE}}
    answer = cluster.call("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body, token).json()
    assert not answer["status"]["incomplete"]
    return {
        (verb, group, resource, name)
        for rule in answer["status"]["resourceRules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames") or [""]
    }


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", PODS, True),
        ("DELETE", f"{PODS}/one-x", True),
        ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/sandyard-engine", True),
        ("POST", "/apis/authentication.k8s.io/v1/tokenreviews", True),
        ("GET", f"{PODS}/one-x", False),
        ("POST", PODS, False),
        ("POST", f"{PODS}/one-x/exec?command=id", False),
        ("GET", f"{PODS}/one-x/log", False),
        ("GET", "/api/v1/pods", False),
        ("GET", "/api/v1/namespaces/default/pods", False),
        ("DELETE", "/api/v1/namespaces/default/pods/one-x", False),
        ("GET", "/api/v1/nodes", False),
        ("GET", "/api/v1/namespaces", False),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", False),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/sandyard-engine-token", False),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/sandyard-engine", False),
        ("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/kube-root-ca.crt", False),
        ("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/sandyard-host/token", False),
        ("PATCH", f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/sandyard-host", False),
        ("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", False),
    ],
)
def test_requests_with_the_engines_token(cluster: RealKubernetes, method: str, path: str, *, allowed: bool) -> None:
    cluster.create_pod("one-x", "node-1", "10.0.0.1")
    try:
        body = None if method == "GET" else {"spec": {"token": "x"}} if path.endswith("tokenreviews") else {}
        response = cluster.call(method, path, body, cluster.token)
        assert response.is_success if allowed else response.status_code == 403, response.text
    finally:
        cluster.call("DELETE", f"{PODS}/one-x", {"gracePeriodSeconds": 0})


def test_pods_token_gives_no_access_to_the_server(cluster: RealKubernetes) -> None:
    created = cluster.create_pod("one-x", "node-1", "10.0.0.1")
    try:
        assert cluster.call("GET", PODS, token=cluster.create_token(created)).status_code == 401
        own = cluster.create_token(created, audience="https://kubernetes.default.svc")
        assert cluster.call("GET", PODS, token=own).status_code == 403
    finally:
        cluster.delete_pod("one-x")


async def test_labelled_nodes_become_machines(side: Side, cluster: RealKubernetes) -> None:
    addresses = {"worker-1": "10.0.0.1", "worker-2": "10.0.0.2"}
    for node in addresses:
        cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": node}}).raise_for_status()

    def run_daemon_set() -> None:
        """Create and delete pods as the controller of the DaemonSet does."""
        path = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/sandyard-host"
        wanted = cluster.call("GET", path).json()["spec"]["template"]["spec"]["nodeSelector"]
        for node in cluster.call("GET", "/api/v1/nodes").json()["items"]:
            name, has_pod = node["metadata"]["name"], f"host-{node['metadata']['name']}" in cluster.pods
            is_wanted = wanted.items() <= (node["metadata"].get("labels") or {}).items()
            if is_wanted and not has_pod:
                cluster.create_pod(f"host-{name}", name, addresses[name])
            elif has_pod and not is_wanted:
                cluster.delete_pod(f"host-{name}")

    def list_names() -> set[str]:
        return {machine.name for machine in side.machines.list()}

    try:
        cluster.kubectl("label", "node", "worker-1", "sandyard-host=true")
        run_daemon_set()
        await wait_until(lambda: list_names() == {"worker-1"})
        cluster.kubectl("label", "node", "worker-2", "sandyard-host=true")
        run_daemon_set()
        await wait_until(lambda: list_names() == {"worker-1", "worker-2"})
        cluster.kubectl("label", "node", "worker-1", "sandyard-host-")
        run_daemon_set()
        await wait_until(lambda: list_names() == {"worker-2"})
    finally:
        for node in addresses:
            cluster.call("DELETE", f"/api/v1/nodes/{node}")


async def test_pod_is_shown_as_being_deleted_until_its_node_has_ended_it(side: Side, cluster: RealKubernetes) -> None:
    created = cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await side.join(created)
    cluster.kubectl("-n", NAMESPACE, "delete", "pod", "one-x", "--wait=false")
    await wait_until(lambda: side.get_problem() == "The pod one-x is being deleted.")
    cluster.delete_pod("one-x")
    await wait_until(lambda: not side.machines.list())


async def test_killed_server_changes_nothing_until_it_is_back(side: Side, cluster: RealKubernetes) -> None:
    created = cluster.create_pod("one-x", "node-1", "10.0.0.1")
    await side.join(created)
    machine = Machine(created["metadata"]["uid"], "node-1", "10.0.0.1")
    cluster.kill_api_server()
    try:
        await wait_until(lambda: "does not respond" in (side.machines.problem or ""))
        assert side.machines.list() == [machine]
    finally:
        cluster.start_api_server()
    await wait_until(lambda: side.machines.problem is None)
    assert side.machines.list() == [machine]
    cluster.create_pod("two-x", "node-2", "10.0.0.2")
    await wait_until(lambda: {found.name for found in side.machines.list()} == {"node-1", "node-2"})
    cluster.delete_pod("one-x")
    await wait_until(lambda: {found.name for found in side.machines.list()} == {"node-2"})
