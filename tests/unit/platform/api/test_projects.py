"""Projects are stored with settings that the engine can use."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandyard.platform.api import projects
from sandyard.platform.domain.sandboxes.e2b import EngineInvalidError, EngineUnreachableError
from tests.unit.platform.world import client, open_world


async def test_a_template_that_the_engine_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def has_template(template: str) -> bool:
        asked.append(template)
        if template == "unreachable":
            raise EngineUnreachableError
        return template == "base"

    async with open_world(tmp_path) as world:
        monkeypatch.setattr(world.engine, "has_template", has_template)
        ada = await world.create_person("ada")
        async with client(world.app(projects.router), ada) as pages:
            refused = await pages.post("/api/v1/projects", json={"name": "p", "settings": {"template": "dockr"}})
            assert refused.status_code == 400
            (error,) = refused.json()["errors"]
            assert error["field"] == "settings.template"
            assert error["message"].startswith("The engine has no template 'dockr'.")
            made = await pages.post("/api/v1/projects", json={"name": "p", "settings": {"template": "base"}})
            assert made.status_code == 201
            path = f"/api/v1/projects/{made.json()['id']}"
            assert (await pages.patch(path, json={"settings": {"template": "dockr"}})).status_code == 400
            assert (await pages.get(path)).json()["settings"]["template"] == "base"
            # an unchanged template, or one that can't be checked, does not prevent saving
            for template in ("base", "unreachable", "name:tag", "rki5dems9wqfm4r03t7g"):
                assert (await pages.patch(path, json={"settings": {"template": template}})).status_code == 200
            assert asked == ["dockr", "base", "dockr", "unreachable"]


async def test_an_isolation_that_the_engine_does_not_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str | None, bool | None]] = []

    async def check_isolation(template: str, isolation: str | None, containers: bool | None) -> None:
        asked.append((template, isolation, containers))
        if isolation == "namespace" and containers:
            raise EngineInvalidError("Containers need gvisor.")

    async with open_world(tmp_path) as world:
        monkeypatch.setattr(world.engine, "check_isolation", check_isolation)
        ada = await world.create_person("ada")
        async with client(world.app(projects.router), ada) as pages:
            pair = {"isolation": "namespace", "containers": True}
            refused = await pages.post("/api/v1/projects", json={"name": "p", "settings": pair})
            assert refused.status_code == 400
            assert refused.json()["errors"] == [
                {"field": "settings.isolation", "message": "Containers need gvisor."},
                {"field": "settings.containers", "message": "Containers need gvisor."},
            ]
            made = await pages.post("/api/v1/projects", json={"name": "p", "settings": {"isolation": "gvisor"}})
            assert made.status_code == 201
            path = f"/api/v1/projects/{made.json()['id']}"
            assert (await pages.patch(path, json={"settings": pair})).status_code == 400
            # nothing is asked if these settings did not change, or need nothing
            for settings in ({"isolation": "gvisor", "idleSeconds": 60}, {"containers": False}):
                assert (await pages.patch(path, json={"settings": settings})).status_code == 200
            assert asked == [("base", "namespace", True), ("base", "gvisor", None), ("base", "namespace", True)]
