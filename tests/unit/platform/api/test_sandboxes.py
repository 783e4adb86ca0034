"""Requests for sandboxes that make the engine work."""

from __future__ import annotations

import asyncio

import pytest

from sandyard.platform.api import large_responses, sandboxes
from sandyard.platform.api.large_responses import SLOTS
from tests.unit.platform.world import World, client


class SlowSandboxes:
    """Lists denied connections when `answer` is set."""

    def __init__(self) -> None:
        self.answer = asyncio.Event()

    async def list_denied_connections(self, *_: object) -> list[object]:
        await self.answer.wait()
        return []


async def test_limits_requests_for_denied_connections_per_user(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    slow, path = SlowSandboxes(), "/api/v1/sandboxes/sbx_00mwhnkzb5gfh26ygacc/denied"
    world.sandboxes = slow  # type: ignore[attr-defined]
    app, maria, otto = (
        world.app(sandboxes.router),
        await world.create_person("maria"),
        await world.create_person("otto"),
    )
    monkeypatch.setattr(large_responses, "WAIT_SECONDS", 0.05)
    async with client(app, maria) as web, client(app, otto) as other, asyncio.TaskGroup() as group:
        requests = [group.create_task(web.get(path)) for _ in range(SLOTS + 1)]
        (refused, *_), waiting = await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        slow.answer.set()
        assert refused.result().status_code == 429
        assert len(waiting) == SLOTS
        assert (await other.get(path)).status_code == 200
    assert all(request.result().status_code == 200 for request in waiting)
