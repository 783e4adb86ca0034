"""GitHub's webhook deliveries: signed, bounded, rate-limited, and recorded without a user."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import event, select
from sqlalchemy.engine import Engine
from starlette.types import Message

from sandyard.kit.secret import Secret
from sandyard.platform.api import webhooks as api
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.db.models import Audit, Delivery
from sandyard.platform.domain.audit.service import AuditQuery
from sandyard.platform.domain.forge import webhooks
from sandyard.platform.domain.paging import PageRequest
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.unit.platform.world import ROOT, client

SECRET = "0123456789abcdef0123456789abcdef"
PING = {
    "zen": "Speak like a human.",
    "repository": {"full_name": "example/website", "html_url": "https://github.com/example/website"},
}


@dataclass
class WebhookClient:
    services: Services
    web: httpx.AsyncClient
    app: FastAPI

    async def deliver(
        self, payload: Any = PING, *, secret: str = SECRET, event: str = "ping", delivery: str = "one"
    ) -> httpx.Response:
        body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        headers = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery,
            "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
            "Content-Type": "application/json",
        }
        return await self.web.post("/api/v1/webhooks/github", content=body, headers=headers)

    async def list_records(self) -> list[Audit]:
        return list((await self.services.audit.list(ROOT, AuditQuery(action="webhook.github"), PageRequest())).items)


@pytest.fixture
async def webhook_client(tmp_path: Path) -> AsyncIterator[WebhookClient]:
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path), executes_per_minute=20)
    async with open_services(settings) as services:
        app = build(services, ROUTERS)
        maria = await services.users.create(ROOT, "maria", "member")
        owner = Principal(maria.id, "maria", "member", "test")
        project = await services.projects.create(owner, "website", repository="https://github.com/example/website.git")
        await services.credentials.put(owner, project.id, webhook_secret=Secret(SECRET))
        async with client(app, peer="192.0.2.1") as web:
            yield WebhookClient(services, web, app)


async def test_accepts_delivery_once_and_records_no_user(webhook_client: WebhookClient) -> None:
    first, again = await webhook_client.deliver(), await webhook_client.deliver()
    assert (first.status_code, first.json()) == (202, {"status": "taken"})
    assert (again.status_code, again.json()) == (202, {"status": "known"})
    replayed = await webhook_client.deliver(delivery="another")
    assert (replayed.status_code, replayed.json()) == (202, {"status": "known"})
    other = await webhook_client.deliver(event="star", delivery="two")
    assert (other.status_code, other.json()) == (202, {"status": "ignored"})
    found = await webhook_client.list_records()
    assert [(item.user_id, item.outcome, item.address) for item in found] == [(None, "ok", "192.0.2.1")] * 4
    assert found[-1].detail == {"event": "ping", "delivery": "one"}


async def test_rejects_unsigned_delivery_without_record(webhook_client: WebhookClient) -> None:
    wrong = await webhook_client.deliver(secret="x" * 32)
    assert (wrong.status_code, wrong.json()["code"]) == (401, "webhook_signature")
    bare = await webhook_client.web.post("/api/v1/webhooks/github", json=PING)
    assert (bare.status_code, bare.json()["code"]) == (401, "webhook_signature")
    half = await webhook_client.deliver(b'{"repository":{"full_name":"acme/\\ud800x"}}', secret="x" * 32)
    assert (half.status_code, half.json()["code"]) == (400, "invalid_argument")
    unknown = await webhook_client.deliver({"repository": {"full_name": "somebody/else"}})
    assert (unknown.status_code, unknown.json()["code"]) == (403, "webhook_unconfigured")
    for odd in (b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000):
        assert (await webhook_client.deliver(odd)).status_code in (400, 401), odd[:10]
    assert await webhook_client.list_records() == []


async def test_limits_size_of_delivery(webhook_client: WebhookClient) -> None:
    large = await webhook_client.deliver(PING | {"padding": "x" * (3 << 20)})
    assert large.status_code == 202
    too_large = await webhook_client.deliver(PING | {"padding": "x" * (5 << 20)})
    assert (too_large.status_code, too_large.json()["code"]) == (413, "too_large")


async def test_limits_deliveries_per_address(webhook_client: WebhookClient) -> None:
    taken = 0
    while (answer := await webhook_client.deliver(delivery=str(taken))).status_code == 202:
        taken += 1
    assert taken >= 20 and (answer.status_code, answer.json()["code"]) == (429, "rate_limited")
    async with client(webhook_client.app, peer="192.0.2.2") as other:
        assert (
            await WebhookClient(webhook_client.services, other, webhook_client.app).deliver(delivery="from-another")
        ).status_code == 202


async def create_projects(services: Services, name: str, secrets: list[str]) -> list[str]:
    """Create a user with one project per secret, all with the same repository."""
    user = await services.users.create(ROOT, name, "member")
    owner, ids = Principal(user.id, name, "member", "test"), []
    for secret in secrets:
        project = await services.projects.create(owner, name, repository="https://github.com/example/website.git")
        await services.credentials.put(owner, project.id, webhook_secret=Secret(secret))
        ids.append(project.id)
    return ids


async def list_statements(work: Awaitable[httpx.Response]) -> tuple[httpx.Response, list[str]]:
    """Return the response, and the statements that the database executed meanwhile."""
    statements: list[str] = []

    def add(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(Engine, "before_cursor_execute", add)
    try:
        return await work, statements
    finally:
        event.remove(Engine, "before_cursor_execute", add)


@pytest.mark.parametrize("limit", ["MAX_PROJECTS", "MAX_SECRETS"])
async def test_one_owner_cannot_displace_the_projects_of_others(
    webhook_client: WebhookClient, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(webhooks, limit, 6)
    await create_projects(webhook_client.services, "otto", [f"{number:032}" for number in range(8)])
    await create_projects(webhook_client.services, "eve", ["e" * 32, "f" * 32])
    for secret in (SECRET, f"{0:032}", f"{2:032}", "e" * 32, "f" * 32):
        answer = await webhook_client.deliver(secret=secret, delivery=secret)
        assert (answer.status_code, answer.json()) == (202, {"status": "taken"}), secret
    assert (await webhook_client.deliver(secret=f"{7:032}")).status_code == 401


async def test_limits_how_much_is_hashed_for_a_delivery(
    webhook_client: WebhookClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create_projects(webhook_client.services, "otto", ["o" * 32, "p" * 32])
    payload = PING | {"padding": "x" * 10_000}
    monkeypatch.setattr(webhooks, "MAX_HASHED_BYTES", 25_000)
    for secret, status in ((SECRET, 202), ("o" * 32, 202), ("p" * 32, 401)):
        assert (await webhook_client.deliver(payload, secret=secret, delivery=secret)).status_code == status
    assert (await webhook_client.deliver(secret="p" * 32)).status_code == 202  # a small one


async def test_all_projects_with_the_same_secret_receive_a_delivery(webhook_client: WebhookClient) -> None:
    created = [await create_projects(webhook_client.services, name, [SECRET] * 2) for name in ("otto", "eve")]
    assert (await webhook_client.deliver()).json() == {"status": "taken"}
    async with webhook_client.services.database.reading() as session:
        received = set(await session.scalars(select(Delivery.project_id)))
    assert received > {project_id for ids in created for project_id in ids} and len(received) == 5


async def test_rejecting_a_delivery_takes_one_query_for_any_number_of_projects(webhook_client: WebhookClient) -> None:
    await create_projects(webhook_client.services, "otto", [f"{number:032}" for number in range(5)])
    answer, statements = await list_statements(webhook_client.deliver(secret="x" * 32))
    assert answer.status_code == 401
    assert len([statement for statement in statements if "credentials" in statement or "projects" in statement]) == 1, (
        statements
    )


async def test_senders_of_invalid_signatures_are_limited_earlier(webhook_client: WebhookClient) -> None:
    for _ in range(2):
        assert (await webhook_client.deliver(secret="x" * 32)).status_code == 401
    refused = await webhook_client.deliver(secret="x" * 32)
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert "invalid signature" in refused.json()["detail"] and int(refused.headers["retry-after"]) > 0
    async with client(webhook_client.app, peer="192.0.2.2") as other:
        sender = WebhookClient(webhook_client.services, other, webhook_client.app)
        for _ in range(5):  # anyone can make GitHub send these from its own addresses
            assert (await sender.deliver({"repository": {"full_name": "somebody/else"}})).status_code == 403
            assert (await sender.web.post("/api/v1/webhooks/github", json=PING)).status_code == 401
        assert (await sender.deliver()).status_code == 202


SIGNED = {"x-github-event": "ping", "x-github-delivery": "one", "x-hub-signature-256": "sha256=" + "0" * 64}


class OpenDelivery:
    """A delivery whose body is sent piece by piece."""

    def __init__(self, app: FastAPI, headers: dict[str, str] = SIGNED, *, peer: str = "192.0.2.1") -> None:
        self.reads, self.sent = 0, list[Message]()
        self._pieces: asyncio.Queue[Message] = asyncio.Queue()
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/api/v1/webhooks/github",
            "query_string": b"",
            "headers": [(b"host", b"localhost"), *((key.encode(), value.encode()) for key, value in headers.items())],
            "client": (peer, 1),
            "scheme": "http",
            "root_path": "",
            "server": ("127.0.0.1", 8700),
            "http_version": "1.1",
        }
        self._task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        self.reads += 1
        return await self._pieces.get()

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    async def write(self, size: int) -> None:
        """Send a piece and wait until it was read, or refused."""
        self._pieces.put_nowait({"type": "http.request", "body": b"x" * size, "more_body": True})
        reads = self.reads
        while not self._task.done() and (self.reads == reads or not self._pieces.empty()):
            await asyncio.sleep(0)

    async def disconnect(self) -> None:
        self._pieces.put_nowait({"type": "http.disconnect"})
        await self._task

    async def get_refusal(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(30):
            await self._task
        return self.sent[0]["status"], {key.decode().lower(): value.decode() for key, value in self.sent[0]["headers"]}


@pytest.mark.parametrize(
    ("changed", "status"),
    [
        ({"x-hub-signature-256": ""}, 401),
        ({"x-hub-signature-256": "sha256=" + "0" * 63}, 401),
        ({"x-github-event": ""}, 400),
        ({"x-github-delivery": ""}, 400),
    ],
)
async def test_refuses_invalid_headers_without_reading_the_body(
    webhook_client: WebhookClient, changed: dict[str, str], status: int
) -> None:
    delivery = OpenDelivery(webhook_client.app, SIGNED | changed)
    found, headers = await delivery.get_refusal()
    assert (found, headers["connection"], delivery.reads) == (status, "close", 0)


async def test_a_body_has_a_deadline(webhook_client: WebhookClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "BODY_SECONDS", 0.01)
    status, headers = await OpenDelivery(webhook_client.app).get_refusal()
    assert (status, headers["connection"]) == (408, "close")


async def test_limits_the_memory_of_unverified_bodies(
    webhook_client: WebhookClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "MAX_UNVERIFIED", 3000)
    monkeypatch.setattr(api, "MAX_UNVERIFIED_PER_ADDRESS", 2000)
    app, bodies = webhook_client.app, webhook_client.app.state.unverified_webhooks
    async with contextlib.AsyncExitStack() as stack:
        opened = [OpenDelivery(app, peer=peer) for peer in ("2001:db8::1", "2001:db8::2", "192.0.2.9")]
        for delivery in opened:
            stack.push_async_callback(delivery.disconnect)
            await delivery.write(1)
            await delivery.write(899)
        assert bodies.sizes == {"2001:db8::/64": 1800, "192.0.2.9": 900}
        same_network = OpenDelivery(app, peer="2001:db8::3")
        await same_network.write(201)
        status, headers = await same_network.get_refusal()
        assert (status, headers["connection"], int(headers["retry-after"]) > 0) == (429, "close", True)
        other = OpenDelivery(app, peer="192.0.2.10")
        await other.write(301)
        status, headers = await other.get_refusal()
        assert (status, headers["connection"], int(headers["retry-after"]) > 0) == (503, "close", True)
    assert not bodies.sizes
    answer = await webhook_client.deliver()
    assert answer.status_code == 202 and "connection" not in answer.headers
    assert not bodies.sizes


async def test_an_aborted_body_is_not_an_error(webhook_client: WebhookClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="sandyard"):
        delivery = OpenDelivery(webhook_client.app)
        await delivery.write(10)
        await delivery.disconnect()
    records = [record for record in caplog.records if record.message.startswith("request_")]
    assert [(record.message, record.levelname, record.exc_info) for record in records] == [
        ("request_aborted", "INFO", None)
    ]
    assert not delivery.sent and not webhook_client.app.state.unverified_webhooks.sizes
