"""A real API server of Kubernetes with its database, built and unpacked by scripts/kubernetes-api-server. There are no controllers, no
scheduler and no kubelet: this module does what these do with pods, tokens and the DaemonSet."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import secrets
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from sandyard.kit.listen import free_port
from tests.harness.deployment import DEPLOY
from tests.harness.postgres import die_with_parent
from tests.harness.processes import ROOT

NAMESPACE = "sandyard"
START_SECONDS = 300
"""The machine may be busy."""
KEYS = ("token", "ca.crt", "namespace")
Json = dict[str, Any]
_BUILT = ROOT / ".cache" / "kubernetes"
_MERGE = "application/merge-patch+json"


def find_programs() -> Path:
    """Return the folder with kube-apiserver, etcd and kubectl, or skip the test."""
    problem = _BUILT / "problem"
    if problem.exists():
        pytest.skip(problem.read_text().strip())
    found = sorted(_BUILT.glob("*/kube-apiserver"))
    if not found:
        pytest.skip("the API server is missing: run scripts/kubernetes-api-server")
    return found[-1].parent


class RealKubernetes:
    """The cluster, with `deploy/kubernetes` applied, as `FakeKubernetes` for tests. `start` it first, and `stop` it at the end."""

    def __init__(self, folder: Path) -> None:
        self._programs = find_programs()
        self._folder = folder
        self.credentials = folder / "credentials"
        self.shortest_watch_s: float = 1  # the server takes whole seconds only
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = {name: free_port() for name in ("etcd", "peers", "api")}
        self.url = f"https://127.0.0.1:{self._ports['api']}"
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self._admin_token = secrets.token_hex(16)
        self._admin: httpx.Client | None = None

    # the servers

    def start(self) -> None:
        """Start the servers, apply deploy/kubernetes, and write the credentials of the engine as docs/many-hosts.md says."""
        self._folder.mkdir(parents=True, exist_ok=True)
        key = self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (self._folder / "accounts.key").write_bytes(key)
        (self._folder / "tokens.csv").write_text(f'{self._admin_token},admin,admin,"system:masters"\n')
        etcd, peers = (f"http://127.0.0.1:{self._ports[name]}" for name in ("etcd", "peers"))
        self._launch(
            "etcd",
            *("--data-dir", str(self._folder / "etcd"), "--logger", "zap"),
            *("--listen-client-urls", etcd, "--advertise-client-urls", etcd),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}"),
        )
        self.start_api_server()
        self.kubectl("apply", "--kustomize", str(DEPLOY / "kubernetes"))
        self._do("POST", "/serviceaccounts", {"metadata": {"name": "default"}})  # as its controller does
        self._fill_engine_token()
        self.credentials.mkdir()
        for name in KEYS:
            template = f'go-template={{{{ index .data "{name}" | base64decode }}}}'
            output = self.kubectl("-n", NAMESPACE, "get", "secret", "sandyard-engine-token", "-o", template)
            (self.credentials / name).write_text(output)

    def stop(self) -> None:
        """Idempotent."""
        if self._admin is not None:
            self._admin.close()
        for process in reversed(self._processes.values()):
            process.kill()
            process.wait()

    def start_api_server(self) -> None:
        """Start the API server with the data that it had, and wait until it is ready."""
        key = str(self._folder / "accounts.key")
        process = self._launch(
            "kube-apiserver",
            *("--etcd-servers", f"http://127.0.0.1:{self._ports['etcd']}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self._ports["api"])),
            *("--advertise-address", "192.0.2.1", "--endpoint-reconciler-type", "none"),
            *("--cert-dir", str(self._folder / "certificates"), "--token-auth-file", str(self._folder / "tokens.csv")),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key),
            *("--service-account-signing-key-file", key, "--authorization-mode", "RBAC", "--allow-privileged"),
            *("--service-cluster-ip-range", "10.96.0.0/24"),
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._is_ready():
            assert process.poll() is None and time.monotonic() < deadline, self._read_log("kube-apiserver")
            time.sleep(0.1)

    def kill_api_server(self) -> None:
        process = self._processes.pop("kube-apiserver")
        process.kill()
        process.wait()

    def kubectl(self, *arguments: str) -> str:
        """Run kubectl as the administrator, and return its output."""
        options = ("--server", self.url, "--token", self._admin_token, "--certificate-authority", str(self.authority))
        environment = {"PATH": os.environ["PATH"], "HOME": str(self._folder), "KUBECONFIG": os.devnull}
        command = [str(self._programs / "kubectl"), *options, *arguments]
        done = subprocess.run(
            command, check=False, env=environment, capture_output=True, text=True, timeout=START_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    @property
    def authority(self) -> Path:
        """The certificates of the API server, which has signed its own."""
        return self._folder / "certificates" / "apiserver.crt"

    def call(self, method: str, path: str, body: Json | None = None, token: str | None = None) -> httpx.Response:
        """Send a request, by default as the administrator."""
        if self._admin is None:
            self._admin = httpx.Client(
                base_url=self.url,
                verify=ssl.create_default_context(cafile=self.authority),
                timeout=START_SECONDS,
                trust_env=False,
            )
        headers = {"Authorization": f"Bearer {token or self._admin_token}"}
        headers["Content-Type"] = _MERGE if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        return self._admin.request(method, path, headers=headers, content=content)

    # what tests share with FakeKubernetes

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Yield the URL of the running server. Remove the pods at the end."""
        try:
            yield self.url
        finally:
            for name in self.pods:
                self.delete_pod(name)
            self._do("PATCH", "/configmaps/sandyard-engine", {"data": None})

    @property
    def token(self) -> str:
        return (self.credentials / "token").read_text()

    @property
    def pods(self) -> dict[str, Json]:
        return {pod["metadata"]["name"]: pod for pod in self._do("GET", "/pods")["items"]}

    @property
    def config(self) -> dict[str, str]:
        return self._do("GET", "/configmaps/sandyard-engine").get("data") or {}

    def create_pod(
        self, name: str, node: str, address: str, *, labelled: bool = True, account: str = "sandyard-host"
    ) -> Json:
        """Create a pod as the controller of the DaemonSet does, and report as the kubelet does that its container runs."""
        daemon_set = self._do("GET", "/daemonsets/sandyard-host", group="/apis/apps/v1")
        template = daemon_set["spec"]["template"]
        pod = {
            "metadata": {
                "name": name,
                "labels": template["metadata"]["labels"] if labelled else {"app.kubernetes.io/name": "other"},
            },
            "spec": {**template["spec"], "nodeName": node, "serviceAccountName": account, "serviceAccount": account},
        }
        created = self._do("POST", "/pods", pod)
        state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        return self.set_status(created, phase="Running", hostIP=address, containerStatuses=[{"state": state}])

    def set_status(self, pod: Json, **status: Any) -> Json:
        for container in status.get("containerStatuses", ()):
            container.update(
                name="host", image="sandyard", imageID="", ready="running" in container["state"], restartCount=0
            )
        return self._do("PATCH", f"/pods/{pod['metadata']['name']}/status", {"status": status})

    def delete_pod(self, name: str) -> None:
        """Delete a pod as the kubelet does when its containers have ended."""
        self._do("DELETE", f"/pods/{name}", {"gracePeriodSeconds": 0})

    def create_token(self, pod: Json, account: str = "sandyard-host", audience: str = "sandyard") -> str:
        """Return a token as the kubelet gets for a pod, or for another pod that has this account."""
        if pod["spec"]["serviceAccountName"] != account:
            name, node = f"{pod['metadata']['name']}-{account}", pod["spec"]["nodeName"]
            pod = self.create_pod(name, node, pod["status"]["hostIP"], labelled=False, account=account)
        reference = {"kind": "Pod", "apiVersion": "v1", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        body = {"spec": {"audiences": [audience], "expirationSeconds": 3600, "boundObjectRef": reference}}
        return str(self._do("POST", f"/serviceaccounts/{account}/token", body)["status"]["token"])

    def compact(self) -> None:
        """Make the server forget the changes until now, and end all watches: it keeps them in memory."""
        self.kill_api_server()
        self.start_api_server()

    @contextlib.contextmanager
    def refuse_everything(self) -> Iterator[None]:
        """Take all rights of the engine's account away until the end of the block."""
        role = self._do("GET", "/roles/sandyard-engine", group=_RBAC)
        self._do("PATCH", "/roles/sandyard-engine", {"rules": []}, group=_RBAC)
        try:
            yield
        finally:
            self._do("PATCH", "/roles/sandyard-engine", {"rules": role["rules"]}, group=_RBAC)

    # helpers

    def _do(self, method: str, path: str, body: Json | None = None, *, group: str = "/api/v1") -> Json:
        response = self.call(method, f"{group}/namespaces/{NAMESPACE}{path}", body)
        assert response.is_success, response.text
        answer: Json = response.json()
        return answer

    def _fill_engine_token(self) -> None:
        """Put token, authority and namespace into the secret of the engine, as the token controller does."""
        account = self._do("GET", "/serviceaccounts/sandyard-engine")["metadata"]
        prefix = "kubernetes.io/serviceaccount"
        claims = {
            "iss": "kubernetes/serviceaccount",
            f"{prefix}/namespace": NAMESPACE,
            f"{prefix}/secret.name": "sandyard-engine-token",
            f"{prefix}/service-account.name": account["name"],
            f"{prefix}/service-account.uid": account["uid"],
            "sub": f"system:serviceaccount:{NAMESPACE}:{account['name']}",
        }
        signed = ".".join(_encode_url(json.dumps(part).encode()) for part in ({"alg": "RS256"}, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        values = (f"{signed}.{_encode_url(signature)}", self.authority.read_text(), NAMESPACE)
        data = {name: base64.b64encode(value.encode()).decode() for name, value in zip(KEYS, values, strict=True)}
        self._do("PATCH", "/secrets/sandyard-engine-token", {"data": data})

    def _launch(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{program}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(self._programs / program), *arguments],
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,  # a signal for the tests' process group, such as Ctrl+C, does not stop it during a test
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one call into libc, without our locks
            )
        self._processes[program] = process
        return process

    def _is_ready(self) -> bool:
        if not self.authority.exists():
            return False
        try:
            return self.call("GET", "/readyz").is_success
        except httpx.TransportError:
            return False

    def _read_log(self, program: str) -> str:
        return (self._folder / f"{program}.log").read_text()[-5000:]


_RBAC = "/apis/rbac.authorization.k8s.io/v1"


def _encode_url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
