"""Preparation routes, with the demo agent."""

from __future__ import annotations

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from tests.integration.platform.domain.preparations.conftest import PreparationHarness
from tests.unit.platform.world import Person, client


async def test_a_preparation_is_created_read_and_deleted(harness: PreparationHarness) -> None:
    services = harness.platform.services
    issued = await services.users.create_token(harness.owner, "test")
    person, path = Person(harness.owner, issued.value.reveal()), f"/api/v1/projects/{harness.project.id}/preparations"
    await harness.update_settings(setup={"command": "echo wrong; exit 4"})
    async with client(build(services, ROUTERS), person) as web:
        response = await web.post(path, json={"agent": "demo"}, params={"wait": 60})
        assert response.status_code == 409, response.text
        problem = response.json()
        assert (problem["code"], problem["exitCode"], problem["outputTail"]) == ("preparation_failed", 4, "wrong")
        await harness.update_settings(setup={"command": "true"}, agent={"default": "demo"})
        response = await web.post(path, json={})
        assert response.status_code == 202, response.text
        response = await web.post(path, json={}, params={"wait": 60})
        assert response.status_code == 200, response.text
        created = response.json()
        assert (created["status"], created["agent"], created["sources"]) == ("ready", "demo", ["project settings"])
        assert created["commands"][0]["exitCode"] == 0
        assert (await web.get(f"/api/v1/preparations/{created['id']}")).json()["status"] == "ready"
        listed = (await web.get(path)).json()["items"]
        assert [item["status"] for item in listed] == ["ready", "failed"]
        assert (await web.delete(f"/api/v1/preparations/{created['id']}")).status_code == 204
        assert (await web.get(f"/api/v1/preparations/{created['id']}")).status_code == 404
        assert (await web.post(path, json={"agent": "nobody"})).status_code == 400
        assert (await web.post(path, json={"baseBranch": "none"})).status_code == 409
        body = {"projectId": harness.project.id, "model": "m", "mode": "plan", "baseBranch": "main"}
        session = (await web.post("/api/v1/sessions", json=body)).json()
        assert (session["model"], session["mode"]) == ("m", "plan")
