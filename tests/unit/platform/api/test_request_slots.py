"""Turns of users and anonymous clients whose requests the platform handles at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from fastapi import FastAPI

from sandyard.kit.server import CONNECTION
from sandyard.platform.api import request_slots
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.limits import limit_rate
from sandyard.platform.api.request_slots import SLOTS
from sandyard.platform.api.routers import api_router
from tests.unit.platform.world import Person, World, client


class Site:
    """An app whose requests to `/api/v1/work` and `/api/v1/open` end when the test says so."""

    def __init__(self, world: World) -> None:
        self.begun: Counter[str] = Counter()
        self.go = asyncio.Event()
        self.tasks: list[asyncio.Task[int]] = []
        router = api_router("test")

        @router.get("/me2", name="test.me2")
        async def me(caller: Caller) -> str:
            return caller.name

        @router.get("/work", name="test.work")
        async def work(caller: Caller) -> None:
            await self._work(caller.name)

        @router.get("/command", name="test.command", dependencies=[limit_rate("execute")])
        async def command(caller: Caller) -> None:
            await self._work(caller.name)

        @router.get("/open", name="test.open")
        async def open_() -> None:
            await self._work("anonymous")

        self.app: FastAPI = world.app(router)

    async def _work(self, name: str) -> None:
        self.begun[name] += 1
        await self.go.wait()

    def send(self, path: str, person: Person | None = None, *, gone: bool = False, address: str = "192.0.2.1") -> None:
        """Send a request in the background."""
        headers = [(b"host", b"localhost")]
        if person is not None:
            headers.append((b"authorization", f"Bearer {person.token}".encode()))
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": (address, 1), "server": ("localhost", 80), "scheme": "http",
            "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": "",
            "extensions": {CONNECTION: {"is_closing": lambda: gone}},
        }  # fmt: skip
        self.tasks.append(asyncio.create_task(self._send(scope)))

    async def _send(self, scope: dict[str, Any]) -> int:
        statuses = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            statuses.append(message.get("status"))

        await self.app(scope, receive, send)
        return statuses[0] if statuses else 0

    async def wait_until_begun(self, name: str, count: int) -> None:
        async with asyncio.timeout(10):
            while self.begun[name] < count:
                await asyncio.sleep(0.005)
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self) -> list[int]:
        """Let all requests end and return their statuses."""
        self.go.set()
        async with asyncio.timeout(30):
            return await asyncio.gather(*self.tasks)


@pytest.fixture
def site(world: World, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(request_slots, "SLOT_SECONDS", 60)
    return Site(world)


async def greet(site: Site, person: Person) -> str:
    async with client(site.app) as http, asyncio.timeout(10):
        return str((await http.get("/api/v1/me2", headers=person.headers)).json())


async def test_requests_of_a_user_wait_for_their_own(world: World, site: Site) -> None:
    ann, bob = await world.create_person("ann"), await world.create_person("bob")
    assert await greet(site, ann) == "ann"
    for _ in range(SLOTS + 5):
        site.send("/api/v1/work", ann)
    await site.wait_until_begun("ann", SLOTS)
    assert site.begun["ann"] == SLOTS
    assert await greet(site, bob) == "bob"
    assert set(await site.end()) == {200}
    assert site.begun["ann"] == SLOTS + 5


async def test_all_tokens_of_a_user_share_slots(world: World, site: Site) -> None:
    ann = await world.create_person("ann")
    second = Person(ann.principal, (await world.users.create_token(ann.principal, "second")).value.reveal())
    for person in (ann, second):
        assert await greet(site, person) == "ann"
        for _ in range(SLOTS):
            site.send("/api/v1/work", person)
    await site.wait_until_begun("ann", SLOTS)
    assert site.begun["ann"] == SLOTS
    await site.end()


async def test_anonymous_requests_wait_for_those_of_their_address(world: World, site: Site) -> None:
    ann = await world.create_person("ann")
    for _ in range(SLOTS + 5):
        site.send("/api/v1/open")
    await site.wait_until_begun("anonymous", SLOTS)
    assert site.begun["anonymous"] == SLOTS
    site.send("/api/v1/open", address="192.0.2.2")
    site.send("/api/v1/work", ann)  # a credential that is not known yet
    await site.wait_until_begun("ann", 1)
    await site.wait_until_begun("anonymous", SLOTS + 1)
    await site.end()


async def test_invented_tokens_of_an_address_share_slots(world: World, site: Site) -> None:
    ann = await world.create_person("ann")
    for number in range(SLOTS + 5):
        site.send("/api/v1/open", Person(ann.principal, f"sy_{number}"))
    await site.wait_until_begun("anonymous", SLOTS)
    assert site.begun["anonymous"] == SLOTS
    await site.end()


async def test_slow_requests_do_not_keep_their_slot(world: World, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ann = await world.create_person("ann")
    for _ in range(SLOTS + 5):
        site.send("/api/v1/command", ann)
    await site.wait_until_begun("ann", SLOTS + 5)
    monkeypatch.setattr(request_slots, "SLOT_SECONDS", 0.01)
    for _ in range(SLOTS + 5):
        site.send("/api/v1/work", ann)
    await site.wait_until_begun("ann", 2 * (SLOTS + 5))
    assert set(await site.end()) == {200}


async def test_waiting_requests_are_limited_and_end_with_their_client(
    world: World, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_slots, "MAX_WAITING", 3)
    for _ in range(SLOTS):
        site.send("/api/v1/open", gone=True)
    await site.wait_until_begun("anonymous", SLOTS)
    for gone in (True, False, True, False, False):
        site.send("/api/v1/open", gone=gone)
    assert await site.end() == [200] * SLOTS + [0, 200, 0, 429, 429]


async def test_requests_that_never_wait_leave_time_for_others(world: World, site: Site) -> None:
    site.go.set()
    for _ in range(4 * SLOTS):
        site.send("/api/v1/open")
    most = 0
    while not all(task.done() for task in site.tasks):
        before = site.begun["anonymous"]
        await asyncio.sleep(0)
        most = max(most, site.begun["anonymous"] - before)
    assert 0 < most <= SLOTS
