"""Credential routes, and creating a project together with its token."""

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
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.unit.platform.world import ROOT, Person, client

EMPTY_COMMIT = ("commit", "-q", "--allow-empty", "-m", "chore: begin")
TOKEN = "github_pat_11ABCDEFG0123456789_wxyz"


class Clients:
    """API clients of an owner, a member and a stranger."""

    def __init__(self, services: Services, *people: httpx.AsyncClient) -> None:
        self.services = services
        self.maria, self.otto, self.eve = people

    async def create_project(self, **body: Any) -> str:
        created = await self.maria.post("/api/v1/projects", json={"name": "website", **body})
        assert created.status_code == 201, created.text
        project_id: str = created.json()["id"]
        otto = (await self.otto.get("/api/v1/me")).json()["user"]["id"]
        await self.maria.put(f"/api/v1/projects/{project_id}/members/{otto}")
        return f"/api/v1/projects/{project_id}"


@pytest.fixture
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            open_services(PlatformSettings.load({}, data_dir=with_schema(tmp_path)))
        )
        app = build(services, ROUTERS)
        people = []
        for name in ("maria", "otto", "eve"):
            user = await services.users.create(ROOT, name, "member")
            principal = Principal(user.id, name, "member", "test")
            issued = await services.users.create_token(principal, "test")
            people.append(await stack.enter_async_context(client(app, Person(principal, issued.value.reveal()))))
        yield Clients(services, *people)


def encode_pem(key: Any) -> str:
    encoded: bytes = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return encoded.decode()


async def test_credentials_are_stored_listed_and_removed_but_never_shown(clients: Clients) -> None:
    path = await clients.create_project(repository="https://example.org/w.git", token=TOKEN, username="maria")
    listed = await clients.otto.get(f"{path}/credentials")
    assert [(item["kind"], item["hint"]) for item in listed.json()["items"]] == [("token", "…wxyz")]
    body = {
        "sshKey": encode_pem(ed25519.Ed25519PrivateKey.generate()),
        "app": {"appId": 123, "installationId": "456", "privateKey": encode_pem(rsa.generate_private_key(65537, 2048))},
        "webhookSecret": "planted-webhook-secret",
    }
    put = await clients.maria.put(f"{path}/credentials", json=body)
    assert put.status_code == 200, put.text
    hints = {item["kind"]: item["hint"] for item in put.json()["items"]}
    assert set(hints) == {"app", "ssh_key", "token", "webhook_secret"}
    assert hints["app"].startswith("123 SHA256:") and hints["ssh_key"].startswith("ssh-ed25519 SHA256:")
    assert (await clients.maria.delete(f"{path}/credentials/token")).status_code == 204
    assert (await clients.maria.delete(f"{path}/credentials/token")).status_code == 404
    visible = json.dumps(
        [
            (await clients.maria.get(path)).json(),
            put.json(),
            [item.detail for item in (await clients.services.audit.list(ROOT, AuditQuery(), PageRequest(200))).items],
        ]
    )
    for planted in (TOKEN, "planted-webhook-secret", "PRIVATE KEY"):
        assert planted not in visible
    audit = await clients.services.audit.list(ROOT, AuditQuery(action="credential.put"), PageRequest())
    assert [item.detail for item in audit.items] == [{"kinds": ["app", "ssh_key", "webhook_secret"]}]


async def test_only_the_owner_may_change_credentials(clients: Clients) -> None:
    path = await clients.create_project()
    for person, status in ((clients.otto, 403), (clients.eve, 404)):
        assert (await person.put(f"{path}/credentials", json={"token": TOKEN})).status_code == status
        assert (await person.delete(f"{path}/credentials/token")).status_code == status
    assert (await clients.eve.get(f"{path}/credentials")).status_code == 404
    assert (await clients.eve.post(f"{path}/test")).status_code == 404
    assert (await clients.maria.get(f"{path}/credentials")).json() == {"items": []}


INVALID_CREDENTIALS: tuple[dict[str, Any], ...] = (
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


async def test_invalid_credentials_are_rejected_and_not_echoed(clients: Clients) -> None:
    path = await clients.create_project()
    for body in INVALID_CREDENTIALS:
        response = await clients.maria.put(f"{path}/credentials", json=body)
        assert response.status_code == 400 and "hunter2" not in response.text, (body, response.text)
        assert (await clients.maria.get(f"{path}/credentials")).json() == {"items": []}, body


async def test_a_project_with_an_invalid_token_or_repository_is_not_created(clients: Clients) -> None:
    for body in ({"token": "hunter2 hunter2"}, {"username": "maria"}):
        response = await clients.maria.post("/api/v1/projects", json={"name": "website", **body})
        assert response.status_code == 400 and "hunter2" not in response.text
    inside = {"name": "website", "repository": "https://maria:hunter2@example.org/w.git"}
    response = await clients.maria.post("/api/v1/projects", json=inside)
    assert (response.status_code, response.json()["code"]) == (
        400,
        "repository_invalid",
    ) and "hunter2" not in response.text
    local = await clients.maria.post("/api/v1/projects", json={"name": "website", "repository": "/etc"})
    assert local.status_code == 403 and "administrator" in local.json()["detail"]
    assert (await clients.maria.get("/api/v1/projects")).json()["items"] == []


async def test_the_connection_test_reports_what_failed(clients: Clients, tmp_path: Path) -> None:
    path = await clients.create_project()
    without_repository = (await clients.otto.post(f"{path}/test")).json()
    assert without_repository["ok"] is False and without_repository["findings"] and without_repository["budget"] is None
    # no server listens on this port
    await clients.maria.patch(
        path, json={"repository": "http://127.0.0.1:9/a/b.git", "settings": {"forge": {"kind": "plain"}}}
    )
    tested = await clients.otto.post(f"{path}/test", timeout=30)
    assert tested.status_code == 200, tested.text
    assert tested.json()["ok"] is False and not all(finding["ok"] for finding in tested.json()["findings"])


async def test_settings_that_fail_the_connection_test_are_not_stored(clients: Clients, tmp_path: Path) -> None:
    admin = await clients.services.users.create(ROOT, "chief", "admin")
    principal = Principal(admin.id, "chief", "admin", "test")
    issued = await clients.services.users.create_token(principal, "test")
    repository = tmp_path / "there"
    for arguments in (("init", "-q", "-b", "main", "."), ("-c", "user.name=A", "-c", "user.email=a@b", *EMPTY_COMMIT)):
        repository.mkdir(exist_ok=True)
        subprocess.run(["git", *arguments], cwd=repository, check=True)
    async with client(build(clients.services, ROUTERS), Person(principal, issued.value.reveal())) as web:
        wrong = {"name": "website", "repository": str(tmp_path / "missing"), "test": True}
        refused = await web.post("/api/v1/projects", json=wrong)
        problem = refused.json()
        assert (refused.status_code, problem["code"]) == (409, "connection_test_failed"), refused.text
        assert [finding["what"] for finding in problem["findings"] if not finding["ok"]] == ["repository"]
        nowhere = {**wrong, "repository": str(repository), "baseBranch": "nowhere"}
        assert "nowhere" in (await web.post("/api/v1/projects", json=nowhere)).json()["detail"]
        token = {"name": "x", "repository": "http://127.0.0.1:9/a/b.git", "token": TOKEN, "test": True}
        assert (await web.post("/api/v1/projects", json=token)).status_code == 409
        assert (await web.get("/api/v1/projects")).json()["items"] == []
        events = await clients.services.audit.list(ROOT, AuditQuery(action="project.create"), PageRequest())
        assert TOKEN not in json.dumps([event.detail for event in events.items])

        created = await web.post("/api/v1/projects", json={**wrong, "repository": str(repository)})
        assert (created.status_code, created.json()["connectionError"]) == (201, None)
        path = f"/api/v1/projects/{created.json()['id']}"
        repository.rename(tmp_path / "moved")
        assert (await web.post(f"{path}/test")).json()["ok"] is False
        assert "no such repository" in (await web.get("/api/v1/projects")).json()["items"][0]["connectionError"]
        (tmp_path / "moved").rename(repository)
        assert (await web.post(f"{path}/test")).json()["ok"] is True
        assert (await web.get(path)).json()["connectionError"] is None

        moved = {"repository": "http://127.0.0.1:9/a/b.git"}
        assert (await web.patch(path, json=moved)).status_code == 200
        rejected = await web.put(f"{path}/credentials", params={"test": "true"}, json={"token": TOKEN})
        assert (rejected.status_code, rejected.json()["code"]) == (409, "connection_test_failed"), rejected.text
        assert (await web.get(f"{path}/credentials")).json() == {"items": []}


async def test_the_repository_cannot_move_to_another_host_while_a_token_is_stored(clients: Clients) -> None:
    path = await clients.create_project(repository="https://example.org/w.git", token=TOKEN)
    moved = await clients.maria.patch(path, json={"repository": "https://evil.example/w.git"})
    assert (moved.status_code, moved.json()["code"]) == (409, "conflict") and "example.org" in moved.json()["detail"]
    assert (await clients.maria.patch(path, json={"repository": "https://example.org/v.git"})).status_code == 200
