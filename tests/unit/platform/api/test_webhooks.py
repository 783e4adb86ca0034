"""GitHub's webhook deliveries: signed, bounded, rate-limited, and recorded without a user."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from sandyard.kit.secret import Secret
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, opened
from sandyard.platform.db.models import Audit
from sandyard.platform.domain.audit.service import AuditQuery
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

    async def recorded(self) -> list[Audit]:
        return list((await self.services.audit.list(ROOT, AuditQuery(action="webhook.github"), PageRequest())).items)


@pytest.fixture
async def webhook_client(tmp_path: Path) -> AsyncIterator[WebhookClient]:
    settings = PlatformSettings.load({}, data_dir=with_schema(tmp_path), executes_per_minute=20)
    async with opened(settings) as services:
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
    found = await webhook_client.recorded()
    assert [(one.user_id, one.outcome, one.address) for one in found] == [(None, "ok", "192.0.2.1")] * 4
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
    assert await webhook_client.recorded() == []


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
