"""Pull requests over the API. What GitHub does is tested where it is spoken with; here it is who may ask, and what is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.kit.ids import ordered_id
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, opened
from sandyard.platform.db.models import PullRequest, Session, Task
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.databases import with_schema
from tests.integration.platform.api.test_git import Desk, desk
from tests.unit.platform.world import ROOT, Person, client

__all__ = ["desk"]


@dataclass
class Room:
    services: Services
    maria: httpx.AsyncClient
    otto: httpx.AsyncClient
    owner: Principal

    async def pull(self, project_id: str, number: int | None, **fields: Any) -> str:
        now, row_id = datetime.now(UTC), ordered_id("pul_")
        row = {
            "forge": "github" if number else "plain",
            "url": "https://github.example/a/b/pull/1",
            "title": "fix: it",
            "state": "open",
            "draft": False,
            "head_branch": "task-1",
            "base_branch": "main",
            "review": "none",
            "checks": "none",
            "detail": {"runs": [], "remarks": [], "labels": ["bug"]},
        }
        async with self.services.database.transaction() as tx:
            tx.add(
                PullRequest(
                    id=row_id, project_id=project_id, number=number, created_at=now, updated_at=now, **row | fields
                )
            )
        return row_id


@pytest.fixture
async def room(tmp_path: Path) -> AsyncIterator[Room]:
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(opened(PlatformSettings.load({}, data_dir=with_schema(tmp_path))))
        app, people, principals = build(services, ROUTERS), [], []
        for name in ("maria", "otto"):
            user = await services.users.create(ROOT, name, "member")
            principals.append(Principal(user.id, name, "member", "test"))
            issued = await services.users.create_token(principals[-1], "test")
            people.append(await stack.enter_async_context(client(app, Person(principals[-1], issued.value.reveal()))))
        yield Room(services, *people, principals[0])


async def test_by_number_by_task_by_session(room: Room) -> None:
    project = await room.services.projects.create(room.owner, "website")
    now, task_id, session_id = datetime.now(UTC), ordered_id("tsk_"), ordered_id("ses_")
    async with room.services.database.transaction() as tx:
        tx.add(
            Task(
                id=task_id, project_id=project.id, title="x", description="", status="done", position=0, priority=0,
                created_at=now, updated_at=now,
            )
        )  # fmt: skip
        tx.add(
            Session(
                id=session_id, owner_id=room.owner.user_id, title="x", template="base", created_at=now, updated_at=now
            )
        )
    row_id = await room.pull(project.id, 17, task_id=task_id, session_id=session_id, looked_at=now)
    view = (await room.maria.get("/api/v1/github/pull-requests/17")).json()
    assert (view["id"], view["number"], view["state"], view["taskId"]) == (row_id, 17, "open", task_id)
    assert view["detail"]["labels"] == ["bug"] and view["lookedAt"].endswith("Z") and "told" not in view
    for path in (f"tasks/{task_id}", f"sessions/{session_id}"):
        assert (await room.maria.get(f"/api/v1/{path}/pull-request")).json() == view
        assert (await room.otto.get(f"/api/v1/{path}/pull-request")).status_code == 404
    for verb in ("merge", "ready", "close", "refresh"):
        assert (await room.otto.post(f"/api/v1/github/pull-requests/17/{verb}")).status_code == 404
        wrong = await room.maria.post(f"/api/v1/github/pull-requests/17/{verb}", json={"force": True})
        assert wrong.status_code == 400
    for bad in ({"method": "octopus"}, {"headCommit": "main"}):
        assert (await room.maria.post("/api/v1/github/pull-requests/17/merge", json=bad)).status_code == 400
    for number in (0, -1, 2**31, "x"):
        assert (await room.maria.get(f"/api/v1/github/pull-requests/{number}")).status_code == 400


async def test_a_number_that_two_projects_have(room: Room) -> None:
    one, two = [await room.services.projects.create(room.owner, name) for name in ("one", "two")]
    await room.pull(one.id, 3)
    second = await room.pull(two.id, 3, state="merged")
    both = await room.maria.get("/api/v1/github/pull-requests/3")
    assert both.status_code == 409 and "projectId" in both.json()["detail"]
    named = await room.maria.get("/api/v1/github/pull-requests/3", params={"projectId": two.id})
    assert named.json()["id"] == second
    again = await room.maria.post("/api/v1/github/pull-requests/3/merge", json={"projectId": two.id})
    assert (again.status_code, again.json()["state"]) == (200, "merged")
    listed = (await room.maria.get("/api/v1/github/pull-requests")).json()["items"]
    assert [one["projectId"] for one in listed] == [two.id, one.id]
    for query, count in (
        ({"state": "merged"}, 1),
        ({"projectId": one.id}, 1),
        ({"projectId": one.id, "state": "merged"}, 0),
    ):
        assert len((await room.maria.get("/api/v1/github/pull-requests", params=query)).json()["items"]) == count
    assert (await room.maria.get("/api/v1/github/pull-requests", params={"state": "lost"})).status_code == 400
    assert (await room.otto.get("/api/v1/github/pull-requests")).json()["items"] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "sandboxId"),
        ({"sandboxId": "x", "base": "-x"}, "base"),
        ({"sandboxId": "x", "title": ""}, "title"),
        ({"sandboxId": "x", "title": "x" * 251}, "title"),
        ({"sandboxId": "x", "body": "x" * 60_001}, "body"),
        ({"sandboxId": "x", "labels": ["x"] * 51}, "labels"),
        ({"sandboxId": "x", "reviewers": [""]}, "reviewers.0"),
        ({"sandboxId": "x", "force": True}, "force"),
    ],
)
async def test_what_cannot_be_opened(room: Room, body: dict[str, Any], field: str) -> None:
    answer = await room.maria.post("/api/v1/github/pull-requests", json=body)
    assert answer.status_code == 400 and answer.json()["errors"][0]["field"] == field, answer.text


@pytest.mark.slow  # tests/web/test_changes.py merges it
async def test_on_a_plain_remote_it_ends_at_the_pushed_branch(desk: Desk) -> None:
    async def open_() -> httpx.Response:
        return await desk.web.post("/api/v1/github/pull-requests", json={"sandboxId": desk.sandbox}, timeout=60)

    assert (await open_()).json()["code"] == "no_checkout"
    branch = (await desk.done("clone"))["detail"]["branch"]
    await desk.write("login.py", "print('works')\n")
    await desk.done("commit", message="fix: the login works again")
    made = await open_()
    view = made.json()
    assert (made.status_code, view["state"], view["forge"], view["number"]) == (201, "pushed", "plain", None), made.text
    assert (view["headBranch"], view["baseBranch"], view["title"]) == (branch, "main", "fix: the login works again")
    again = await open_()
    assert (again.status_code, again.json()["id"]) == (200, view["id"])
    assert (await desk.get(f"sessions/{desk.session}/pull-request"))["id"] == view["id"]
    assert [one["id"] for one in (await desk.get("github/pull-requests"))["items"]] == [view["id"]]
