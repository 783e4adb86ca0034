"""Webhook deliveries of GitHub: authenticated by signature, processed once, and their contents not trusted."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import threading
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from sqlalchemy import select

from sandyard.kit.clock import get_time
from sandyard.kit.errors import InvalidInputError
from sandyard.kit.secret import Secret
from sandyard.platform.db.models import Delivery, Project, PullRequest
from sandyard.platform.domain.forge import webhooks
from sandyard.platform.domain.forge.deliveries import (
    MAX_BYTES,
    MAX_REPOSITORIES,
    Payload,
    find_repository_names,
    parse_payload,
)
from sandyard.platform.domain.forge.errors import ForgeUnreachableError
from sandyard.platform.domain.forge.model import PullState
from sandyard.platform.domain.forge.webhooks import (
    DELIVERY_RETENTION,
    LARGE_BYTES,
    MAX_LARGE_AT_ONCE,
    SETTLE_S,
    DeliveryResult,
    Webhooks,
    WebhookSignatureError,
    WebhookUnconfiguredError,
)
from sandyard.platform.domain.repositories.errors import TooMuchError
from tests.unit.platform.domain.forge.forge_harness import ForgeHarness

SECRET = "a-secret-that-nobody-guesses"
REPOSITORY = {
    "full_name": "Acme/Website",
    "html_url": "https://github.com/Acme/Website",
    "url": "https://api.github.com/repos/Acme/Website",
}


class WebhookReceiver:
    """Receives deliveries for a project."""

    def __init__(self, harness: ForgeHarness, project: Project) -> None:
        self.harness, self.project = harness, project
        self.pushed: list[str] = []
        self.hooks = Webhooks(
            harness.world.database, harness.world.credentials, harness.pulls, harness.world.clock, on_push=self._on_push
        )
        self._number = 0

    async def _on_push(self, project: Project) -> None:
        self.pushed.append(project.id)

    async def send(
        self, event: str, *, secret: str = SECRET, delivery: str | None = None, **payload: Any
    ) -> DeliveryResult:
        body = json.dumps({"repository": REPOSITORY, **payload}).encode()
        return await self.send_raw(event, body, secret=secret, delivery=delivery)

    async def send_raw(
        self, event: str, body: bytes, *, secret: str = SECRET, delivery: str | None = None, **headers: str
    ) -> DeliveryResult:
        self._number += 1
        signature = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        all_headers = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or f"delivery-{self._number}",
            "X-Hub-Signature-256": f"sha256={signature}",
            "Content-Type": "application/json",
        }
        return await self.hooks.receive(all_headers | headers, body)

    async def is_marked(self) -> bool:
        (row,) = await self.harness.list_rows()
        return row.looked_at is None

    async def settle(self) -> None:
        await self.harness.world.clock.advance(SETTLE_S)
        assert await self.hooks.tasks.wait(20)


@pytest.fixture
async def receiver(harness: ForgeHarness) -> AsyncIterator[WebhookReceiver]:
    """A project on github.com with a webhook secret, and its pull request, refreshed just now."""
    harness.commit("feat: one")
    row, _ = await harness.open()
    await harness.pulls.refresh(row)
    project = await harness.world.projects.update(
        harness.owner, harness.project.id, repository="https://github.com/acme/website.git"
    )
    await put_secret(harness, project.id)
    opened = WebhookReceiver(harness, project)
    yield opened
    await opened.hooks.close()


async def put_secret(harness: ForgeHarness, project_id: str, secret: str = SECRET) -> None:
    await harness.world.credentials.put(harness.owner, project_id, webhook_secret=Secret(secret))


def create_payload(event: str, harness: ForgeHarness) -> dict[str, Any]:
    head = harness.github.pulls[1].head_commit
    return {
        "pull_request": {"pull_request": {"number": 1}},
        "pull_request_review": {"pull_request": {"number": 1}},
        "pull_request_review_comment": {"pull_request": {"number": 1}},
        "issue_comment": {"issue": {"number": 1, "pull_request": {"url": "x"}}},
        "check_run": {"check_run": {"head_sha": "f" * 40, "pull_requests": [{"number": 1}]}},
        "check_suite": {"check_suite": {"head_sha": head, "pull_requests": []}},
        "status": {"sha": head},
        "push": {"ref": "refs/heads/task-1"},
    }[event]


@pytest.mark.parametrize(
    "event",
    [
        *("pull_request", "pull_request_review", "pull_request_review_comment", "issue_comment"),
        *("check_run", "check_suite", "status", "push"),
    ],
)
async def test_a_delivery_refreshes_the_pull_request(receiver: WebhookReceiver, event: str) -> None:
    harness = receiver.harness
    harness.github.add_activity(1, title="Renamed on GitHub")
    assert await receiver.send(event, **create_payload(event, harness)) == DeliveryResult.TAKEN
    assert await receiver.is_marked()
    await receiver.settle()
    (row,) = await harness.list_rows()
    assert row.title == "Renamed on GitHub" and row.looked_at is not None
    assert receiver.pushed == ([receiver.project.id] if event == "push" else [])


async def test_the_contents_of_a_delivery_are_not_trusted(receiver: WebhookReceiver) -> None:
    false_claims = {"number": 1, "merged": True, "state": "closed", "title": "Lies", "head": {"sha": "f" * 40}}
    await receiver.send("pull_request", action="closed", pull_request=false_claims)
    await receiver.settle()
    (row,) = await receiver.harness.list_rows()
    assert (row.state, row.title) == ("open", "feat: one")


async def test_a_burst_of_deliveries_causes_one_refresh(receiver: WebhookReceiver) -> None:
    asked = receiver.harness.github.request_count
    for action in ("opened", "labeled", "edited", "synchronize", "assigned"):
        assert await receiver.send("pull_request", action=action, pull_request={"number": 1}) == DeliveryResult.TAKEN
    await receiver.settle()
    assert receiver.harness.github.request_count == asked + 1


async def test_unrelated_deliveries_mark_nothing(receiver: WebhookReceiver) -> None:
    for payload in ({"number": 2}, {"number": "1"}, {"number": True}, {"number": 1 << 70}, {}, None, [1]):
        assert await receiver.send("pull_request", pull_request=payload) == DeliveryResult.TAKEN
    assert not await receiver.is_marked()
    for event, more in (("issue_comment", {"issue": {"number": 1}}), ("star", {}), ("deployment", {})):
        assert await receiver.send(event, **more) == DeliveryResult.IGNORED
    assert await receiver.send("ping") == DeliveryResult.TAKEN
    assert not await receiver.is_marked()


async def test_the_same_delivery_is_processed_once(receiver: WebhookReceiver) -> None:
    payload = {"pull_request": {"number": 1}}
    assert await receiver.send("pull_request", delivery="one", **payload) == DeliveryResult.TAKEN
    await receiver.settle()
    asked = receiver.harness.github.request_count
    assert await receiver.send("pull_request", delivery="one", **payload) == DeliveryResult.KNOWN
    await receiver.settle()
    assert receiver.harness.github.request_count == asked and not await receiver.is_marked()


async def test_a_replay_under_another_id_is_processed_once(receiver: WebhookReceiver) -> None:
    payload = {"pull_request": {"number": 1}}
    assert await receiver.send("pull_request", delivery="one", **payload) == DeliveryResult.TAKEN
    await receiver.settle()
    asked = receiver.harness.github.request_count
    assert await receiver.send("pull_request", delivery="two", **payload) == DeliveryResult.KNOWN
    assert await receiver.send("pull_request", delivery="one", more=1, **payload) == DeliveryResult.KNOWN
    await receiver.settle()
    assert receiver.harness.github.request_count == asked and not await receiver.is_marked()
    # the same payload of another event is not a replay
    assert await receiver.send("pull_request_review", delivery="three", **payload) == DeliveryResult.TAKEN


async def test_a_crash_after_acceptance_leaves_the_pull_request_marked(receiver: WebhookReceiver) -> None:
    await receiver.send("pull_request", pull_request={"number": 1})
    await receiver.hooks.close()
    assert await receiver.is_marked()  # the poller refreshes it after the next start


async def test_an_unreachable_forge_leaves_the_pull_request_marked(receiver: WebhookReceiver) -> None:
    receiver.harness.access.refused = ForgeUnreachableError()
    assert await receiver.send("pull_request", pull_request={"number": 1}) == DeliveryResult.TAKEN
    await receiver.settle()
    assert await receiver.is_marked()


async def test_a_missing_or_malformed_signature_is_rejected(receiver: WebhookReceiver) -> None:
    body = json.dumps({"repository": REPOSITORY}).encode()
    for signature in ("", "sha256=", "sha1=" + "0" * 40, "sha256=" + "0" * 64, "sha256=" + "é" * 64):
        with pytest.raises(WebhookSignatureError) as refused:
            await receiver.send_raw("ping", body, **{"X-Hub-Signature-256": signature})
        assert (refused.value.status, refused.value.code) == (401, "webhook_signature")


async def test_a_signature_of_another_body_or_secret_is_rejected(receiver: WebhookReceiver) -> None:
    with pytest.raises(WebhookSignatureError):
        await receiver.send("ping", secret="another-secret-as-long")
    body = json.dumps({"repository": REPOSITORY}).encode()
    signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    with pytest.raises(WebhookSignatureError):
        await receiver.send_raw("ping", body + b" ", **{"X-Hub-Signature-256": f"sha256={signed}"})


async def test_a_missing_secret_and_an_unknown_repository_get_the_same_response(receiver: WebhookReceiver) -> None:
    responses = []
    for repository in (
        {**REPOSITORY, "full_name": "acme/other"},
        {**REPOSITORY, "html_url": "https://example.org/acme/website", "url": "https://example.org/api"},
        {**REPOSITORY, "full_name": "acme/website2"},
        {**REPOSITORY, "full_name": "cme/website"},
    ):
        with pytest.raises(WebhookUnconfiguredError) as refused:
            await receiver.send("ping", repository=repository)
        responses.append((refused.value.status, refused.value.code, refused.value.message))
    await receiver.harness.world.credentials.remove(receiver.harness.owner, receiver.project.id, "webhook_secret")
    with pytest.raises(WebhookUnconfiguredError) as refused:
        await receiver.send("ping")
    responses.append((refused.value.status, refused.value.code, refused.value.message))
    assert len(set(responses)) == 1 and responses[0][:2] == (403, "webhook_unconfigured")


async def test_each_project_has_its_own_secret(receiver: WebhookReceiver) -> None:
    harness = receiver.harness
    twin = await harness.world.projects.create(harness.owner, "twin", repository="git@github.com:acme/website.git")
    await put_secret(harness, twin.id, "the-secret-of-the-twin")
    assert await receiver.send("push", secret="the-secret-of-the-twin", ref="refs/heads/main") == DeliveryResult.TAKEN
    assert await receiver.send("push", ref="refs/heads/main") == DeliveryResult.TAKEN
    await receiver.settle()
    assert receiver.pushed == [twin.id, receiver.project.id]
    await put_secret(harness, twin.id)
    await receiver.send("push", ref="refs/heads/next")
    await receiver.settle()
    assert sorted(receiver.pushed[2:]) == sorted((twin.id, receiver.project.id))
    await harness.world.projects.update(harness.owner, twin.id, archived=True)
    with pytest.raises(WebhookSignatureError):
        await receiver.send("ping", secret="the-secret-of-the-twin")


async def test_an_enterprise_server_is_matched_by_its_api_url(receiver: WebhookReceiver) -> None:
    harness = receiver.harness
    await harness.world.projects.update(
        harness.owner, receiver.project.id, repository="ssh://git@git.example.org:2222/acme/website"
    )
    await harness.configure(apiUrl="https://hub.example.org/api/v3")
    urls = {
        "html_url": "https://hub.example.org/acme/website",
        "url": "https://hub.example.org/api/v3/repos/acme/website",
    }
    assert await receiver.send("ping", repository={**REPOSITORY, **urls}) == DeliveryResult.TAKEN
    with pytest.raises(WebhookUnconfiguredError):
        await receiver.send("ping")


async def test_form_encoded_deliveries_are_accepted(receiver: WebhookReceiver) -> None:
    body = urlencode({"payload": json.dumps({"repository": REPOSITORY, "ref": "refs/heads/main"})}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert await receiver.send_raw("push", body, **form) == DeliveryResult.TAKEN
    with pytest.raises(InvalidInputError):
        await receiver.send_raw("push", b"payload", **form)


async def test_malformed_deliveries_are_rejected(receiver: WebhookReceiver) -> None:
    named = b'"full_name":"acme/website"'
    odd = (b"", b"{", b"\xff", b"[]", b"7", b'"x"', b"[" * 100_000)
    for body in (
        *odd,
        *(start + named for start in odd),
        b"[{%s}]" % named,
        b"{%s}" % named,
        b'{"repository":7,%s}' % named,
    ):
        with pytest.raises(InvalidInputError) as refused:
            await receiver.send_raw("ping", body)
        assert refused.value.status == 400
    whole = json.dumps({"repository": REPOSITORY}).encode()
    for headers in ({"X-GitHub-Event": ""}, {"X-GitHub-Delivery": ""}, {"X-GitHub-Delivery": "x" * 101}):
        with pytest.raises(InvalidInputError, match="X-GitHub-Delivery"):
            await receiver.send_raw("ping", whole, **headers)


async def test_an_invalid_repository_name_is_rejected(receiver: WebhookReceiver) -> None:
    for name in (r"acme/\ud800x", r"acme/\u0000x", "acme/" + "x" * 300, "", "a", 7, None):
        body = json.dumps({"repository": {**REPOSITORY, "full_name": name}}).replace("\\\\", "\\").encode()
        # a known name beside the invalid one
        with_known_name = b'{"sender":{"full_name":"acme/website"},' + body[1:]
        for secret in (SECRET, "a-secret-of-somebody-else"):
            with pytest.raises(InvalidInputError, match="names no repository"):
                await receiver.send_raw("ping", body, secret=secret)
            with pytest.raises(InvalidInputError if secret == SECRET else WebhookSignatureError):
                await receiver.send_raw("ping", with_known_name, secret=secret)


async def test_names_that_cannot_be_stored_are_rejected(receiver: WebhookReceiver) -> None:
    start = json.dumps({"repository": REPOSITORY})[:-1].encode()
    for odd in (rb"\ud800", rb"\u0000"):
        for event, rest in (
            ("push", b'"ref":"refs/heads/x%s"' % odd),
            ("status", b'"sha":"x%s"' % odd),
            ("check_run", b'"check_run":{"head_sha":"%s"}' % odd),
        ):
            with pytest.raises(InvalidInputError) as refused:
                await receiver.send_raw(event, start + b"," + rest + b"}")
            assert refused.value.status == 400
    # branch names can be that long
    assert await receiver.send("push", ref="refs/heads/" + "x" * 251) == DeliveryResult.TAKEN
    assert not await receiver.is_marked()


async def test_unsigned_bodies_are_not_parsed(receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed_sizes: list[int] = []

    def parse_and_count(content_type: str, body: bytes) -> Payload:
        parsed_sizes.append(len(body))
        return parse_payload(content_type, body)

    monkeypatch.setattr(webhooks, "parse_payload", parse_and_count)
    body = json.dumps({"repository": REPOSITORY, "pad": [[]] * 90_000}).encode()
    assert LARGE_BYTES < len(body) < MAX_BYTES
    unknown = body.replace(b"Acme/Website", b"Nobody/Knows")
    wrong = [receiver.send_raw("ping", body, secret="a-secret-of-somebody-else") for _ in range(20)]
    answers = await asyncio.gather(*wrong, receiver.send_raw("ping", unknown, secret="x"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [WebhookSignatureError] * 20 + [WebhookUnconfiguredError]
    assert parsed_sizes == []
    assert await receiver.send_raw("ping", body) == DeliveryResult.TAKEN
    assert parsed_sizes == [len(body)]


async def test_large_deliveries_are_processed_two_at_a_time(
    receiver: WebhookReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, most, lock, two = 0, 0, threading.Lock(), threading.Barrier(2)

    def find_slowly(content_type: str, body: bytes) -> frozenset[str]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        two.wait(60)
        time.sleep(0.02)  # time for a third one, which must not start
        with lock:
            running -= 1
        return find_repository_names(content_type, body)

    monkeypatch.setattr(webhooks, "find_repository_names", find_slowly)
    bodies = [json.dumps({"repository": REPOSITORY, "pad": f"{n}" * LARGE_BYTES}).encode() for n in range(6)]
    assert set(await asyncio.gather(*(receiver.send_raw("ping", body) for body in bodies))) == {DeliveryResult.TAKEN}
    assert most == MAX_LARGE_AT_ONCE


def test_repository_names_are_found_without_parsing() -> None:
    body = json.dumps(
        {
            "commits": [{"added": [f"{n}/full_name", 'full_name":"evil/one"']} for n in range(1000)],
            "repository": REPOSITORY,
            "fork": {"full_name": "Other/One"},
        }
    )
    found = {"acme/website", "other/one"}
    assert find_repository_names("application/json", body.encode()) == found
    assert find_repository_names("application/json", body.replace(": ", ":").encode()) == found
    assert find_repository_names("application/x-www-form-urlencoded", urlencode({"payload": body}).encode()) == found
    many = ",".join(f'{{"full_name":"a/{n}"}}' for n in range(100_000)).encode()
    assert len(find_repository_names("application/json", many)) == MAX_REPOSITORIES


async def test_a_delivery_over_the_size_limit_is_rejected(receiver: WebhookReceiver) -> None:
    with pytest.raises(TooMuchError) as refused:
        await receiver.send_raw("ping", b" " * (MAX_BYTES + 1))
    assert refused.value.status == 413


async def test_old_deliveries_are_deleted(receiver: WebhookReceiver) -> None:
    database = receiver.harness.world.database
    old = get_time(receiver.harness.world.clock) - DELIVERY_RETENTION - timedelta(seconds=1)
    async with database.transaction() as tx:
        tx.add(Delivery(project_id=receiver.project.id, delivery="old", event="ping", received_at=old))
    await receiver.send("ping", delivery="new")
    async with database.reading() as session:
        stored = list(await session.scalars(select(Delivery.delivery).order_by(Delivery.delivery)))
    assert stored[0] == "new" and len(stored) == 2 and stored[1].startswith("sha256:")


async def test_a_reopened_pull_request_is_noticed(receiver: WebhookReceiver) -> None:
    harness = receiver.harness
    harness.github.add_activity(1, state=PullState.CLOSED)
    await harness.pulls.refresh((await harness.list_rows())[0])
    harness.github.add_activity(1, state=PullState.OPEN)
    await receiver.send("pull_request", action="reopened", pull_request={"number": 1})
    await receiver.settle()
    assert (await harness.list_rows())[0].state == "open" and (await harness.list_event_kinds())[-1] == "reopened"


async def test_pull_requests_of_other_projects_are_not_marked(receiver: WebhookReceiver) -> None:
    harness = receiver.harness
    other = await harness.world.projects.create(harness.owner, "other", repository="https://github.com/acme/other")
    (row,) = await harness.list_rows()
    async with harness.world.database.transaction() as tx:
        stored = await tx.session.get(PullRequest, row.id)
        assert stored is not None
        stored.project_id = other.id
    await receiver.send("pull_request", pull_request={"number": 1})
    assert not await receiver.is_marked()
    async with harness.world.database.reading() as session:
        assert set(await session.scalars(select(Delivery.project_id))) == {receiver.project.id}
