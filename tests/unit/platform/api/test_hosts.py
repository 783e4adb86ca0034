"""The routes for hosts, with the responses of an engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from sandyard.kit.secret import Secret
from sandyard.platform.api import hosts
from sandyard.platform.domain.sandboxes.e2b import EngineConfig, SandboxEngine
from tests.harness.asgi import serve_app
from tests.unit.platform.world import World, client

PATH = "/api/v1/hosts"
SOURCE = {
    "name": "ray",
    "problem": None,
    "machines": [{"id": "n1", "name": "gpu-1", "address": "10.0.0.3", "problem": "There is no disk."}],
}


def describe(host_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "hostID": host_id,
        "name": host_id,
        "local": host_id == "local",
        "address": "10.0.0.2",
        "port": 3011,
        "labels": {},
        "draining": False,
        "evacuation": {"moved": 2, "total": 3, "failures": {"iabc": "No host can take the sandbox."}},
        "lost": False,
        "source": None,
        "missingFromSource": False,
        "checkpoints": {"count": 1, "oldest": "2026-01-31T09:50:00.000Z"},
        "state": "ready",
        "since": "2026-01-31T10:00:00.000000Z",
        "seenAt": None,
        "reason": None,
        "version": "1.0",
        "sandboxes": 2,
        "room": None,
        "isolation": None,
        "missing": {},
        "joinedAt": None,
        "certificateExpiresAt": None,
        "later": "a field of a newer engine",
        **changes,
    }


class FakeEngine:
    """The routes of an engine. `error` is what it answers instead, if set."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.requests: list[tuple[str, str, Any]] = []
        self.error: tuple[int, dict[str, Any] | str] | None = None
        self.app.add_api_route("/{path:path}", self.answer, methods=["GET", "PATCH", "POST"])

    async def answer(self, request: Request, path: str) -> Response:
        body = await request.body()
        self.requests.append((request.method, path, json.loads(body) if body else None))
        assert request.headers["X-API-Key"] == "e2b_" + "0" * 40
        if self.error is not None:
            status, content = self.error
            return Response(content, status) if isinstance(content, str) else JSONResponse(content, status)
        if path == "hosts":
            answer = {"hosts": [describe("local"), describe("host-2", source="ray")], "acceptsHosts": True}
            return JSONResponse({**answer, "sources": [SOURCE]})
        if path == "hosts/tokens":
            token = {"token": "syj_x", "expiresAt": "2026-01-31T11:00:00Z", "address": "10.0.0.1:3010"}
            return JSONResponse(token, 201)
        name, recovers = path.removeprefix("hosts/").removesuffix("/recover"), path.endswith("/recover")
        return JSONResponse(describe(name, draining=True, lost=recovers))


@pytest.fixture
async def engine(world: World) -> AsyncIterator[FakeEngine]:
    fake = FakeEngine()
    async with serve_app(fake.app) as port:
        use_engine(world, f"http://127.0.0.1:{port}")
        yield fake


def use_engine(world: World, url: str | None) -> None:
    world.engine = SandboxEngine(EngineConfig(Secret("e2b_" + "0" * 40), url), world.clock)


async def test_administrators_list_and_change_hosts(world: World, engine: FakeEngine) -> None:
    async with client(world.app(hosts.router), await world.create_person("chief", "admin")) as chief:
        found = (await chief.get(PATH)).json()
        assert [(host["id"], host["local"]) for host in found["items"]] == [("local", True), ("host-2", False)]
        assert found["acceptsHosts"] is True
        assert found["sources"] == [SOURCE]
        assert [host["source"] for host in found["items"]] == [None, "ray"]
        changed = await chief.patch(f"{PATH}/host-2", json={"draining": True, "labels": {"a": "b", "c": None}})
        assert changed.json()["draining"] is True
        assert changed.json()["evacuation"] == describe("host-2")["evacuation"]
        assert engine.requests[-1] == ("PATCH", "hosts/host-2", {"draining": True, "labels": {"a": "b", "c": None}})
        lost = (await chief.post(f"{PATH}/host-2/recover")).json()
        assert (lost["lost"], lost["checkpoints"]["count"]) == (True, 1)
        assert engine.requests[-1][:2] == ("POST", "hosts/host-2/recover")
        made = await chief.post(f"{PATH}/tokens")
        assert (made.status_code, made.json()["token"]) == (201, "syj_x")
        audit = (await chief.get("/api/v1/audit")).json()["items"]
        assert {entry["action"] for entry in audit} >= {"host.update", "host.recover", "host.create_token"}
        assert "syj_x" not in json.dumps(audit)


async def test_members_may_not(world: World, engine: FakeEngine) -> None:
    async with client(world.app(hosts.router), await world.create_person("maria")) as maria:
        assert (await maria.get(PATH)).status_code == 403
        assert (await maria.patch(f"{PATH}/host-2", json={"draining": True})).status_code == 403
        assert (await maria.post(f"{PATH}/host-2/recover")).status_code == 403
        assert (await maria.post(f"{PATH}/tokens")).status_code == 403
    assert engine.requests == []


@pytest.mark.parametrize("url", [None, "engine"])
async def test_e2b_cloud_and_other_endpoints_have_no_hosts(world: World, engine: FakeEngine, url: str | None) -> None:
    if url is None:
        use_engine(world, None)
    engine.error = (404, "not found")
    async with client(world.app(hosts.router), await world.create_person("chief", "admin")) as chief:
        answer = await chief.get(PATH)
        assert (answer.status_code, answer.json()["code"]) == (501, "hosts_not_available")
        assert "E2B Cloud" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("error", "status", "expected"),
    [
        ((409, {"code": 409, "message": "This engine accepts no hosts."}), 409, "accepts no hosts"),
        ((400, {"code": 400, "message": "'a b' is not a valid label."}), 400, "not a valid label"),
        ((200, {"unknown": 1}), 502, "same version"),
        ((200, "<html>"), 502, "same version"),
    ],
)
async def test_a_refusal_of_the_engine_is_explained(
    world: World, engine: FakeEngine, error: tuple[int, Any], status: int, expected: str
) -> None:
    engine.error = error
    async with client(world.app(hosts.router), await world.create_person("chief", "admin")) as chief:
        answer = await chief.post(f"{PATH}/tokens")
        assert (answer.status_code, expected in answer.json()["detail"]) == (status, True), answer.text


async def test_an_unknown_host_is_not_found(world: World, engine: FakeEngine) -> None:
    engine.error = (404, {"code": 404, "message": "There is no host 'x'."})
    async with client(world.app(hosts.router), await world.create_person("chief", "admin")) as chief:
        answer = await chief.patch(f"{PATH}/x", json={"draining": True})
        assert (answer.status_code, answer.json()["code"]) == (404, "host_not_found")
