"""The routes of credentials, and a project that is made with its token."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, opened
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.databases import with_schema
from tests.unit.platform.world import ROOT, Person, client

EMPTY = ("commit", "-q", "--allow-empty", "-m", "chore: begin")
TOKEN = "github_pat_11ABCDEFG0123456789_wxyz"


class Room:
    """An owner, a member and a stranger."""

    def __init__(self, services: Services, *people: httpx.AsyncClient) -> None:
        self.services = services
        self.maria, self.otto, self.eve = people

    async def project(self, **body: Any) -> str:
        made = await self.maria.post("/api/v1/projects", json={"name": "website", **body})
        assert made.status_code == 201, made.text
        project_id: str = made.json()["id"]
        otto = (await self.otto.get("/api/v1/me")).json()["user"]["id"]
        await self.maria.put(f"/api/v1/projects/{project_id}/members/{otto}")
        return f"/api/v1/projects/{project_id}"


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(opened(PlatformSettings.load({}, data_dir=with_schema(tmp_path))))
        app = build(services, ROUTERS)
        people = []
        for name in ("maria", "otto", "eve"):
            user = await services.users.create(ROOT, name, "member")
            principal = Principal(user.id, name, "member", "test")
            issued = await services.users.create_token(principal, "test")
            people.append(await stack.enter_async_context(client(app, Person(principal, issued.value.reveal()))))
        yield Room(services, *people)


def pem(key: Any) -> str:
    made: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return made.decode()


async def test_written_listed_removed_never_shown(room: Room) -> None:
    path = await room.project(repository="https://example.org/w.git", token=TOKEN, username="maria")
    listed = await room.otto.get(f"{path}/credentials")
    assert [(one["kind"], one["hint"]) for one in listed.json()["items"]] == [("token", "…wxyz")]
    given = {
        "sshKey": pem(ed25519.Ed25519PrivateKey.generate()),
        "app": {"appId": 123, "installationId": "456", "privateKey": pem(rsa.generate_private_key(65537, 2048))},
        "webhookSecret": "planted-webhook-secret",
    }
    put = await room.maria.put(f"{path}/credentials", json=given)
    assert put.status_code == 200, put.text
    hints = {one["kind"]: one["hint"] for one in put.json()["items"]}
    assert set(hints) == {"app", "ssh_key", "token", "webhook_secret"}
    assert hints["app"].startswith("123 SHA256:") and hints["ssh_key"].startswith("ssh-ed25519 SHA256:")
    assert (await room.maria.delete(f"{path}/credentials/token")).status_code == 204
    assert (await room.maria.delete(f"{path}/credentials/token")).status_code == 404
    seen = json.dumps(
        [
            (await room.maria.get(path)).json(),
            put.json(),
            [one.detail for one in (await room.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items],
        ]
    )
    for planted in (TOKEN, "planted-webhook-secret", "PRIVATE KEY"):
        assert planted not in seen
    audit = await room.services.audit.list(ROOT, AuditQuery(action="credential.put"), PageRequest())
    assert [one.detail for one in audit.items] == [{"kinds": ["app", "ssh_key", "webhook_secret"]}]


async def test_who_may(room: Room) -> None:
    path = await room.project()
    for person, status in ((room.otto, 403), (room.eve, 404)):
        assert (await person.put(f"{path}/credentials", json={"token": TOKEN})).status_code == status
        assert (await person.delete(f"{path}/credentials/token")).status_code == status
    assert (await room.eve.get(f"{path}/credentials")).status_code == 404
    assert (await room.eve.post(f"{path}/test")).status_code == 404
    assert (await room.maria.get(f"{path}/credentials")).json() == {"items": []}


NO_CREDENTIALS: tuple[dict[str, Any], ...] = (
    {},
    {"token": ""},
    {"token": "hunter2 hunter2"},
    {"token": "hunter2" + "x" * 1000},
    {"username": "maria"},
    {"sshKey": "hunter2"},
    {"webhookSecret": "hunter2"},
    {"app": {"appId": "1", "installationId": "1", "privateKey": "hunter2"}},
    {"app": {"appId": "1", "privateKey": "hunter2"}},
    {"password": "hunter2"},
    {"token": "hunter2\0"},
)


async def test_what_is_no_credential_is_refused_and_not_repeated(room: Room) -> None:
    path = await room.project()
    for body in NO_CREDENTIALS:
        answer = await room.maria.put(f"{path}/credentials", json=body)
        assert answer.status_code == 400 and "hunter2" not in answer.text, (body, answer.text)
        assert (await room.maria.get(f"{path}/credentials")).json() == {"items": []}, body


async def test_a_project_is_not_made_with_a_token_that_cannot_be(room: Room) -> None:
    for body in ({"token": "hunter2 hunter2"}, {"username": "maria"}):
        answer = await room.maria.post("/api/v1/projects", json={"name": "website", **body})
        assert answer.status_code == 400 and "hunter2" not in answer.text
    inside = {"name": "website", "repository": "https://maria:hunter2@example.org/w.git"}
    answer = await room.maria.post("/api/v1/projects", json=inside)
    assert (answer.status_code, answer.json()["code"]) == (400, "repository_invalid") and "hunter2" not in answer.text
    local = await room.maria.post("/api/v1/projects", json={"name": "website", "repository": "/etc"})
    assert local.status_code == 403 and "administrator" in local.json()["detail"]
    assert (await room.maria.get("/api/v1/projects")).json()["items"] == []


async def test_the_connection_is_tried(room: Room, tmp_path: Path) -> None:
    path = await room.project()
    none = (await room.otto.post(f"{path}/test")).json()
    assert none["ok"] is False and none["findings"] and none["budget"] is None
    # nobody listens there
    await room.maria.patch(
        path, json={"repository": "http://127.0.0.1:9/a/b.git", "settings": {"forge": {"kind": "plain"}}}
    )
    tried = await room.otto.post(f"{path}/test", timeout=30)
    assert tried.status_code == 200, tried.text
    assert tried.json()["ok"] is False and not all(one["ok"] for one in tried.json()["findings"])


async def test_what_does_not_work_is_not_stored(room: Room, tmp_path: Path) -> None:
    chief = await room.services.users.create(ROOT, "chief", "admin")
    principal = Principal(chief.id, "chief", "admin", "test")
    issued = await room.services.users.create_token(principal, "test")
    repository = tmp_path / "there"
    for words in (("init", "-q", "-b", "main", "."), ("-c", "user.name=A", "-c", "user.email=a@b", *EMPTY)):
        repository.mkdir(exist_ok=True)
        subprocess.run(["git", *words], cwd=repository, check=True)
    async with client(build(room.services, ROUTERS), Person(principal, issued.value.reveal())) as web:
        wrong = {"name": "website", "repository": str(tmp_path / "missing"), "test": True}
        refused = await web.post("/api/v1/projects", json=wrong)
        told = refused.json()
        assert (refused.status_code, told["code"]) == (409, "connection_test_failed"), refused.text
        assert [one["what"] for one in told["findings"] if not one["ok"]] == ["repository"]
        nowhere = {**wrong, "repository": str(repository), "baseBranch": "nowhere"}
        assert "nowhere" in (await web.post("/api/v1/projects", json=nowhere)).json()["detail"]
        token = {"name": "x", "repository": "http://127.0.0.1:9/a/b.git", "token": TOKEN, "test": True}
        assert (await web.post("/api/v1/projects", json=token)).status_code == 409
        assert (await web.get("/api/v1/projects")).json()["items"] == []
        events = await room.services.audit.list(ROOT, AuditQuery(action="project.create"), PageRequest())
        assert TOKEN not in json.dumps([one.detail for one in events.items])

        made = await web.post("/api/v1/projects", json={**wrong, "repository": str(repository)})
        assert (made.status_code, made.json()["connectionError"]) == (201, None)
        path = f"/api/v1/projects/{made.json()['id']}"
        repository.rename(tmp_path / "moved")
        assert (await web.post(f"{path}/test")).json()["ok"] is False
        assert "no such repository" in (await web.get("/api/v1/projects")).json()["items"][0]["connectionError"]
        (tmp_path / "moved").rename(repository)
        assert (await web.post(f"{path}/test")).json()["ok"] is True
        assert (await web.get(path)).json()["connectionError"] is None

        moved = {"repository": "http://127.0.0.1:9/a/b.git"}
        assert (await web.patch(path, json=moved)).status_code == 200
        kept = await web.put(f"{path}/credentials", params={"test": "true"}, json={"token": TOKEN})
        assert (kept.status_code, kept.json()["code"]) == (409, "connection_test_failed"), kept.text
        assert (await web.get(f"{path}/credentials")).json() == {"items": []}


async def test_a_repository_does_not_move_with_a_token(room: Room) -> None:
    path = await room.project(repository="https://example.org/w.git", token=TOKEN)
    moved = await room.maria.patch(path, json={"repository": "https://evil.example/w.git"})
    assert (moved.status_code, moved.json()["code"]) == (409, "conflict") and "example.org" in moved.json()["detail"]
    assert (await room.maria.patch(path, json={"repository": "https://example.org/v.git"})).status_code == 200
