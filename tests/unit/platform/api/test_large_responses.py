"""Limits on the responses that one user does not read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import Response, StreamingResponse

from sandyard.platform.api import large_responses
from sandyard.platform.api.auth import Caller
from sandyard.platform.api.large_responses import (
    CHUNK_BYTES,
    SLOTS,
    ResponseSlots,
    limit_large_responses,
    limit_remote_requests,
)
from sandyard.platform.api.problems import TooManyRequestsError
from sandyard.platform.api.routers import api_router
from tests.unit.platform.world import Person, World, client

BODY = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"end"


def build_app(world: World) -> FastAPI:
    router = api_router("test")

    @router.get("/large", name="test.large", dependencies=[limit_large_responses()])
    async def large() -> Response:
        return Response(BODY)

    @router.get("/slow", name="test.slow", dependencies=[limit_large_responses(slow=True)])
    async def slow() -> Response:
        return Response(BODY)

    @router.post("/command", name="test.command")
    async def command(caller: Caller) -> Response:
        return Response(BODY)

    @router.get("/download", name="test.download")
    async def download(caller: Caller) -> StreamingResponse:
        async def pieces() -> AsyncIterator[bytes]:
            yield BODY[:CHUNK_BYTES]
            yield BODY[CHUNK_BYTES:]

        return StreamingResponse(pieces(), headers={"Content-Length": str(len(BODY))})

    return world.app(router)


class SlowReader:
    """A client that sends a request, reads one piece of the response, and nothing more until `may_read` is set."""

    def __init__(self, app: FastAPI, person: Person, method: str = "GET", path: str = "/api/v1/large") -> None:
        self.may_read = asyncio.Event()
        self.blocked = asyncio.Event()
        self.status = 0
        self.pieces: list[int] = []
        headers = [(b"host", b"localhost"), (b"authorization", f"Bearer {person.token}".encode())]
        scope = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
            "headers": headers, "client": ("127.0.0.1", 1), "server": ("localhost", 80), "scheme": "http",
            "http_version": "1.1", "asgi": {"version": "3.0"}, "root_path": "",
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        self.pieces.append(len(message["body"]))
        if self.status == 200:
            self.blocked.set()
            await self.may_read.wait()


async def test_sends_large_body_in_pieces(world: World) -> None:
    app, maria = build_app(world), await world.create_person("maria")
    reader = SlowReader(app, maria)
    await reader.blocked.wait()
    assert reader.pieces == [CHUNK_BYTES]
    reader.may_read.set()
    await reader.task
    assert reader.pieces == [CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES, 3]
    async with client(app, maria) as web:
        assert (await web.get("/api/v1/large")).content == BODY


async def test_limits_unread_answers_per_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    app, maria, otto = build_app(world), await world.create_person("maria"), await world.create_person("otto")
    readers = [SlowReader(app, maria) for _ in range(SLOTS)]
    for reader in readers:
        await reader.blocked.wait()
    monkeypatch.setattr(large_responses, "WAIT_SECONDS", 0)
    async with client(app, maria) as web:
        refused = await web.get("/api/v1/large")
        assert refused.status_code == 429 and "not being read" in refused.json()["detail"]
        assert (await web.get("/api/v1/me")).status_code == 200
        assert (await web.get("/api/v1/slow")).status_code == 200, "other routes have their own slots"
    async with client(app, otto) as web:
        assert (await web.get("/api/v1/large")).status_code == 200
    readers[0].may_read.set()
    await readers[0].task
    async with client(app, maria) as web:
        assert (await web.get("/api/v1/large")).status_code == 200
    for reader in readers:
        reader.may_read.set()
        await reader.task


async def test_limits_requests_that_wait_for_servers_per_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    router, answer = api_router("test"), asyncio.Event()

    @router.post("/check", name="test.check", dependencies=[limit_remote_requests()])
    async def check() -> None:
        await answer.wait()

    app, maria, otto = world.app(router), await world.create_person("maria"), await world.create_person("otto")
    monkeypatch.setattr(large_responses, "WAIT_SECONDS", 0.05)
    async with client(app, maria) as web, client(app, otto) as other, asyncio.TaskGroup() as group:
        checks = [group.create_task(web.post("/api/v1/check")) for _ in range(SLOTS + 1)]
        (refused, *_), waiting = await asyncio.wait(checks, return_when=asyncio.FIRST_COMPLETED)
        assert refused.result().status_code == 429 and "wait for other servers" in refused.result().json()["detail"]
        assert len(waiting) == SLOTS
        ottos_check = group.create_task(other.post("/api/v1/check"))
        assert (await web.get("/api/v1/me")).status_code == 200
        answer.set()
        assert (await ottos_check).is_success
    assert all(item.result().is_success for item in waiting)


async def test_drops_finished_answer_without_slot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On any route, because the size is known only when the work is done."""
    app, maria = build_app(world), await world.create_person("maria")
    readers = [SlowReader(app, maria, "POST", "/api/v1/command") for _ in range(SLOTS)]
    for reader in readers:
        await reader.blocked.wait()
    monkeypatch.setattr(large_responses, "MAX_FINISHED_WAITING", 0)
    async with client(app, maria) as web:
        refused = await web.post("/api/v1/command")
        assert refused.status_code == 429 and refused.json()["detail"].startswith("The request was carried out, but")
        assert (await web.get("/api/v1/large")).status_code == 200, "other routes have their own slots"
        assert (await web.get("/api/v1/download")).content == BODY, "a streamed response is not held in memory"
        for reader in readers:
            reader.may_read.set()
            await reader.task
        assert (await web.post("/api/v1/command")).content == BODY


async def test_waits_for_free_slot() -> None:
    slots = ResponseSlots()
    for _ in range(SLOTS):
        await slots.take("maria")
    waiting = asyncio.create_task(slots.take("maria"))
    await asyncio.sleep(0)
    assert not waiting.done()
    slots.release("maria")
    await waiting


async def test_forgets_users_without_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_responses, "WAIT_SECONDS", 0)
    slots = ResponseSlots()
    for _ in range(SLOTS):
        await slots.take("maria")
    with pytest.raises(TooManyRequestsError):
        await slots.take("maria")
    for _ in range(SLOTS):
        slots.release("maria")
    assert not slots.users


async def test_failed_answer_releases_slot(world: World) -> None:
    router = api_router("test")

    @router.get("/large", name="test.large", dependencies=[limit_large_responses()])
    async def large() -> Response:
        raise RuntimeError("on purpose")

    app, maria = world.app(router), await world.create_person("maria")
    async with client(app, maria) as web:
        for _ in range(SLOTS + 1):
            assert (await web.get("/api/v1/large")).status_code == 500
