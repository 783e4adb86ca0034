"""The routes of preparations, with the demo agent."""

from __future__ import annotations

from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS
from tests.integration.platform.domain.preparations.conftest import Garden
from tests.unit.platform.world import Person, client


async def test_prepare_look_and_delete(garden: Garden) -> None:
    services = garden.yard.services
    issued = await services.users.create_token(garden.owner, "test")
    person, path = Person(garden.owner, issued.value.reveal()), f"/api/v1/projects/{garden.project.id}/preparations"
    await garden.set(setup={"command": "echo wrong; exit 4"})
    async with client(build(services, ROUTERS), person) as web:
        answer = await web.post(path, json={"agent": "demo"}, params={"wait": 60})
        assert answer.status_code == 409, answer.text
        told = answer.json()
        assert (told["code"], told["exitCode"], told["outputTail"]) == ("preparation_failed", 4, "wrong")
        await garden.set(setup={"command": "true"}, agent={"default": "demo"})
        answer = await web.post(path, json={})
        assert answer.status_code == 202, answer.text
        answer = await web.post(path, json={}, params={"wait": 60})
        assert answer.status_code == 200, answer.text
        made = answer.json()
        assert (made["status"], made["agent"], made["sources"]) == ("ready", "demo", ["project settings"])
        assert made["commands"][0]["exitCode"] == 0
        assert (await web.get(f"/api/v1/preparations/{made['id']}")).json()["status"] == "ready"
        listed = (await web.get(path)).json()["items"]
        assert [one["status"] for one in listed] == ["ready", "failed"]
        assert (await web.delete(f"/api/v1/preparations/{made['id']}")).status_code == 204
        assert (await web.get(f"/api/v1/preparations/{made['id']}")).status_code == 404
        assert (await web.post(path, json={"agent": "nobody"})).status_code == 400
        assert (await web.post(path, json={"baseBranch": "none"})).status_code == 409
        body = {"projectId": garden.project.id, "model": "m", "mode": "plan", "baseBranch": "main"}
        session = (await web.post("/api/v1/sessions", json=body)).json()
        assert (session["model"], session["mode"]) == ("m", "plan")
