"""Deliveries of GitHub: their signature is their login, each acts once, and nothing of them is believed."""

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
    KEPT,
    LARGE,
    LARGE_AT_ONCE,
    SETTLE_S,
    Taken,
    Webhooks,
    WebhookSignatureError,
    WebhookUnconfiguredError,
)
from sandyard.platform.domain.repositories.errors import TooMuchError
from tests.unit.platform.domain.forge.desk import Desk

SECRET = "a-secret-that-nobody-guesses"
REPOSITORY = {
    "full_name": "Acme/Website",
    "html_url": "https://github.com/Acme/Website",
    "url": "https://api.github.com/repos/Acme/Website",
}


class Gate:
    """Where deliveries come in."""

    def __init__(self, desk: Desk, project: Project) -> None:
        self.desk, self.project = desk, project
        self.pushed: list[str] = []
        self.hooks = Webhooks(
            desk.world.database, desk.world.credentials, desk.pulls, desk.world.clock, on_push=self._on_push
        )
        self._number = 0

    async def _on_push(self, project: Project) -> None:
        self.pushed.append(project.id)

    async def send(self, event: str, *, secret: str = SECRET, delivery: str | None = None, **payload: Any) -> Taken:
        body = json.dumps({"repository": REPOSITORY, **payload}).encode()
        return await self.raw(event, body, secret=secret, delivery=delivery)

    async def raw(
        self, event: str, body: bytes, *, secret: str = SECRET, delivery: str | None = None, **headers: str
    ) -> Taken:
        self._number += 1
        made = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        sent = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": delivery or f"delivery-{self._number}",
            "X-Hub-Signature-256": f"sha256={made}",
            "Content-Type": "application/json",
        }
        return await self.hooks.take(sent | headers, body)

    async def marked(self) -> bool:
        (row,) = await self.desk.rows()
        return row.looked_at is None

    async def settle(self) -> None:
        await self.desk.world.clock.advance(SETTLE_S)
        assert await self.hooks._tasks.wait(20)


@pytest.fixture
async def gate(desk: Desk) -> AsyncIterator[Gate]:
    """A project on github.com with a webhook's secret, and its pull request, just looked at."""
    desk.commit("feat: one")
    row, _ = await desk.open()
    await desk.pulls.refresh(row)
    project = await desk.world.projects.update(
        desk.owner, desk.project.id, repository="https://github.com/acme/website.git"
    )
    await put(desk, project.id)
    made = Gate(desk, project)
    yield made
    await made.hooks.close()


async def put(desk: Desk, project_id: str, secret: str = SECRET) -> None:
    await desk.world.credentials.put(desk.owner, project_id, webhook_secret=Secret(secret))


def about_pull(event: str, desk: Desk) -> dict[str, Any]:
    head = desk.hub.pulls[1].head_commit
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
async def test_what_is_told_is_asked(gate: Gate, event: str) -> None:
    desk = gate.desk
    desk.hub.say(1, title="Renamed on GitHub")
    assert await gate.send(event, **about_pull(event, desk)) == Taken.TAKEN
    assert await gate.marked()
    await gate.settle()
    (row,) = await desk.rows()
    assert row.title == "Renamed on GitHub" and row.looked_at is not None
    assert gate.pushed == ([gate.project.id] if event == "push" else [])


async def test_nothing_that_a_delivery_says_is_believed(gate: Gate) -> None:
    lie = {"number": 1, "merged": True, "state": "closed", "title": "Lies", "head": {"sha": "f" * 40}}
    await gate.send("pull_request", action="closed", pull_request=lie)
    await gate.settle()
    (row,) = await gate.desk.rows()
    assert (row.state, row.title) == ("open", "feat: one")


async def test_a_burst_is_asked_about_once(gate: Gate) -> None:
    asked = gate.desk.hub.asked
    for action in ("opened", "labeled", "edited", "synchronize", "assigned"):
        assert await gate.send("pull_request", action=action, pull_request={"number": 1}) == Taken.TAKEN
    await gate.settle()
    assert gate.desk.hub.asked == asked + 1


async def test_others_are_left_alone(gate: Gate) -> None:
    for payload in ({"number": 2}, {"number": "1"}, {"number": True}, {"number": 1 << 70}, {}, None, [1]):
        assert await gate.send("pull_request", pull_request=payload) == Taken.TAKEN
    assert not await gate.marked()
    for event, more in (("issue_comment", {"issue": {"number": 1}}), ("star", {}), ("deployment", {})):
        assert await gate.send(event, **more) == Taken.IGNORED
    assert await gate.send("ping") == Taken.TAKEN
    assert not await gate.marked()


async def test_the_same_delivery_acts_once(gate: Gate) -> None:
    told = {"pull_request": {"number": 1}}
    assert await gate.send("pull_request", delivery="one", **told) == Taken.TAKEN
    await gate.settle()
    asked = gate.desk.hub.asked
    assert await gate.send("pull_request", delivery="one", **told) == Taken.KNOWN
    await gate.settle()
    assert gate.desk.hub.asked == asked and not await gate.marked()


async def test_a_replay_under_another_number_acts_once(gate: Gate) -> None:
    told = {"pull_request": {"number": 1}}
    assert await gate.send("pull_request", delivery="one", **told) == Taken.TAKEN
    await gate.settle()
    asked = gate.desk.hub.asked
    assert await gate.send("pull_request", delivery="two", **told) == Taken.KNOWN
    assert await gate.send("pull_request", delivery="one", more=1, **told) == Taken.KNOWN
    await gate.settle()
    assert gate.desk.hub.asked == asked and not await gate.marked()
    assert (
        await gate.send("pull_request_review", delivery="three", **told) == Taken.TAKEN
    )  # another event says something else


async def test_a_crash_after_it_was_taken_leaves_a_mark(gate: Gate) -> None:
    await gate.send("pull_request", pull_request={"number": 1})
    await gate.hooks.close()
    assert await gate.marked()  # the follower looks at it after the next start


async def test_a_forge_that_does_not_answer_leaves_the_mark(gate: Gate) -> None:
    gate.desk.doors.refused = ForgeUnreachableError()
    assert await gate.send("pull_request", pull_request={"number": 1}) == Taken.TAKEN
    await gate.settle()
    assert await gate.marked()


async def test_a_signature_that_is_missing_or_wrong(gate: Gate) -> None:
    body = json.dumps({"repository": REPOSITORY}).encode()
    for signature in ("", "sha256=", "sha1=" + "0" * 40, "sha256=" + "0" * 64, "sha256=" + "é" * 64):
        with pytest.raises(WebhookSignatureError) as refused:
            await gate.raw("ping", body, **{"X-Hub-Signature-256": signature})
        assert (refused.value.status, refused.value.code) == (401, "webhook_signature")


async def test_a_signature_of_other_words_or_another_secret(gate: Gate) -> None:
    with pytest.raises(WebhookSignatureError):
        await gate.send("ping", secret="another-secret-as-long")
    body = json.dumps({"repository": REPOSITORY}).encode()
    signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    with pytest.raises(WebhookSignatureError):
        await gate.raw("ping", body + b" ", **{"X-Hub-Signature-256": f"sha256={signed}"})


async def test_no_secret_and_no_such_repository_are_answered_alike(gate: Gate) -> None:
    answers = []
    for repository in (
        {**REPOSITORY, "full_name": "acme/other"},
        {**REPOSITORY, "html_url": "https://example.org/acme/website", "url": "https://example.org/api"},
        {**REPOSITORY, "full_name": "acme/website2"},
        {**REPOSITORY, "full_name": "cme/website"},
    ):
        with pytest.raises(WebhookUnconfiguredError) as refused:
            await gate.send("ping", repository=repository)
        answers.append((refused.value.status, refused.value.code, refused.value.message))
    await gate.desk.world.credentials.remove(gate.desk.owner, gate.project.id, "webhook_secret")
    with pytest.raises(WebhookUnconfiguredError) as refused:
        await gate.send("ping")
    answers.append((refused.value.status, refused.value.code, refused.value.message))
    assert len(set(answers)) == 1 and answers[0][:2] == (403, "webhook_unconfigured")


async def test_each_project_has_its_own_secret(gate: Gate) -> None:
    desk = gate.desk
    twin = await desk.world.projects.create(desk.owner, "twin", repository="git@github.com:acme/website.git")
    await put(desk, twin.id, "the-secret-of-the-twin")
    assert await gate.send("push", secret="the-secret-of-the-twin", ref="refs/heads/main") == Taken.TAKEN
    assert await gate.send("push", ref="refs/heads/main") == Taken.TAKEN
    await gate.settle()
    assert gate.pushed == [twin.id, gate.project.id]
    await put(desk, twin.id)
    await gate.send("push", ref="refs/heads/next")
    await gate.settle()
    assert sorted(gate.pushed[2:]) == sorted((twin.id, gate.project.id))
    await desk.world.projects.update(desk.owner, twin.id, archived=True)
    with pytest.raises(WebhookSignatureError):
        await gate.send("ping", secret="the-secret-of-the-twin")


async def test_an_enterprise_server_is_known_by_its_api(gate: Gate) -> None:
    desk = gate.desk
    await desk.world.projects.update(
        desk.owner, gate.project.id, repository="ssh://git@git.example.org:2222/acme/website"
    )
    await desk.settings(apiUrl="https://hub.example.org/api/v3")
    urls = {
        "html_url": "https://hub.example.org/acme/website",
        "url": "https://hub.example.org/api/v3/repos/acme/website",
    }
    assert await gate.send("ping", repository={**REPOSITORY, **urls}) == Taken.TAKEN
    with pytest.raises(WebhookUnconfiguredError):
        await gate.send("ping")


async def test_the_other_form_that_github_can_send(gate: Gate) -> None:
    body = urlencode({"payload": json.dumps({"repository": REPOSITORY, "ref": "refs/heads/main"})}).encode()
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    assert await gate.raw("push", body, **form) == Taken.TAKEN
    with pytest.raises(InvalidInputError):
        await gate.raw("push", b"payload", **form)


async def test_what_is_no_delivery(gate: Gate) -> None:
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
            await gate.raw("ping", body)
        assert refused.value.status == 400
    whole = json.dumps({"repository": REPOSITORY}).encode()
    for headers in ({"X-GitHub-Event": ""}, {"X-GitHub-Delivery": ""}, {"X-GitHub-Delivery": "x" * 101}):
        with pytest.raises(InvalidInputError, match="X-GitHub-Delivery"):
            await gate.raw("ping", whole, **headers)


async def test_a_repository_that_cannot_be_one(gate: Gate) -> None:
    for name in (r"acme/\ud800x", r"acme/\u0000x", "acme/" + "x" * 300, "", "a", 7, None):
        body = json.dumps({"repository": {**REPOSITORY, "full_name": name}}).replace("\\\\", "\\").encode()
        within = (
            b'{"sender":{"full_name":"acme/website"},' + body[1:]
        )  # a name that is known beside the one that is odd
        for secret in (SECRET, "a-secret-of-somebody-else"):
            with pytest.raises(InvalidInputError, match="names no repository"):
                await gate.raw("ping", body, secret=secret)
            with pytest.raises(InvalidInputError if secret == SECRET else WebhookSignatureError):
                await gate.raw("ping", within, secret=secret)


async def test_names_that_cannot_be_looked_for(gate: Gate) -> None:
    start = json.dumps({"repository": REPOSITORY})[:-1].encode()
    for odd in (rb"\ud800", rb"\u0000"):
        for event, rest in (
            ("push", b'"ref":"refs/heads/x%s"' % odd),
            ("status", b'"sha":"x%s"' % odd),
            ("check_run", b'"check_run":{"head_sha":"%s"}' % odd),
        ):
            with pytest.raises(InvalidInputError) as refused:
                await gate.raw(event, start + b"," + rest + b"}")
            assert refused.value.status == 400
    assert await gate.send("push", ref="refs/heads/" + "x" * 251) == Taken.TAKEN  # there are such branches
    assert not await gate.marked()


async def test_nothing_is_built_of_what_is_not_signed(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(content_type: str, body: bytes) -> Payload:
        read.append(len(body))
        return parse_payload(content_type, body)

    monkeypatch.setattr(webhooks, "parse_payload", counted)
    body = json.dumps({"repository": REPOSITORY, "pad": [[]] * 90_000}).encode()
    assert LARGE < len(body) < MAX_BYTES
    unknown = body.replace(b"Acme/Website", b"Nobody/Knows")
    wrong = [gate.raw("ping", body, secret="a-secret-of-somebody-else") for _ in range(20)]
    answers = await asyncio.gather(*wrong, gate.raw("ping", unknown, secret="x"), return_exceptions=True)
    assert [type(answer) for answer in answers] == [WebhookSignatureError] * 20 + [WebhookUnconfiguredError]
    assert read == []
    assert await gate.raw("ping", body) == Taken.TAKEN
    assert read == [len(body)]


async def test_large_ones_are_worked_on_two_at_a_time(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    running, most, lock, two = 0, 0, threading.Lock(), threading.Barrier(2)

    def slow(content_type: str, body: bytes) -> frozenset[str]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        two.wait(60)
        time.sleep(0.02)  # for one more that should not be here
        with lock:
            running -= 1
        return find_repository_names(content_type, body)

    monkeypatch.setattr(webhooks, "find_repository_names", slow)
    bodies = [json.dumps({"repository": REPOSITORY, "pad": f"{n}" * LARGE}).encode() for n in range(6)]
    assert set(await asyncio.gather(*(gate.raw("ping", body) for body in bodies))) == {Taken.TAKEN}
    assert most == LARGE_AT_ONCE


def test_names_are_found_without_reading_it() -> None:
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


async def test_too_large(gate: Gate) -> None:
    with pytest.raises(TooMuchError) as refused:
        await gate.raw("ping", b" " * (MAX_BYTES + 1))
    assert refused.value.status == 413


async def test_old_deliveries_are_forgotten(gate: Gate) -> None:
    database = gate.desk.world.database
    old = get_time(gate.desk.world.clock) - KEPT - timedelta(seconds=1)
    async with database.transaction() as tx:
        tx.add(Delivery(project_id=gate.project.id, delivery="old", event="ping", received_at=old))
    await gate.send("ping", delivery="new")
    async with database.reading() as session:
        kept = list(await session.scalars(select(Delivery.delivery).order_by(Delivery.delivery)))
    assert kept[0] == "new" and len(kept) == 2 and kept[1].startswith("sha256:")


async def test_a_closed_one_may_be_opened_again(gate: Gate) -> None:
    desk = gate.desk
    desk.hub.say(1, state=PullState.CLOSED)
    await desk.pulls.refresh((await desk.rows())[0])
    desk.hub.say(1, state=PullState.OPEN)
    await gate.send("pull_request", action="reopened", pull_request={"number": 1})
    await gate.settle()
    assert (await desk.rows())[0].state == "open" and (await desk.kinds())[-1] == "reopened"


async def test_pull_requests_of_other_projects_are_not_marked(gate: Gate) -> None:
    desk = gate.desk
    other = await desk.world.projects.create(desk.owner, "other", repository="https://github.com/acme/other")
    (row,) = await desk.rows()
    async with desk.world.database.transaction() as tx:
        known = await tx.session.get(PullRequest, row.id)
        assert known is not None
        known.project_id = other.id
    await gate.send("pull_request", pull_request={"number": 1})
    assert not await gate.marked()
    async with desk.world.database.reading() as session:
        assert set(await session.scalars(select(Delivery.project_id))) == {gate.project.id}
