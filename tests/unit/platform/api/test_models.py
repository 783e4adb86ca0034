"""Model providers and their usage, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.platform.api import models
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.db.models import ModelCall
from sandyard.platform.domain.agents.profiles import BUILT_IN
from sandyard.platform.domain.models.model import NoModelError
from sandyard.platform.domain.sandboxes.model import utc_now
from sandyard.platform.domain.services import Services
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.unit.platform.domain.models import upstream as scripted
from tests.unit.platform.domain.models.upstream import Reply, Seen
from tests.unit.platform.world import client, create_person

KEY = "sk-planted-8c1f0a97d2e64b35"
PROVIDERS = "/api/v1/model-providers"


@pytest.fixture
async def services(tmp_path: Path) -> AsyncIterator[Services]:
    async with open_services(PlatformSettings.load({}, data_dir=with_schema(tmp_path))) as made:
        yield made


@pytest.fixture
async def admin(services: Services) -> AsyncIterator[httpx.AsyncClient]:
    async with client(build(services, ROUTERS), await create_person(services.users, "admin", "admin")) as web:
        yield web


async def test_provider_and_key(services: Services, admin: httpx.AsyncClient) -> None:
    body: dict[str, Any] = {
        "name": "claude",
        "kind": "anthropic",
        "key": KEY,
        "models": ["sonnet"],
        "prices": {"sonnet": {"input": 3, "output": 15}},
    }
    made = await admin.post(PROVIDERS, json=body)
    assert made.status_code == 201, made.text
    assert (made.json()["hint"], made.json()["baseUrl"]) == ("…4b35", "https://api.anthropic.com")
    path = f"{PROVIDERS}/{made.json()['id']}"
    changed = await admin.patch(path, json={"models": ["opus"]})
    assert (changed.json()["models"], changed.json()["hint"]) == (["opus"], "…4b35")
    moved = await admin.patch(path, json={"baseUrl": "https://elsewhere.example.org"})
    assert (moved.status_code, moved.json()["code"]) == (409, "conflict")
    assert (await admin.patch(path, json={"key": None})).json()["hint"] == "no key"
    assert (await admin.post(PROVIDERS, json={**body, "kind": "magic"})).status_code == 400
    wrong = await admin.post(PROVIDERS, json={**body, "name": "b", "key": KEY + " "})
    assert wrong.status_code == 400
    listed = await admin.get(PROVIDERS)
    assert [item["name"] for item in listed.json()["items"]] == ["claude"]
    audit = await admin.get("/api/v1/audit")
    for answer in (made, changed, moved, wrong, listed, audit):
        assert KEY not in answer.text
    assert (await admin.delete(path)).status_code == 204
    assert (await admin.get(path)).status_code == 404


async def test_preset_fills_in_missing_fields(admin: httpx.AsyncClient) -> None:
    listed = (await admin.get("/api/v1/model-presets")).json()
    presets = {item["name"]: item for item in listed["items"]}
    assert (presets["anthropic"]["agents"], presets["anthropic"]["keyRequired"]) == (["opencode", "claude"], True)
    assert (presets["ollama"]["keyRequired"], presets["ollama"]["models"]) == (False, [])
    assert listed["pricesTaken"] >= "2026-11-17"
    made = (await admin.post(PROVIDERS, json={"preset": "openrouter", "key": KEY})).json()
    for field in ("name", "kind", "baseUrl", "models"):
        assert made[field] == presets["openrouter"][field]
    assert set(made["prices"]) == set(presets["openrouter"]["prices"])
    price = {"qwen": {"input": 1, "output": 1}}
    own = {
        "preset": "ollama",
        "name": "den",
        "baseUrl": "http://10.0.0.9:11434/v1",
        "models": ["qwen"],
        "prices": price,
    }
    made = (await admin.post(PROVIDERS, json=own)).json()
    assert (made["name"], made["baseUrl"], made["models"]) == ("den", "http://10.0.0.9:11434/v1", ["qwen"])
    assert set(made["prices"]) == {"*", "qwen"}
    for wrong in ({"preset": "nobody"}, {"name": "x"}, {"name": "x", "kind": "openai_chat"}):
        assert (await admin.post(PROVIDERS, json=wrong)).status_code == 400


async def test_which_agents_have_a_model(services: Services, admin: httpx.AsyncClient) -> None:
    owner = await create_person(services.users, "owner")
    project = await services.projects.create(owner.principal, "website")

    async def agents(web: httpx.AsyncClient) -> dict[str, tuple[bool, list[str]]]:
        items = (await web.get("/api/v1/agents")).json()["items"]
        return {item["name"]: (item["modelReady"], item["modelProjects"]) for item in items}

    async def default_agents(web: httpx.AsyncClient) -> dict[str, str]:
        """Return the default agent of each project, and without a project under `platform`."""
        listed = (await web.get("/api/v1/projects")).json()["items"]
        default = [item["name"] for item in (await web.get("/api/v1/agents")).json()["items"] if item["default"]]
        return {item["name"]: item["defaultAgent"] for item in listed} | {"platform": ", ".join(default)}

    async with client(build(services, ROUTERS), owner) as web:
        found = await agents(web)
        assert (found["demo"], found["claude"], found["codex"]) == ((True, []), (False, []), (False, []))
        with pytest.raises(
            NoModelError, match=r"^Claude Code needs a model, but no Anthropic API key is set up\.$"
        ) as none:
            await services.models.require_model(project.id, BUILT_IN["claude"], None)
        assert "sandyard" not in str(none.value)  # the message is also shown in the web
        assert await default_agents(web) == {"website": "demo", "platform": "demo"}
        own = {"preset": "openai", "key": KEY, "projectId": project.id}
        assert (await admin.post(PROVIDERS, json=own)).status_code == 201
        assert await default_agents(web) == {"website": "codex", "platform": "demo"}
        await admin.post(PROVIDERS, json={"preset": "anthropic", "key": KEY})
        assert await default_agents(web) == {"website": "codex", "platform": "claude"}
        change = {"settings": {"agent": {"default": "claude"}}}
        changed = await web.patch(f"/api/v1/projects/{project.id}", json=change)
        assert changed.json()["defaultAgent"] == "claude"
        assert await default_agents(web) == {"website": "claude", "platform": "claude"}
        found = await agents(web)
        assert (found["claude"], found["codex"]) == ((True, []), (False, [project.id]))
        assert found["opencode"] == (True, [project.id])
        assert (await web.get("/api/v1/agents/codex")).json()["modelProjects"] == [project.id]
    async with client(build(services, ROUTERS), await create_person(services.users, "stranger")) as web:
        assert (await agents(web))["codex"] == (False, [])
    with pytest.raises(NoModelError) as unknown:
        await services.models.require_model(project.id, BUILT_IN["claude"], "gpt-2")
    assert unknown.value.code == "model_unknown"


async def test_tests_provider(admin: httpx.AsyncClient) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        if seen.headers.get("authorization") != f"Bearer {KEY}":
            seen_key = seen.headers.get("authorization", "nothing")
            await reply.send({"error": {"message": f"no such key: {seen_key}"}}, status=401)
        elif seen.target == "/v1/models":
            await reply.send({"data": []})
        else:
            assert seen.json["max_tokens"] == 1
            await scripted.chat(seen, reply)

    async with scripted.open_upstream() as upstream:
        upstream.handler = handler
        body = {"name": "a", "kind": "openai_chat", "key": KEY, "baseUrl": upstream.url}
        path = f"{PROVIDERS}/{(await admin.post(PROVIDERS, json=body)).json()['id']}"
        assert (await admin.post(f"{path}/test")).json()["ok"] is True
        await admin.patch(path, json={"models": ["tiny"]})
        verdict = (await admin.post(f"{path}/test")).json()
        assert (verdict["ok"], verdict["detail"]) == (True, "a works: the model tiny answered.")
        await admin.patch(path, json={"key": "sk-another-one-altogether"})
        refused = (await admin.post(f"{path}/test")).json()
        assert (refused["ok"], "sk-another" in refused["detail"]) == (False, False)
        assert (refused["cause"], refused["detail"][:31]) == ("key", "a rejected the API key (401). I")
    gone = (await admin.post(f"{path}/test")).json()
    assert (gone["ok"], gone["cause"]) == (False, "unreachable")
    assert "could not be reached" in gone["detail"]


async def test_stores_only_working_provider(admin: httpx.AsyncClient) -> None:
    async def handler(seen: Seen, reply: Reply) -> None:
        if seen.target == "/v1/models":
            await reply.send({"data": [{"id": "qwen"}, {"id": "llama"}]})
        elif seen.headers.get("authorization") != f"Bearer {KEY}":
            await reply.send({"error": {"message": f"no such key: {seen.headers.get('authorization')}"}}, status=401)
        else:
            await scripted.chat(seen, reply)

    async with scripted.open_upstream() as upstream:
        upstream.handler = handler
        body = {"name": "a", "kind": "openai_chat", "baseUrl": upstream.url, "models": ["tiny"], "test": True}
        refused = await admin.post(PROVIDERS, json={**body, "key": "sk-another-one-altogether"})
        problem = refused.json()
        assert (refused.status_code, problem["code"], problem["cause"]) == (409, "connection_test_failed", "key")
        assert problem["detail"].startswith("a rejected the API key (401).")
        assert "sk-another" not in refused.text
        assert (await admin.get(PROVIDERS)).json()["items"] == []
        made = (await admin.post(PROVIDERS, json={**body, "key": KEY})).json()
        path = f"{PROVIDERS}/{made['id']}"
        wrong = await admin.patch(path, json={"key": "sk-another-one-altogether", "test": True})
        assert (wrong.status_code, wrong.json()["cause"]) == (409, "key")
        moved = await admin.patch(path, json={"baseUrl": "https://elsewhere.example.org", "test": True})
        # the key must not be sent to another server
        assert (moved.status_code, moved.json()["code"]) == (
            409,
            "conflict",
        )
        assert (await admin.get(path)).json()["hint"] == made["hint"]
        assert (await admin.patch(path, json={"models": ["tiny", "big"], "test": True})).status_code == 200
        local = {"preset": "ollama", "baseUrl": f"{upstream.url}/v1", "models": [], "test": True}
        assert (await admin.post(PROVIDERS, json=local)).json()["models"] == ["qwen", "llama"]
        asked = len(upstream.seen)
        assert (await admin.post(PROVIDERS, json=local)).json()["code"] == "conflict"  # the name exists
        assert len(upstream.seen) == asked
    gone = await admin.post(PROVIDERS, json={**body, "name": "b"})
    assert (gone.status_code, gone.json()["cause"]) == (409, "unreachable")
    assert (await admin.post(PROVIDERS, json={**body, "name": "b", "test": False})).status_code == 201


async def test_usage(services: Services, admin: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "ITEMS_AT_ONCE", 1)
    owner, stranger = await create_person(services.users, "owner"), await create_person(services.users, "stranger")
    project = await services.projects.create(owner.principal, "website")
    async with services.database.transaction() as tx:
        for number, (model, status, cost) in enumerate((("a", 200, 5), ("b", 200, None), ("b", 0, None))):
            counts = {"input_tokens": 10, "output_tokens": 1} if status else {}
            tx.add(
                ModelCall(
                    id=f"mcl_{number}",
                    project_id=project.id,
                    model=model,
                    status=status,
                    cost_micros=cost,
                    started_at=utc_now(),
                    duration_ms=1,
                    **counts,
                )
            )
    app = build(services, ROUTERS)
    async with client(app, owner) as web:
        spent = (await web.get("/api/v1/usage", params={"projectId": project.id})).json()
        assert (spent["calls"], spent["inputTokens"], spent["outputTokens"]) == (3, 20, 2)
        assert (spent["costUsd"], spent["unpriced"]) == (0.000005, 1)
        assert [(item["model"], item["calls"], item["costUsd"]) for item in spent["models"]] == [
            ("a", 1, 0.000005),
            ("b", 2, None),
        ]
        assert (await web.get("/api/v1/usage")).json() == spent
        days = (await web.get("/api/v1/usage/days", params={"projectId": project.id})).json()
        assert [(day["model"], day["calls"], day["costUsd"]) for day in days["items"]] == [
            ("a", 1, 0.000005),
            ("b", 2, None),
        ]
        assert {(day["day"], day["projectId"]) for day in days["items"]} == {(f"{utc_now():%Y-%m-%d}", project.id)}
        assert not days["truncated"]
        late = await web.get("/api/v1/usage", params={"since": "2100-01-01T00:00:00Z"})
        assert (late.json()["calls"], late.json()["costUsd"]) == (0, 0.0)
        async with services.database.transaction() as tx:
            for number in (3, 4):  # of a provider that reported nonsense to an earlier version
                tokens = {"input_tokens": 1 << 62, "output_tokens": 1 << 62, "cost_micros": 1 << 62}
                when = {"started_at": utc_now(), "duration_ms": 1}
                tx.add(ModelCall(id=f"mcl_{number}", project_id=project.id, model="b", status=200, **tokens, **when))
        for path in ("/api/v1/usage", "/api/v1/usage/days"):
            assert (await web.get(path)).status_code == 200
    async with client(app, stranger) as web:
        assert (await web.get("/api/v1/usage")).json()["calls"] == 0
        assert (await web.get("/api/v1/usage", params={"projectId": project.id})).status_code == 404
        assert (await web.get("/api/v1/usage/days")).json()["items"] == []
        assert (await web.get("/api/v1/usage/days", params={"projectId": project.id})).status_code == 404
