"""The routes for login, users, tokens, projects, secrets and audit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from sandyard.platform.domain.projects import patterns
from sandyard.platform.domain.projects.model import ProjectSettings
from tests.unit.platform.world import PASSWORD, World, client, list_all, sign_in


class ApiClients:
    """Clients of an administrator, a member and another user."""

    def __init__(
        self, world: World, chief: httpx.AsyncClient, maria: httpx.AsyncClient, otto: httpx.AsyncClient
    ) -> None:
        self.world, self.chief, self.maria, self.otto = world, chief, maria, otto


@pytest.fixture
async def clients(world: World) -> AsyncIterator[ApiClients]:
    app = world.app()
    people = [
        await world.create_person("chief", "admin"),
        await world.create_person("maria"),
        await world.create_person("otto"),
    ]
    async with AsyncExitStack() as stack:
        yield ApiClients(world, *[await stack.enter_async_context(client(app, person)) for person in people])


async def get_me(web: httpx.AsyncClient) -> dict[str, Any]:
    answer = await web.get("/api/v1/me")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()["user"]
    return found


async def test_administrators_create_change_and_disable_users(clients: ApiClients) -> None:
    answer = await clients.chief.post("/api/v1/users", json={"name": "eve", "password": PASSWORD})
    assert answer.status_code == 201
    eve = answer.json()
    assert eve["role"] == "member" and eve["createdAt"].endswith("Z") and "password" not in eve
    assert eve["hasPassword"] and not (await get_me(clients.maria))["hasPassword"]
    assert (await clients.chief.post("/api/v1/users", json={"name": "eve"})).json()["code"] == "name_taken"
    assert (await clients.chief.get(f"/api/v1/users/{eve['id']}")).json() == eve
    names = [user["name"] for user in await list_all(clients.chief, "/api/v1/users", limit=2)]
    assert sorted(names) == ["chief", "eve", "maria", "otto"]
    changed = await clients.chief.patch(f"/api/v1/users/{eve['id']}", json={"role": "admin", "name": "eva"})
    assert changed.json()["role"] == "admin" and changed.json()["name"] == "eva"
    async with client(clients.world.app()) as web:
        login = {"name": "eva", "password": PASSWORD}
        await sign_in(web, **login)
        assert (await web.get("/api/v1/me")).status_code == 200
        assert (await clients.chief.delete(f"/api/v1/users/{eve['id']}")).status_code == 204
        assert (await clients.chief.delete(f"/api/v1/users/{eve['id']}")).status_code == 204
        assert (await web.get("/api/v1/me")).status_code == 401
        assert (await web.post("/api/v1/login", json=login)).status_code == 401
    assert (await clients.chief.get(f"/api/v1/users/{eve['id']}")).json()["disabledAt"]
    last = await clients.chief.delete(f"/api/v1/users/{(await get_me(clients.chief))['id']}")
    assert last.status_code == 409 and last.json()["code"] == "last_admin"
    assert (await clients.chief.get("/api/v1/users/usr_x")).status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a b"},
        {"name": "x", "role": "king"},
        {"name": "x", "password": "short"},
        {"name": 1},
        {"name": "x", "id": "usr_1"},
        {"name": "x" * 101},
    ],
)
async def test_invalid_users_are_rejected(clients: ApiClients, body: dict[str, Any]) -> None:
    answer = await clients.chief.post("/api/v1/users", json=body)
    assert answer.status_code == 400 and answer.json()["errors"]


async def test_members_see_only_themselves(clients: ApiClients) -> None:
    maria, otto = await get_me(clients.maria), await get_me(clients.otto)
    assert (await clients.maria.get(f"/api/v1/users/{maria['id']}")).status_code == 200
    for call in (
        clients.maria.get("/api/v1/users"),
        clients.maria.post("/api/v1/users", json={"name": "x"}),
        clients.maria.get(f"/api/v1/users/{otto['id']}"),
        clients.maria.get("/api/v1/users/usr_x"),
        clients.maria.patch(f"/api/v1/users/{maria['id']}", json={"role": "admin"}),
        clients.maria.delete(f"/api/v1/users/{otto['id']}"),
    ):
        assert (await call).status_code == 403


async def test_a_new_password_ends_other_logins(clients: ApiClients) -> None:
    app = clients.world.app()
    login = {"name": "maria", "password": PASSWORD}
    path, first = "/api/v1/me/password", {"password": PASSWORD}
    assert (await clients.maria.get("/api/v1/me")).json()["hasPassword"] is False
    refused = await clients.maria.put(path, json={"password": "short"})
    assert refused.status_code == 400
    assert refused.json()["errors"] == [{"field": "password", "message": "Use at least 10 characters"}]
    assert (await clients.maria.put(path, json=first)).status_code == 204, (
        "no current password is needed if there is none"
    )
    assert (await clients.maria.get("/api/v1/me")).json()["hasPassword"] is True
    async with client(app) as here, client(app) as elsewhere:
        for web in (here, elsewhere):
            await sign_in(web, **login)
        for body in (first, {**first, "currentPassword": "wrong"}):
            refused = await here.put(path, json=body)
            assert refused.status_code == 403 and refused.json()["code"] == "wrong_password"
        new = {"currentPassword": PASSWORD, "password": "another horse battery"}
        changed = await here.put(path, json=new)
        assert changed.status_code == 204
        assert (await here.get("/api/v1/me")).status_code == 200, "this login stays valid"
        assert (await elsewhere.get("/api/v1/me")).status_code == 401, "other logins end"
        assert (await elsewhere.post("/api/v1/login", json=login)).status_code == 401
    assert (await clients.maria.get("/api/v1/me")).status_code == 200, "tokens stay valid"


async def test_an_expiring_token_sets_no_first_password(clients: ApiClients) -> None:
    made = await clients.maria.post("/api/v1/tokens", json={"name": "laptop", "expiresAt": "2099-01-01T00:00:00Z"})
    async with client(clients.world.app()) as web:
        web.headers["Authorization"] = f"Bearer {made.json()['value']}"
        refused = await web.put("/api/v1/me/password", json={"password": PASSWORD})
        assert refused.status_code == 403 and "A token that expires" in refused.json()["detail"]
        assert (await clients.maria.put("/api/v1/me/password", json={"password": PASSWORD})).status_code == 204
        change = {"currentPassword": PASSWORD, "password": "another horse battery"}
        assert (await web.put("/api/v1/me/password", json=change)).status_code == 204


async def test_tokens_log_in_until_they_are_deleted(clients: ApiClients) -> None:
    made = await clients.maria.post("/api/v1/tokens", json={"name": "laptop", "expiresAt": "2099-01-01T00:00:00Z"})
    assert made.status_code == 201
    token = made.json()
    assert token["value"].startswith(token["hint"]) and token["expiresAt"] == "2099-01-01T00:00:00.000Z"
    async with client(clients.world.app()) as web:
        web.headers["Authorization"] = f"Bearer {token['value']}"
        assert (await get_me(web))["name"] == "maria"
        listed = await list_all(clients.maria, "/api/v1/tokens", limit=1)
        assert [item["name"] for item in listed] == ["laptop", "test"] and all("value" not in item for item in listed)
        assert (await clients.otto.delete(f"/api/v1/tokens/{token['id']}")).status_code == 404
        assert (await clients.maria.delete(f"/api/v1/tokens/{token['id']}")).status_code == 204
        assert (await web.get("/api/v1/me")).status_code == 401
    assert (await clients.maria.delete(f"/api/v1/tokens/{token['id']}")).status_code == 404
    for bad in (
        {"name": ""},
        {"name": "x", "expiresAt": "2099-01-01"},
        {"name": "x", "expiresAt": "2001-01-01T00:00:00Z"},
    ):
        assert (await clients.maria.post("/api/v1/tokens", json=bad)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [{}, {"name": "maria"}, {"password": PASSWORD}, {"token": "x", "name": "maria"}, {"name": "m", "password": 1}],
)
async def test_malformed_logins_are_rejected(clients: ApiClients, body: dict[str, Any]) -> None:
    async with client(clients.world.app()) as web:
        answer = await web.post("/api/v1/login", json=body)
        assert answer.status_code == 400 and "hunter2" not in answer.text


async def test_rejected_body_is_not_echoed(clients: ApiClients) -> None:
    async with client(clients.world.app()) as web:
        answer = await web.post("/api/v1/login", json={"name": "m", "password": "hunter2", "token": "hunter2"})
        assert answer.status_code == 400 and "hunter2" not in answer.text
    answer = await clients.maria.put("/api/v1/secrets/KEY", json={"value": "hunter2", "x": "hunter2"})
    assert answer.status_code == 400 and "hunter2" not in answer.text


async def test_projects_are_visible_to_their_members(clients: ApiClients) -> None:
    settings = {"commandPolicy": {"allow": [], "deny": ["\\bsudo\\b"]}, "idleSeconds": 60, "template": "node"}
    made = await clients.maria.post(
        "/api/v1/projects", json={"name": " website ", "repository": "git@example.org:w.git", "settings": settings}
    )
    assert made.status_code == 201
    project = made.json()
    path = f"/api/v1/projects/{project['id']}"
    assert project["name"] == "website" and project["baseBranch"] is None
    more = {
        "git",
        "forge",
        "agent",
        "network",
        "setup",
        "verify",
        "tasks",
        "quotas",
        "isolation",
        "containers",
        "hostLabels",
    }
    assert set(project["settings"]) == {*settings, *more}
    assert {name: project["settings"][name] for name in settings} == settings
    assert (await clients.maria.get(path)).json() == project
    assert (await clients.otto.get(path)).status_code == 404
    otto = await get_me(clients.otto)
    assert (await clients.maria.put(f"{path}/members/{otto['id']}")).status_code == 204
    assert (await clients.otto.get(path)).json() == project
    assert (await clients.otto.patch(path, json={"name": "x"})).status_code == 403
    assert (await clients.maria.get(f"{path}/members")).json() == {"items": [{"id": otto["id"], "name": "otto"}]}
    changed = await clients.maria.patch(path, json={"baseBranch": "main", "repository": None, "settings": {}})
    assert changed.json()["baseBranch"] == "main" and changed.json()["repository"] is None
    assert changed.json()["settings"] == ProjectSettings().model_dump(mode="json", by_alias=True)
    assert (await clients.maria.patch(path, json={"archived": True})).json()["archivedAt"]
    assert await list_all(clients.otto, "/api/v1/projects") == []
    assert len(list(await list_all(clients.otto, "/api/v1/projects", archived=True))) == 1
    assert (await clients.maria.delete(f"{path}/members/{otto['id']}")).status_code == 204
    assert (await clients.otto.get(path)).status_code == 404
    assert (await clients.chief.delete(path)).status_code == 204
    assert (await clients.maria.delete(path)).status_code == 404


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "  "}, "name"),
        ({"name": "x", "baseBranch": "-x"}, "baseBranch"),
        ({"name": "x", "baseBranch": "a..b"}, "baseBranch"),
        ({"name": "x", "token": ""}, "token"),
        ({"name": "x", "settings": {"commandPolicy": {"deny": ["("]}}}, "settings.commandPolicy.deny.0"),
        ({"name": "x", "settings": {"idleSeconds": 0}}, "settings.idleSeconds"),
        ({"name": "x", "settings": {"color": 0}}, "settings.color"),
    ],
)
async def test_invalid_projects_are_rejected(clients: ApiClients, body: dict[str, Any], field: str) -> None:
    answer = await clients.maria.post("/api/v1/projects", json=body)
    assert answer.status_code == 400 and answer.json()["errors"][0]["field"] == field, answer.text


async def test_reading_projects_compiles_no_pattern(clients: ApiClients, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [f"^x{at}$" for at in range(300)]
    policy, permissions = {"deny": given[:100], "allow": given[100:200]}, {"deny": given[200:]}
    settings = {"commandPolicy": policy, "agent": {"permissions": permissions}}
    made = await clients.maria.post("/api/v1/projects", json={"name": "x", "settings": settings})
    assert made.status_code == 201, made.text
    compiled: list[str] = []
    patterns.try_compile.cache_clear()
    monkeypatch.setattr("re2.compile", lambda pattern, _: compiled.append(pattern))
    [listed] = await list_all(clients.maria, "/api/v1/projects")
    assert listed["settings"]["commandPolicy"]["deny"] == given[:100]
    path = f"/api/v1/projects/{listed['id']}"
    assert (await clients.maria.get(path)).json()["settings"]["agent"]["permissions"]["deny"] == given[200:]
    assert (await clients.maria.patch(path, json={"name": "y"})).status_code == 200
    assert compiled == []


async def test_secrets_are_never_returned(clients: ApiClients) -> None:
    project = (await clients.maria.post("/api/v1/projects", json={"name": "website"})).json()
    assert (await clients.maria.put("/api/v1/secrets/KEY", json={"value": "hunter2"})).status_code == 200
    shared = {"value": "hunter3", "projectId": project["id"]}
    put = await clients.maria.put("/api/v1/secrets/KEY", json=shared)
    assert put.json()["projectId"] == project["id"] and "hunter" not in put.text
    own = await clients.maria.get("/api/v1/secrets")
    assert [item["name"] for item in own.json()["items"]] == ["KEY"] and "hunter" not in own.text
    assert len((await clients.maria.get("/api/v1/secrets", params={"projectId": project["id"]})).json()["items"]) == 1
    assert (await clients.otto.get("/api/v1/secrets")).json()["items"] == []
    assert (await clients.otto.get("/api/v1/secrets", params={"projectId": project["id"]})).status_code == 404
    assert (await clients.otto.put("/api/v1/secrets/KEY", json=shared)).status_code == 404
    assert (await clients.otto.delete("/api/v1/secrets/KEY")).status_code == 404
    assert (await clients.maria.delete("/api/v1/secrets/KEY", params={"projectId": project["id"]})).status_code == 204
    assert (await clients.maria.delete("/api/v1/secrets/KEY")).status_code == 204
    assert (await clients.maria.put("/api/v1/secrets/1KEY", json={"value": "x"})).status_code == 400
    assert (await clients.maria.put("/api/v1/secrets/KEY", json={"value": "x" * 70_000})).status_code == 400
    async with clients.world.database.reading() as session:
        emitted = json.dumps([event.data for event in await clients.world.list_events()])
        assert "hunter" not in emitted and session is not None


async def test_audit_entries_are_filtered_and_exported(clients: ApiClients) -> None:
    maria = await get_me(clients.maria)
    for number in range(3):
        await clients.maria.put(f"/api/v1/secrets/KEY{number}", json={"value": "hunter2"})
    found = list(await list_all(clients.chief, "/api/v1/audit", limit=2, action="secret.put"))
    assert [entry["target"] for entry in found] == ["KEY2", "KEY1", "KEY0"]
    assert found[0]["userId"] == maria["id"] and found[0]["outcome"] == "ok" and "hunter2" not in json.dumps(found)
    one = (await clients.chief.get("/api/v1/audit", params={"target": "KEY1", "userId": maria["id"]})).json()["items"]
    assert len(one) == 1
    none = (await clients.chief.get("/api/v1/audit", params={"since": "2099-01-01T00:00:00Z"})).json()["items"]
    assert none == []
    export = await clients.chief.get("/api/v1/audit/export", params={"action": "secret.put"})
    assert export.headers["content-type"] == "application/x-ndjson"
    assert [json.loads(line) for line in export.text.splitlines()] == found
    for path in ("/api/v1/audit", "/api/v1/audit/export"):
        assert (await clients.maria.get(path)).status_code == 403
    for odd in ("yesterday", "2026-01-31T10:00:00", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59"):
        assert (await clients.chief.get("/api/v1/audit", params={"since": odd})).status_code == 400, odd
    assert (await clients.chief.get("/api/v1/audit", params={"cursor": "x"})).status_code == 400


async def test_invalid_page_requests_are_rejected(clients: ApiClients) -> None:
    for query in ("limit=0", "limit=201", "limit=x", "cursor=%20", "cursor="):
        assert (await clients.maria.get(f"/api/v1/tokens?{query}")).status_code == 400, query
