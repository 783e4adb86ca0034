"""A part of a Kubernetes API server: pods of one namespace, tokens of their service account, a ConfigMap, and the rights in
deploy/kubernetes. tests/integration/engine/hosts/test_kubernetes.py runs the same tests with a real server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

from sandyard.engine.certificates.authority import Authority
from tests.harness.asgi import serve_app

NAMESPACE = "sandyard"
Json = dict[str, Any]


@dataclass(frozen=True)
class Change:
    """A change that watchers are told, with the pod after it, or before it was deleted."""

    version: int
    kind: str
    pod: Json


class FakeKubernetes:
    """The cluster. `rights` are (verb, resource) pairs of the engine's account."""

    def __init__(self, folder: Path) -> None:
        self.credentials = folder / "credentials"
        self.credentials.mkdir(parents=True)
        self._authority = Authority.load(folder / "ca")
        self.token = secrets.token_hex(16)
        for name, value in {
            "token": self.token,
            "namespace": NAMESPACE,
            "ca.crt": self._authority.pem.decode(),
        }.items():
            (self.credentials / name).write_text(value)
        self.rights = {
            ("list", "pods"),
            ("watch", "pods"),
            ("delete", "pods"),
            ("create", "tokenreviews"),
            ("patch", "configmaps"),
        }
        self.pods: dict[str, Json] = {}
        self.config: dict[str, str] = {}
        self.shortest_watch_s = 0.05
        self.oldest = 0  # watches from before this version are refused, as after a compaction
        self.requests: list[str] = []
        self._version = itertools.count(101)
        self._now = 100
        self._changes: list[Change] = []
        self._changed = asyncio.Event()
        self._tokens: dict[str, tuple[str, str, str, str]] = {}  # account, audience, pod's name and uid

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve the API, and yield its URL."""
        context = self._authority.make_server_context(("127.0.0.1",))
        async with serve_app(self._build(), ssl_context_factory=lambda *_: context) as port:
            yield f"https://127.0.0.1:{port}"

    def create_pod(self, name: str, node: str, address: str, *, labelled: bool = True) -> Json:
        """Create a pod that its node has accepted, and whose container runs."""
        pod: Json = {
            "metadata": {
                "name": name,
                "uid": secrets.token_hex(8),
                "labels": {"app.kubernetes.io/name": "sandyard-host" if labelled else "other"},
            },
            "spec": {"nodeName": node},
            "status": {
                "phase": "Running",
                "hostIP": address,
                "containerStatuses": [{"name": "host", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}],
            },
        }
        self._store("ADDED", pod)
        return pod

    def set_status(self, pod: Json, **status: Any) -> None:
        current = self.pods[pod["metadata"]["name"]]
        self._store("MODIFIED", {**current, "status": {**current["status"], **status}})

    def delete_pod(self, name: str) -> None:
        self._store("DELETED", self.pods[name])

    def compact(self) -> None:
        """Forget all changes, and end all watches."""
        self.oldest = self._now = next(self._version)
        self._wake()

    @contextlib.contextmanager
    def refuse_everything(self) -> Iterator[None]:
        """Take all rights of the engine's account away until the end of the block."""
        rights, self.rights = self.rights, set()
        try:
            yield
        finally:
            self.rights = rights

    def create_token(self, pod: Json, account: str = "sandyard-host", audience: str = "sandyard") -> str:
        """Return a token as a node gets for a pod."""
        token = secrets.token_hex(16)
        self._tokens[token] = (account, audience, pod["metadata"]["name"], pod["metadata"]["uid"])
        return token

    def _store(self, kind: str, pod: Json) -> None:
        self._now = next(self._version)
        pod = {**pod, "metadata": {**pod["metadata"], "resourceVersion": str(self._now)}}
        if kind == "DELETED":
            del self.pods[pod["metadata"]["name"]]
        else:
            self.pods[pod["metadata"]["name"]] = pod
        self._changes.append(Change(self._now, kind, pod))
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _review(self, body: Json) -> Json:
        spec = body["spec"]
        account, audience, name, uid = self._tokens.get(spec["token"], ("", "", "", ""))
        pod = self.pods.get(name)
        if audience not in spec["audiences"] or pod is None or pod["metadata"]["uid"] != uid:
            return {**body, "status": {"user": {}, "error": "invalid bearer token"}}
        user = {
            "username": f"system:serviceaccount:{NAMESPACE}:{account}",
            "extra": {
                "authentication.kubernetes.io/pod-name": [name],
                "authentication.kubernetes.io/pod-uid": [uid],
            },
        }
        return {**body, "status": {"authenticated": True, "user": user, "audiences": [audience]}}

    async def _watch(self, version: int, selector: str, seconds: float) -> AsyncIterator[str]:
        end = asyncio.get_running_loop().time() + seconds
        while True:
            changed = self._changed
            for change in self._changes:
                if change.version > version and _matches(change.pod, selector):
                    yield json.dumps({"type": change.kind, "object": change.pod}) + "\n"
            if version < self.oldest:
                status = {"kind": "Status", "code": 410, "message": "too old resource version"}
                yield json.dumps({"type": "ERROR", "object": status}) + "\n"
                return
            version = self._now
            try:
                async with asyncio.timeout_at(end):
                    await changed.wait()
            except TimeoutError:
                bookmark = {"kind": "Pod", "metadata": {"resourceVersion": str(self._now)}}
                yield json.dumps({"type": "BOOKMARK", "object": bookmark}) + "\n"
                return

    def _build(self) -> FastAPI:
        app = FastAPI()

        def refuse(request: Request, verb: str, resource: str) -> JSONResponse | None:
            self.requests.append(f"{verb} {resource}")
            if request.headers.get("authorization") != f"Bearer {self.token}":
                return _fail(401, "Unauthorized")
            if (verb, resource) not in self.rights:
                return _fail(403, f'{resource} is forbidden: cannot {verb} resource "{resource}"')
            return None

        @app.get(f"/api/v1/namespaces/{NAMESPACE}/pods", response_model=None)
        async def pods(request: Request) -> JSONResponse | StreamingResponse:
            query = request.query_params
            is_watch = query.get("watch") == "true"
            if (refusal := refuse(request, "watch" if is_watch else "list", "pods")) is not None:
                return refusal
            selector = query["labelSelector"]
            if is_watch:
                version = int(query["resourceVersion"])
                if version < self.oldest:
                    return _fail(410, "Expired: too old resource version")
                return StreamingResponse(self._watch(version, selector, float(query["timeoutSeconds"])))
            found = [pod for pod in self.pods.values() if _matches(pod, selector)]
            first, limit = int(query.get("continue", 0)), int(query["limit"])
            metadata = {"resourceVersion": str(self._now)}
            if len(found) > first + limit:
                metadata["continue"] = str(first + limit)
            return JSONResponse({"kind": "PodList", "metadata": metadata, "items": found[first : first + limit]})

        @app.delete(f"/api/v1/namespaces/{NAMESPACE}/pods/{{name}}")
        async def delete(request: Request, name: str) -> JSONResponse:
            if (refusal := refuse(request, "delete", "pods")) is not None:
                return refusal
            if name not in self.pods:
                return _fail(404, f'pods "{name}" not found')
            if (await request.json())["preconditions"]["uid"] != self.pods[name]["metadata"]["uid"]:
                return _fail(409, "Precondition failed: UID in precondition")
            self.delete_pod(name)
            return JSONResponse({"kind": "Pod"})

        @app.post("/apis/authentication.k8s.io/v1/tokenreviews")
        async def review(request: Request) -> JSONResponse:
            if (refusal := refuse(request, "create", "tokenreviews")) is not None:
                return refusal
            return JSONResponse(self._review(await request.json()), 201)

        @app.patch(f"/api/v1/namespaces/{NAMESPACE}/configmaps/sandyard-engine")
        async def patch(request: Request) -> JSONResponse:
            if (refusal := refuse(request, "patch", "configmaps")) is not None:
                return refusal
            assert request.headers["content-type"] == "application/merge-patch+json"
            self.config.update((await request.json())["data"])
            return JSONResponse({"kind": "ConfigMap"})

        return app


def _matches(pod: Mapping[str, Any], selector: str) -> bool:
    key, _, value = selector.partition("=")
    return pod["metadata"]["labels"].get(key) == value


def _fail(status: int, message: str) -> JSONResponse:
    return JSONResponse({"kind": "Status", "status": "Failure", "message": message, "code": status}, status)
