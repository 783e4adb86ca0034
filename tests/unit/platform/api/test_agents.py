"""/agents: list, add, change and test agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sandyard.platform.api.agents import router
from sandyard.platform.domain.agents.profiles.model import Profile
from sandyard.platform.domain.agents.trials import Trial, TrialStep
from sandyard.platform.domain.models.model import Readiness
from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.world import World, client, open_world

NEW: dict[str, Any] = {
    "name": "mine",
    "title": "Mine",
    "definition": {"argv": ["mine", "acp"], "install": {"script": "touch x", "check": "test -e x"}, "modes": ["m"]},
}
RESULT = Trial("demo", "ses_1", ok=True, steps=(TrialStep("sandbox", 0.2, ok=True),), answer="ready")


class FakeTrials:
    """Trials that end as soon as they start."""

    def __init__(self) -> None:
        self.wanted: list[tuple[str, str | None]] = []

    async def begin(
        self, caller: Principal, name: str, *, model: str | None = None
    ) -> tuple[str, asyncio.Future[Trial]]:
        self.wanted.append((name, model))
        done: asyncio.Future[Trial] = asyncio.get_running_loop().create_future()
        done.set_result(RESULT)
        return "ses_1", done

    async def wait(self, trying: asyncio.Future[Trial]) -> Trial:
        return await trying


class NoModels:
    """No model provider is configured."""

    async def list_readiness(self, caller: Principal, profiles: Sequence[Profile]) -> dict[str, Readiness]:
        return {profile.name: Readiness(not profile.apis) for profile in profiles}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as made:
        made.trials = FakeTrials()  # type: ignore[attr-defined]
        made.models = NoModels()  # type: ignore[attr-defined]
        yield made


async def test_create_list_update_delete(world: World) -> None:
    ann, bob = await world.create_person("ann"), await world.create_person("bob")
    async with client(world.app(router), ann) as web:
        made = await web.post("/api/v1/agents", json=NEW)
        assert made.status_code == 201
        body = made.json()
        assert (body["builtIn"], body["demo"], body["ownerId"]) == (False, False, ann.principal.user_id)
        assert body["definition"]["install"]["timeoutSeconds"] == 900
        assert (await web.post("/api/v1/agents", json=NEW)).json()["code"] == "name_taken"
        listed = (await web.get("/api/v1/agents")).json()["items"]
        demo = next(candidate for candidate in listed if candidate["name"] == "demo")
        assert (demo["demo"], demo["builtIn"], demo["apis"], demo["definition"]) == (True, True, [], None)
        assert {agent["name"]: agent["unaskedModes"] for agent in listed}["claude"] == [
            "acceptEdits",
            "auto",
            "bypassPermissions",
        ]
        assert [item["name"] for item in listed] == ["opencode", "claude", "codex", "gemini", "demo", "mine"]
        changed = await web.put("/api/v1/agents/mine", json={"definition": {"argv": ["other"]}})
        assert (changed.json()["title"], changed.json()["version"]) == ("mine", None)
        wrong = await web.put("/api/v1/agents/mine", json={"definition": {"argv": []}})
        assert wrong.status_code == 400 or wrong.status_code == 422
    async with client(world.app(router), bob) as web:
        assert (await web.get("/api/v1/agents/mine")).status_code == 404
        assert (await web.delete("/api/v1/agents/demo")).status_code == 409
    async with client(world.app(router), ann) as web:
        assert (await web.delete("/api/v1/agents/mine")).status_code == 204
        assert (await web.get("/api/v1/agents/mine")).status_code == 404


async def test_waits_for_trial_or_returns_at_once(world: World) -> None:
    ann = await world.create_person("ann")
    async with client(world.app(router), ann) as web:
        done = await web.post("/api/v1/agents/demo/test")
        assert done.json() == {
            "agent": "demo",
            "sessionId": "ses_1",
            "ok": True,
            "steps": [{"name": "sandbox", "seconds": 0.2, "ok": True}],
            "answer": "ready",
            "error": None,
            "errorCode": None,
        }
        begun = await web.post("/api/v1/agents/demo/test", json={"model": "big", "background": True})
        assert (begun.status_code, begun.json()) == (202, {"agent": "demo", "sessionId": "ses_1"})
    assert world.trials.wanted == [("demo", None), ("demo", "big")]  # type: ignore[attr-defined]
