from __future__ import annotations

from sandyard.platform.domain.users.model import Principal
from tests.unit.platform.world import ROOT, World, client


async def test_the_sample_project_is_created_once(world: World) -> None:
    maria = await world.create_person("maria")
    async with client(world.app(), maria) as web:
        created = await web.post("/api/v1/projects/sample")
        assert created.status_code == 201, created.text
        project, tasks = created.json()["project"], created.json()["tasks"]
        assert (project["name"], project["settings"]["verify"]["command"]) == ("Sample", "python3 -m unittest")
        assert (await web.get(f"/api/v1/projects/{project['id']}")).json() == project
        assert len(tasks) >= 2 and all(set(task) == {"title", "description"} for task in tasks)
        again = await web.post("/api/v1/projects/sample")
        assert (again.status_code, again.json()) == (200, created.json())
    assert (await list_audit_entries(world, ROOT))[:2] == [("project.sample", project["id"])] * 2


async def list_audit_entries(world: World, caller: Principal) -> list[tuple[str, str | None]]:
    async with client(world.app(), await world.create_person("chief", "admin")) as web:
        items = (await web.get("/api/v1/audit")).json()["items"]
    return [(item["action"], item["target"]) for item in items]
