from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute

from sandyard.kit.clock import ManualClock
from sandyard.platform.api import projects, secrets, sessions, tokens, users
from sandyard.platform.api.limits import MAX_BUCKETS, RateLimiter, limit_rate
from sandyard.platform.api.problems import TooManyRequestsError
from sandyard.platform.api.routers import api_router
from sandyard.platform.app import ROUTERS
from sandyard.platform.db.models import Message
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.unit.platform.world import client, open_world


async def test_refills_bucket_evenly() -> None:
    clock = ManualClock()
    limits = RateLimiter(PlatformSettings(creates_per_minute=6), clock)
    for _ in range(6):
        limits.take("create", "maria")
    with pytest.raises(TooManyRequestsError) as refused:
        limits.take("create", "maria")
    assert refused.value.retry_after == pytest.approx(10) and "6 objects per minute" in refused.value.message
    limits.take("create", "otto")
    limits.take("execute", "maria")
    await clock.advance(10)
    limits.take("create", "maria")
    with pytest.raises(TooManyRequestsError):
        limits.take("create", "maria")
    await clock.advance(3600)
    for _ in range(6):
        limits.take("create", "maria")
    with pytest.raises(TooManyRequestsError):
        limits.take("create", "maria")


async def test_memory_is_bounded() -> None:
    clock = ManualClock()
    limits = RateLimiter(PlatformSettings(), clock)
    for number in range(MAX_BUCKETS * 2):
        limits.take("login", str(number))
    assert len(limits.buckets) <= MAX_BUCKETS
    await clock.advance(60)
    for number in range(MAX_BUCKETS):
        limits.take("login", f"again {number}")
    assert len(limits.buckets) <= MAX_BUCKETS


async def test_limits_are_per_user(tmp_path: Path) -> None:
    router = api_router("test")

    @router.post("/create", name="test.create", dependencies=[limit_rate("create")])
    async def create() -> str:
        return "made"

    async with open_world(tmp_path, creates_per_minute=2, logins_per_minute=2) as world:
        app = world.app(router)
        maria, otto = await world.create_person("maria"), await world.create_person("otto")
        async with client(app, maria) as web:
            assert [(await web.post("/api/v1/create")).status_code for _ in range(3)] == [200, 200, 429]
            answer = await web.post("/api/v1/create")
            assert answer.json()["code"] == "rate_limited" and answer.headers["retry-after"] == "30"
            assert "Try again in 30 s" in answer.json()["detail"]
            await world.clock.advance(30)
            assert (await web.post("/api/v1/create")).status_code == 200
        async with client(app, otto) as web:
            assert (await web.post("/api/v1/create")).status_code == 200
        async with client(app) as web:
            assert (await web.post("/api/v1/create")).status_code == 401
            wrong = {"name": "maria", "password": "wrong password"}
            assert [(await web.post("/api/v1/login", json=wrong)).status_code for _ in range(3)] == [401, 401, 429]
        async with client(app, peer="127.0.0.9") as web:
            assert (await web.post("/api/v1/login", json={"token": maria.token})).status_code == 200


async def test_messages_count_as_commands(tmp_path: Path) -> None:
    class Kept:
        async def add_message(self, caller: Principal, session_id: str, parts: list[Any]) -> Message:
            now = datetime(2026, 1, 31, tzinfo=UTC)
            return Message(id="msg_1", session_id=session_id, role="user", parts=parts, created_at=now)

    async with open_world(tmp_path, executes_per_minute=2) as world:
        world.sessions = Kept()  # type: ignore[attr-defined]
        async with client(world.app(sessions.router), await world.create_person("maria")) as web:
            body = {"parts": [{"type": "text", "text": "hello"}]}
            answers = [await web.post("/api/v1/sessions/ses_1/messages", json=body) for _ in range(3)]
            assert [answer.status_code for answer in answers] == [201, 201, 429]
            assert "send 2 messages per minute" in answers[-1].json()["detail"]


def test_every_change_is_limited() -> None:
    """Every route with a body to validate is limited."""
    unlimited = {
        f"{method} {route.path}"
        for router in (*ROUTERS, projects.router, users.router, secrets.router, tokens.router)
        for route in router.routes
        if isinstance(route, APIRoute) and (route.body_field is not None or "PATCH" in (route.methods or ()))
        for method in route.methods or ()
        if not any(
            dependency.call.__qualname__.startswith(limit_rate.__name__)
            for dependency in route.dependant.dependencies
            if dependency.call
        )
    }
    assert not unlimited
