"""A project's MCP servers, over HTTP."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.domain.services import Services
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.unit.platform.domain.models import upstream as scripted
from tests.unit.platform.domain.models.upstream import Reply, Seen
from tests.unit.platform.world import client, create_person

KEY = "mcp-planted-8c1f0a97d2e64b35"


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with open_services(PlatformSettings.load({}, data_dir=with_schema(tmp_path))) as made:
        yield made


@pytest.fixture
async def admin(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    async with client(build(services, ROUTERS), await create_person(services.users, "admin", "admin")) as web:
        yield web


async def tracker(seen: Seen, reply: Reply) -> None:
    """An MCP server with one tool, for clients that send the key."""
    if seen.headers.get("authorization") != f"Bearer {KEY}":
        await reply.send({}, status=401)
    elif seen.json.get("method") == "initialize":
        info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "tracker"}}
        await reply.send({"jsonrpc": "2.0", "id": seen.json["id"], "result": info})
    elif "id" in seen.json:
        await reply.send({"jsonrpc": "2.0", "id": seen.json["id"], "result": {"tools": [{"name": "search"}]}})
    else:
        await reply.send(b"", status=202)


async def test_servers_of_a_project(services: Services, admin: httpx.AsyncClient) -> None:
    project = (await admin.post("/api/v1/projects", json={"name": "website"})).json()
    path = f"/api/v1/projects/{project['id']}/mcp-servers"
    assert (await admin.get(path)).json() == {"items": []}
    command = {"name": "notes", "command": "npx", "args": ["-y", "notes"], "env": {"LEVEL": "info"}}
    made = await admin.post(path, json=command)
    assert made.status_code == 201, made.text
    assert {**made.json(), **command} == made.json()
    assert (made.json()["type"], made.json()["url"], made.json()["headers"]) == ("stdio", None, [])
    answer = await admin.post(f"{path}/{made.json()['id']}/test")
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")

    async with scripted.open_upstream() as upstream:
        upstream.handler = tracker
        wrong = {"name": "issues", "url": f"{upstream.url}/mcp", "headers": {"Authorization": "Bearer wrong"}}
        refused = await admin.post(path, json={**wrong, "test": True})
        assert (refused.status_code, refused.json()["code"]) == (409, "connection_test_failed")
        assert "rejected the configured headers (401)" in refused.json()["detail"]
        right = {**wrong, "headers": {"Authorization": f"Bearer {KEY}"}, "test": True}
        stored = await admin.post(path, json=right)
        assert stored.status_code == 201, stored.text
        assert stored.json()["headers"] == [{"name": "Authorization", "hint": "…4b35"}]
        server_path = f"{path}/{stored.json()['id']}"
        found = (await admin.post(f"{server_path}/test")).json()
        assert (found["ok"], found["tools"], found["server"]) == (True, ["search"], "tracker")
        changed = await admin.patch(
            server_path, json={"name": "tracker", "headers": {"Authorization": None}, "test": True}
        )
        assert (changed.status_code, changed.json()["name"]) == (200, "tracker")
        moved = await admin.patch(server_path, json={"url": "https://evil.example.org/mcp"})
        assert (moved.status_code, moved.json()["code"]) == (409, "conflict")
    gone = (await admin.post(f"{server_path}/test")).json()
    assert (gone["ok"], "could not be reached" in gone["detail"]) == (False, True)

    for body, status in (
        ({"name": "notes", "command": "x"}, 409),
        ({"name": "under_score", "command": "x"}, 400),
        ({"name": "neither"}, 400),
        ({"name": "unknown", "command": "x", "more": 1}, 400),
    ):
        assert (await admin.post(path, json=body)).status_code == status, body
    listed = await admin.get(path)
    assert [server["name"] for server in listed.json()["items"]] == ["notes", "tracker"]
    trail = await admin.get("/api/v1/audit")
    events = await admin.get("/api/v1/events/history")
    for answer in (stored, changed, listed, trail, events, refused):
        assert KEY not in answer.text
        assert "Bearer wrong" not in answer.text
    entry = next(
        item for item in trail.json()["items"] if item["action"] == "mcp_server.create" and item["outcome"] == "ok"
    )
    assert (entry["target"], entry["detail"]["name"]) == (project["id"], "issues")
    assert "mcp_server.updated" in json.dumps(events.json())
    assert (await admin.delete(server_path)).status_code == 204
    assert (await admin.get(server_path)).status_code == 404
