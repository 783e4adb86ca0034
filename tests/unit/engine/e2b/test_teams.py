"""The API of teams and keys: one team, keys that are shown once, and a key that can delete itself."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from unittest.mock import MagicMock

import httpx
import pytest

from sandyard.engine.e2b.control import api
from sandyard.engine.store.database import Database, DatabaseUnavailableError
from sandyard.engine.store.keys import ApiKeys


@pytest.fixture
def keys(tmp_path: Path) -> Iterator[ApiKeys]:
    database = Database(tmp_path / "engine.db")
    database.open()
    yield ApiKeys(database)
    database.close()


@pytest.fixture
async def client(keys: ApiKeys) -> AsyncIterator[httpx.AsyncClient]:
    _, secret = keys.create("first")
    transport = httpx.ASGITransport(api.build_app(MagicMock(), keys))
    async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http_client:
        http_client.headers["X-API-Key"] = secret.reveal()
        yield http_client


async def test_an_engine_has_exactly_one_team(client: httpx.AsyncClient) -> None:
    (team,) = (await client.get("/teams")).json()
    assert team["isDefault"] is True
    assert team["apiKey"] == client.headers["X-API-Key"], "the team must show the key of this request and no other"
    token = {"X-API-Key": "", "Authorization": f"Bearer {client.headers['X-API-Key']}"}
    del client.headers["X-API-Key"]
    assert (await client.get("/teams", headers={"Authorization": token["Authorization"]})).json() == [team]


async def test_a_key_is_shown_once(client: httpx.AsyncClient, keys: ApiKeys) -> None:
    response = await client.post("/api-keys", json={"name": "  laptop "})
    assert response.status_code == 201
    created = response.json()
    assert keys.check(created["key"]) is not None
    assert created["name"] == "laptop"
    mask = created["mask"]
    assert created["key"].startswith(mask["prefix"] + mask["maskedValuePrefix"])
    assert len(created["key"]) == len(mask["prefix"]) + mask["valueLength"]
    listed = (await client.get("/api-keys")).text
    assert created["id"] in listed
    assert created["key"] not in listed


async def test_key_names_are_validated_and_unique(client: httpx.AsyncClient, keys: ApiKeys) -> None:
    created = (await client.post("/api-keys", json={"name": "laptop"})).json()
    renamed = await client.patch(f"/api-keys/{created['id']}", json={"name": "desk"})
    assert renamed.json()["name"] == "desk"
    assert (await client.patch(f"/api-keys/{created['id']}", json={"name": "desk"})).status_code == 200
    assert (await client.patch(f"/api-keys/{created['id']}", json={"name": "first"})).status_code == 409
    assert (await client.post("/api-keys", json={"name": "desk"})).status_code == 409
    for bad in ({"name": ""}, {"name": "x" * 101}, {"name": "a\nb"}, {"name": 1}, {}):
        assert (await client.post("/api-keys", json=bad)).status_code == 400
    assert (await client.patch("/api-keys/kabsent", json={"name": "x"})).status_code == 404
    assert (await client.delete("/api-keys/kabsent")).status_code == 404
    assert [key.label for key in keys.list()] == ["first", "desk"]


async def test_a_key_can_delete_itself(client: httpx.AsyncClient, keys: ApiKeys) -> None:
    (own,) = (await client.get("/api-keys")).json()
    assert (await client.delete(f"/api-keys/{own['id']}")).status_code == 204
    assert (await client.get("/api-keys")).status_code == 401
    assert keys.list() == []


async def test_an_access_token_works_as_a_key(client: httpx.AsyncClient) -> None:
    created = (await client.post("/access-tokens", json={"name": "ci"})).json()
    del client.headers["X-API-Key"]
    bearer = {"Authorization": f"Bearer {created['token']}"}
    assert (await client.get("/teams", headers=bearer)).status_code == 200
    assert (await client.delete(f"/access-tokens/{created['id']}", headers=bearer)).status_code == 204
    assert (await client.get("/teams", headers=bearer)).status_code == 401


async def test_nothing_is_changed_while_the_database_is_away(keys: ApiKeys) -> None:
    _, secret = keys.create("first")
    problem: list[str] = ["The database is away."]
    app = api.build_app(MagicMock(), keys, lambda: problem[0] if problem else None)
    headers = {"X-API-Key": secret.reveal()}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://engine", headers=headers
    ) as client:
        refused = await client.post("/api-keys", json={"name": "second"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json() == {"code": 503, "message": "The database is away."}
        assert (await client.get("/api-keys")).status_code == 200
        assert (await client.get("/ready")).status_code == 503
        problem.clear()
        assert (await client.post("/api-keys", json={"name": "second"})).status_code == 201
    assert [key.label for key in keys.list()] == ["first", "second"]


async def test_keys_stay_valid_while_the_database_is_away(keys: ApiKeys, monkeypatch: pytest.MonkeyPatch) -> None:
    key, secret = keys.create("first")

    def fail() -> int:
        raise DatabaseUnavailableError

    monkeypatch.setattr(keys._database, "get_data_version", fail)
    monkeypatch.setattr(keys, "_checked_at", 0.0)
    assert keys.check(secret.reveal()) == key
