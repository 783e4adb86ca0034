"""Event streams over HTTP, from a real server with real users and a real feed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import FastAPI

from sandyard.kit.clock import SystemClock
from sandyard.kit.listen import listen
from sandyard.kit.server import Server
from sandyard.platform.api import events as module
from sandyard.platform.api import login, problems
from sandyard.platform.api.large_responses import LargeResponseMiddleware
from sandyard.platform.db.database import Database
from sandyard.platform.db.models import Setting
from sandyard.platform.domain.events import Feed
from sandyard.platform.domain.events import feed as feeds
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.service import Users
from sandyard.platform.settings import PlatformSettings

DEADLINE = 30


@dataclass
class EventsHarness:
    """A platform with only users and events."""

    database: Database
    feed: Feed
    users: Users
    url: str
    server: Server
    serving: asyncio.Task[None]
    admin: Principal
    token: str
    http: httpx.AsyncClient = field(init=False)

    async def emit(self, kind: str = "session.created", **ids: Any) -> int:
        async with self.database.transaction() as tx:
            tx.emit(kind, **ids)
        return tx.events[0].seq

    def open(self, token: str | None = None, **params: Any) -> contextlib.AbstractAsyncContextManager[Reader]:
        return reader(self.http, token or self.token, params)


@dataclass
class Reader:
    response: httpx.Response
    lines: AsyncIterator[str]

    async def block(self) -> list[str]:
        """Return the lines up to the next empty one, or none at the end of the stream."""
        found: list[str] = []
        async with asyncio.timeout(DEADLINE):
            async for line in self.lines:
                if not line:
                    return found
                found.append(line)
        return found

    async def event(self) -> dict[str, Any]:
        while True:
            block = await self.block()
            assert block, "the stream ended"
            if block[0].startswith("id: "):
                event = json.loads(block[2].removeprefix("data: "))
                assert block[0] == f"id: {event['seq']}"
                assert block[1] == f"event: {event['kind']}"
                return event


@contextlib.asynccontextmanager
async def reader(http: httpx.AsyncClient, token: str, params: dict[str, Any]) -> AsyncIterator[Reader]:
    headers = {"Authorization": f"Bearer {token}"} | params.pop("headers", {})
    async with http.stream("GET", "/events", params=params, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        yield Reader(response, response.aiter_lines())


@pytest.fixture
async def harness(database: Database, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EventsHarness]:
    monkeypatch.setattr(module, "RECHECK_SECONDS", 0.2)
    settings, clock = PlatformSettings(heartbeat_s=0.2), SystemClock()
    users, feed = Users(settings, database, clock), Feed(database, backlog=settings.reader_backlog)
    first = await users.bootstrap()
    assert first is not None
    token = first.value.reveal()
    admin = await users.authenticate_token(token)
    assert admin is not None
    await feed.open()
    app = FastAPI()
    app.add_middleware(LargeResponseMiddleware)
    problems.install(app)
    app.router.routes.extend([*module.router.routes, *login.router.routes])
    app.state.services = SimpleNamespace(settings=settings, clock=clock, database=database, events=feed, users=users)
    listener = listen("127.0.0.1", 0)
    server = Server(uvicorn.Config(app, lifespan="off", log_config=None, timeout_graceful_shutdown=DEADLINE))
    serving = asyncio.create_task(server.serve([listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    made = EventsHarness(database, feed, users, url, server, serving, admin, token)
    async with httpx.AsyncClient(base_url=f"{url}/api/v1", timeout=DEADLINE) as made.http:
        yield made
    feed.end()
    server.should_exit = True
    await serving
    await feed.close()
    await users.close()


@pytest.mark.both_databases
async def test_streams_events(harness: EventsHarness) -> None:
    async with harness.open() as stream:
        headers = stream.response.headers
        assert headers["content-type"].startswith("text/event-stream")
        assert headers["x-accel-buffering"] == "no"
        assert await stream.block() == ["retry: 2000"]
        sent = await harness.emit("sandbox.paused", owner_id=harness.admin.user_id, sandbox_id="sbx_1", reason="idle")
        event = await stream.event()
        assert event.pop("at").endswith("Z")
        assert event == {
            "seq": sent, "kind": "sandbox.paused", "ownerId": harness.admin.user_id, "projectId": None, "taskId": None,
            "sessionId": None, "sandboxId": "sbx_1", "data": {"reason": "idle"},
        }  # fmt: skip
        assert await stream.block() == [":"], "sends a heartbeat while idle"


async def test_resumes_after_last_event(harness: EventsHarness) -> None:
    sent = [await harness.emit() for _ in range(4)]
    for given in ({"after": sent[1]}, {"after": 0, "headers": {"Last-Event-ID": str(sent[1])}}):
        async with harness.open(**given) as stream:
            assert [(await stream.event())["seq"] for _ in range(2)] == sent[2:]
    async with harness.open(headers={"Last-Event-ID": ""}) as stream:
        new = await harness.emit()
        assert (await stream.event())["seq"] == new


async def test_last_event_of_me_misses_nothing(harness: EventsHarness) -> None:
    async with harness.open() as stream:
        before = await harness.emit()
        assert (await stream.event())["seq"] == before
    me = (await harness.http.get("/me", headers={"Authorization": f"Bearer {harness.token}"})).json()
    assert me["lastEvent"] == before
    sent = [await harness.emit() for _ in range(2)]
    async with harness.open(headers={"Last-Event-ID": str(me["lastEvent"])}) as stream:
        assert [(await stream.event())["seq"] for _ in range(2)] == sent


@pytest.mark.parametrize("text", ["x", "-1", "1.5", "9" * 19, "9" * 5000, "0x10", "²"])
async def test_rejects_bad_number(harness: EventsHarness, text: str) -> None:
    headers = {"Authorization": f"Bearer {harness.token}"}
    raw = {**headers, "Last-Event-ID": text.encode()}
    answers = [
        await harness.http.get("/events", headers=raw),  # type: ignore[arg-type]
        await harness.http.get("/events", headers=headers, params={"after": text}),
        await harness.http.get("/events/history", headers=headers, params={"after": text}),
    ]
    for answer in answers:
        assert answer.status_code == 400
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == "invalid_argument"


@pytest.mark.both_databases
async def test_filters_and_visibility(harness: EventsHarness) -> None:
    ada = await harness.users.create(harness.admin, "ada", "member")
    principal = Principal(ada.id, ada.name, ada.role, "token:x")
    token = (await harness.users.create_token(principal, "mine")).value.reveal()
    async with harness.open(sessionId="ses_2") as admin, harness.open(token) as mine:
        for session in ("ses_1", "ses_2"):
            await harness.emit(session_id=session)
        own = await harness.emit(owner_id=ada.id)
        assert (await admin.event())["sessionId"] == "ses_2"
        assert (await mine.event())["seq"] == own
    answer = await harness.http.get("/events/history", headers={"Authorization": f"Bearer {token}"})
    seen = answer.json()["items"]
    assert {event["ownerId"] for event in seen} == {ada.id}
    assert seen[-1]["seq"] == own


async def test_requires_authentication(harness: EventsHarness) -> None:
    for path in ("/events", "/events/history"):
        assert (await harness.http.get(path)).status_code == 401
        assert (await harness.http.get(path, headers={"Authorization": "Bearer sy_wrong"})).status_code == 401
    ticket = (await harness.users.create_ticket(harness.admin)).value.reveal()
    async with harness.http.stream("GET", "/events", params={"ticket": ticket}) as response:
        assert response.status_code == 200
    assert (await harness.http.get("/events", params={"ticket": ticket})).status_code == 401


async def test_sends_stream_in_pieces(harness: EventsHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each piece is kept until its reader has taken it."""
    monkeypatch.setattr(module, "EVENTS_PER_CHUNK", 3)
    monkeypatch.setattr(feeds, "CATCH_UP_PAGE", 5)
    emitted = [await harness.emit() for _ in range(8)]
    services = SimpleNamespace(settings=PlatformSettings(), clock=SystemClock(), database=harness.database)
    request: Any = SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(services=services)))
    behind = Feed(harness.database)
    await behind.open()  # it has none of these events in memory
    seen: list[list[int]] = []
    subscription = await behind.subscribe(harness.admin, after=emitted[0] - 1)
    async for piece in module.stream_frames(request, harness.admin, subscription):
        if found := [int(number) for number in re.findall(rb"^id: ([0-9]+)$", piece, re.MULTILINE)]:
            seen.append(found)
            if found[-1] == emitted[-1]:
                subscription.end()
    await behind.close()
    assert [len(item) for item in seen] == [3, 2, 3]
    assert [number for item in seen for number in item] == emitted


@pytest.mark.both_databases
async def test_pages_through_history(harness: EventsHarness) -> None:
    sent = [await harness.emit(number=number, session_id="ses_1") for number in range(5)]
    seen, cursor, pages = [], None, 0
    while cursor or not pages:
        params = {"limit": 2, "sessionId": "ses_1"} | ({"cursor": cursor} if cursor else {})
        answer = await harness.http.get(
            "/events/history", headers={"Authorization": f"Bearer {harness.token}"}, params=params
        )
        seen += [event["seq"] for event in answer.json()["items"]]
        cursor, pages = answer.json()["nextCursor"], pages + 1
    assert seen == sent
    assert pages == 3


@pytest.mark.both_databases
async def test_pages_from_newest(harness: EventsHarness) -> None:
    sent = [await harness.emit(number=number, session_id="ses_1") for number in range(5)]
    headers, params = {"Authorization": f"Bearer {harness.token}"}, {"limit": 2, "sessionId": "ses_1", "newest": True}
    pages = []
    cursor: dict[str, str] = {}
    while cursor or not pages:
        answer = (await harness.http.get("/events/history", headers=headers, params=params | cursor)).json()
        pages.append([event["seq"] for event in answer["items"]])
        cursor = {"cursor": answer["nextCursor"]} if answer["nextCursor"] else {}
    assert pages == [sent[3:], sent[1:3], sent[:1]]
    after = await harness.http.get("/events/history", headers=headers, params=params | {"after": sent[3]})
    assert [event["seq"] for event in after.json()["items"]] == sent[4:]


async def test_ends_stream_of_revoked_token(harness: EventsHarness) -> None:
    other = await harness.users.create_token(harness.admin, "second")
    async with harness.open(other.value.reveal()) as stream, harness.open() as stays:
        await harness.users.revoke_token(harness.admin, other.id)
        while await stream.block():
            pass
        await harness.emit("user.waved")
        while (await stays.event())["kind"] != "user.waved":
            pass


async def test_ends_stream_of_deleted_user(harness: EventsHarness) -> None:
    ada = await harness.users.create(harness.admin, "ada", "member")
    ticket = (await harness.users.create_ticket(Principal(ada.id, "ada", "member", "cookie:x"))).value.reveal()
    async with harness.http.stream("GET", "/events", params={"ticket": ticket}) as response:
        await harness.users.delete(harness.admin, ada.id)
        async with asyncio.timeout(DEADLINE):
            async for _ in response.aiter_lines():
                pass


@pytest.mark.both_databases
async def test_reports_trimmed_events(harness: EventsHarness) -> None:
    await harness.emit()
    async with harness.database.transaction() as tx:
        tx.add(Setting(name="events_trimmed", value="1000"))
    async with harness.open(after=0) as stream:
        await stream.block()
        assert await stream.block() == ["event: events.trimmed", 'data: {"upTo":1000}']


async def test_stopping_server_does_not_wait_for_streams(harness: EventsHarness) -> None:
    async with harness.open() as stream, harness.open() as other:
        await stream.block()
        harness.feed.end()
        harness.server.should_exit = True
        async with asyncio.timeout(DEADLINE / 2):
            await harness.serving
            for each in (stream, other):
                while await each.block():
                    pass


async def test_forgets_disconnected_reader(harness: EventsHarness) -> None:
    async with harness.open() as stream:
        await stream.block()
    async with asyncio.timeout(DEADLINE):
        while any("EventStream" in repr(task.get_coro()) for task in asyncio.all_tasks()) or harness.feed.waiters:
            await asyncio.sleep(0.01)
