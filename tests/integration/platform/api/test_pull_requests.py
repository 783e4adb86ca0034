"""Pull requests over the API: permissions and responses. The calls to GitHub are tested in domain/forge."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandyard.kit.ids import make_ordered_id
from sandyard.platform.api.app import build
from sandyard.platform.app import ROUTERS, open_services
from sandyard.platform.db.models import PullRequest, Session, Task
from sandyard.platform.domain.services import Services
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.settings import PlatformSettings
from tests.harness.databases import with_schema
from tests.integration.platform.api.git_api import GitApi
from tests.unit.platform.world import ROOT, Person, client


@dataclass
class Clients:
    services: Services
    maria: httpx.AsyncClient
    otto: httpx.AsyncClient
    owner: Principal

    async def add_pull_request(self, project_id: str, number: int | None, **fields: Any) -> str:
        now, row_id = datetime.now(UTC), make_ordered_id("pul_")
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
async def clients(tmp_path: Path) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(
            open_services(PlatformSettings.load({}, data_dir=with_schema(tmp_path)))
        )
        app, people, principals = build(services, ROUTERS), [], []
        for name in ("maria", "otto"):
            user = await services.users.create(ROOT, name, "member")
            principals.append(Principal(user.id, name, "member", "test"))
            issued = await services.users.create_token(principals[-1], "test")
            people.append(await stack.enter_async_context(client(app, Person(principals[-1], issued.value.reveal()))))
        yield Clients(services, *people, principals[0])


async def test_a_pull_request_is_found_by_number_task_and_session(clients: Clients) -> None:
    project = await clients.services.projects.create(clients.owner, "website")
    now, task_id, session_id = datetime.now(UTC), make_ordered_id("tsk_"), make_ordered_id("ses_")
    async with clients.services.database.transaction() as tx:
        tx.add(
            Task(
                id=task_id, project_id=project.id, title="x", description="", status="done", position=0, priority=0,
                created_at=now, updated_at=now,
            )
        )  # fmt: skip
        tx.add(
            Session(
                id=session_id,
                owner_id=clients.owner.user_id,
                title="x",
                template="base",
                created_at=now,
                updated_at=now,
            )
        )
    row_id = await clients.add_pull_request(project.id, 17, task_id=task_id, session_id=session_id, looked_at=now)
    view = (await clients.maria.get("/api/v1/github/pull-requests/17")).json()
    assert (view["id"], view["number"], view["state"], view["taskId"]) == (row_id, 17, "open", task_id)
    assert view["detail"]["labels"] == ["bug"] and view["lookedAt"].endswith("Z") and "told" not in view
    for path in (f"tasks/{task_id}", f"sessions/{session_id}"):
        assert (await clients.maria.get(f"/api/v1/{path}/pull-request")).json() == view
        assert (await clients.otto.get(f"/api/v1/{path}/pull-request")).status_code == 404
    for verb in ("merge", "ready", "close", "refresh"):
        assert (await clients.otto.post(f"/api/v1/github/pull-requests/17/{verb}")).status_code == 404
        rejected = await clients.maria.post(f"/api/v1/github/pull-requests/17/{verb}", json={"force": True})
        assert rejected.status_code == 400
    for bad in ({"method": "octopus"}, {"headCommit": "main"}):
        assert (await clients.maria.post("/api/v1/github/pull-requests/17/merge", json=bad)).status_code == 400
    for number in (0, -1, 2**31, "x"):
        assert (await clients.maria.get(f"/api/v1/github/pull-requests/{number}")).status_code == 400


async def test_a_number_used_by_two_projects_needs_a_project_id(clients: Clients) -> None:
    one, two = [await clients.services.projects.create(clients.owner, name) for name in ("one", "two")]
    await clients.add_pull_request(one.id, 3)
    second = await clients.add_pull_request(two.id, 3, state="merged")
    both = await clients.maria.get("/api/v1/github/pull-requests/3")
    assert both.status_code == 409 and "projectId" in both.json()["detail"]
    named = await clients.maria.get("/api/v1/github/pull-requests/3", params={"projectId": two.id})
    assert named.json()["id"] == second
    again = await clients.maria.post("/api/v1/github/pull-requests/3/merge", json={"projectId": two.id})
    assert (again.status_code, again.json()["state"]) == (200, "merged")
    listed = (await clients.maria.get("/api/v1/github/pull-requests")).json()["items"]
    assert [item["projectId"] for item in listed] == [two.id, one.id]
    for query, count in (
        ({"state": "merged"}, 1),
        ({"projectId": one.id}, 1),
        ({"projectId": one.id, "state": "merged"}, 0),
    ):
        assert len((await clients.maria.get("/api/v1/github/pull-requests", params=query)).json()["items"]) == count
    assert (await clients.maria.get("/api/v1/github/pull-requests", params={"state": "lost"})).status_code == 400
    assert (await clients.otto.get("/api/v1/github/pull-requests")).json()["items"] == []


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
async def test_invalid_pull_requests_are_rejected(clients: Clients, body: dict[str, Any], field: str) -> None:
    response = await clients.maria.post("/api/v1/github/pull-requests", json=body)
    assert response.status_code == 400 and response.json()["errors"][0]["field"] == field, response.text


@pytest.mark.slow  # tests/web/test_changes.py merges it
async def test_on_a_plain_remote_only_the_branch_is_pushed(git_api: GitApi) -> None:
    async def open_pull_request() -> httpx.Response:
        return await git_api.web.post("/api/v1/github/pull-requests", json={"sandboxId": git_api.sandbox}, timeout=60)

    assert (await open_pull_request()).json()["code"] == "no_checkout"
    branch = (await git_api.complete("clone"))["detail"]["branch"]
    await git_api.write("login.py", "print('works')\n")
    await git_api.complete("commit", message="fix: the login works again")
    created = await open_pull_request()
    view = created.json()
    assert (created.status_code, view["state"], view["forge"], view["number"]) == (201, "pushed", "plain", None), (
        created.text
    )
    assert (view["headBranch"], view["baseBranch"], view["title"]) == (branch, "main", "fix: the login works again")
    again = await open_pull_request()
    assert (again.status_code, again.json()["id"]) == (200, view["id"])
    assert (await git_api.get(f"sessions/{git_api.session}/pull-request"))["id"] == view["id"]
    assert [pull_request["id"] for pull_request in (await git_api.get("github/pull-requests"))["items"]] == [view["id"]]
