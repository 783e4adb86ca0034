"""Tasks and schedules over HTTP: responses and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import select

from sandyard.kit.clock import get_time
from sandyard.platform.api import schedules as schedules_api
from sandyard.platform.api import tasks as tasks_api
from sandyard.platform.db.models import Ask, Attempt, ModelCall, PullRequest, Session, Step, Task
from sandyard.platform.domain.tasks.fields import TaskFields
from sandyard.platform.domain.tasks.model import AttemptStatus, Column
from sandyard.platform.domain.tasks.schedules import Schedules
from tests.unit.platform.domain.tasks.board_harness import BoardHarness, open_board_harness_in
from tests.unit.platform.world import client, list_all


class BoardClient:
    """An API client for a board whose attempts are not worked on."""

    def __init__(self, harness: BoardHarness, web: httpx.AsyncClient) -> None:
        self.harness, self.web = harness, web

    async def post(self, path: str, expected: int = 200, **body: Any) -> dict[str, Any]:
        response = await self.web.post(f"/api/v1{path}", json=body)
        assert response.status_code == expected, response.text
        found: dict[str, Any] = response.json()
        return found

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        response = await self.web.get(f"/api/v1{path}", params=query)
        assert response.status_code == 200, response.text
        found: dict[str, Any] = response.json()
        return found

    async def create_task(self, title: str = "Fix the login", **body: Any) -> dict[str, Any]:
        return await self.post("/tasks", 201, projectId=self.harness.project.id, title=title, **body)


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[BoardClient]:
    async with open_board_harness_in(tmp_path) as harness:
        world = harness.world
        schedules = Schedules(world.database, world.projects, harness.tasks, world.settings, world.clock)
        for name, service in (("tasks", harness.tasks), ("attempts", harness.attempts), ("schedules", schedules)):
            setattr(world, name, service)
        async with client(world.app(tasks_api.router, schedules_api.router), harness.owner) as web:
            yield BoardClient(harness, web)


async def test_task_from_creation_to_done(board: BoardClient) -> None:
    wanted = [{"agent": "demo", "model": "small"}, {"agent": "opencode", "model": None}]
    card = await board.create_task(
        description="Words.", attempts=wanted, baseBranch="main", priority=3, budget={"usd": 2.5}, model="large"
    )
    assert card["wanted"] == wanted
    assert (card["status"], card["position"], card["attempts"], card["blockedBy"]) == ("backlog", 0, [], [])
    assert card["budget"] == {"usd": 2.5, "tokens": None}
    assert card["source"] == {"kind": "person"}
    path = f"/tasks/{card['id']}"
    moved = await board.post(f"{path}/move", status="in_progress")
    assert [attempt["queuePosition"] for attempt in moved["attempts"]] == [1, 2]
    assert moved["queuePosition"] == 1
    queue = await board.get("/queue")
    assert [(item["position"], item["taskId"], item["title"], item["number"]) for item in queue["items"]] == [
        (1, card["id"], "Fix the login", 1),
        (2, card["id"], "Fix the login", 2),
    ]
    changed = await board.web.patch(f"/api/v1{path}", json={"title": "Mend it", "agent": None, "description": None})
    assert (changed.json()["title"], changed.json()["description"]) == ("Mend it", "Words.")
    stopped = await board.post(f"{path}/stop")
    assert stopped["status"] == "cancelled"
    assert {attempt["status"] for attempt in stopped["attempts"]} == {"cancelled"}
    assert (await board.post(f"{path}/retry"))["status"] == "in_progress"
    await board.post(f"{path}/stop")
    assert (await board.web.delete(f"/api/v1{path}")).status_code == 204
    assert (await board.web.get(f"/api/v1{path}")).status_code == 404


async def test_attempt_details(board: BoardClient) -> None:
    card = await board.create_task(start=True)
    task = await board.harness.tasks.get(board.harness.me, card["id"])
    (attempt,) = await board.harness.list_attempts(task)
    now = get_time(board.harness.world.clock)
    ownership = {"owner_id": board.harness.me.user_id, "project_id": task.project_id, "template": "base"}
    links = {"project_id": task.project_id, "task_id": task.id, "session_id": attempt.session_id}
    pull = {"forge": "github", "url": "https://x.test/1", "state": "open", "draft": False, "review": "none"}
    times = {"created_at": now, "updated_at": now}
    async with board.harness.world.database.transaction() as tx:
        tx.add(Session(id=attempt.session_id, task_id=task.id, title="x", sandbox_id="sbx_1", **ownership, **times))
        await tx.session.flush()
        for number, cost in ((1, 250_000), (2, None)):
            tokens = {"input_tokens": 100, "output_tokens": 20, "cost_micros": cost}
            tx.add(ModelCall(id=f"mcl_{number}", status=200, started_at=now, duration_ms=5, **tokens, **links))
        tx.add(
            PullRequest(
                id="pul_1",
                number=7,
                title="fix: x",
                head_branch="b",
                base_branch="main",
                checks="none",
                **pull,
                **links,
                **times,
            )
        )
        row = await tx.session.merge(attempt)
        row.status, row.started_at, row.finished_at = AttemptStatus.IN_REVIEW, now, now + timedelta(hours=9)
        row.detail = {
            "verified": {"ok": False, "command": "make test", "exitCode": 2, "seconds": 3.5, "at": "x"},
            "diff": {"files": 2, "added": 10, "removed": 3},
            "branch": "b",
            "head": "1" * 40,
        }
        for round_, number, name, began, ended in (
            (1, 1, "setup", 0, 10),
            (1, 2, "agent", 15, 50),
            (2, 1, "agent", 30_000, 30_040),  # feedback arrived the next day
        ):
            times = {"started_at": now + timedelta(seconds=began), "finished_at": now + timedelta(seconds=ended)}
            tx.add(Step(attempt_id=row.id, round=round_, number=number, name=name, status="completed", **times))
    await board.harness.set_status(task, AttemptStatus.IN_REVIEW, Column.IN_REVIEW)
    found = await board.get(f"/tasks/{task.id}")
    (view,) = found["attempts"]
    assert (view["verified"], view["verification"]["exitCode"]) == (False, 2)
    assert view["diff"] == {"files": 2, "added": 10, "removed": 3}
    assert (view["spent"]["calls"], view["spent"]["costUsd"], view["spent"]["unpriced"]) == (2, 0.25, 1)
    assert (view["seconds"], view["sandboxId"], view["pullRequest"]["number"]) == (90.0, "sbx_1", 7)
    assert [step["name"] for step in view["steps"]] == ["setup", "agent", "agent"]
    assert view["workingSince"] is None
    assert found["pullRequest"]["url"] == "https://x.test/1"
    assert (await board.get(f"/tasks/{task.id}/attempts"))["items"] == [view]
    (listed,) = (await board.get("/tasks", status="in_review"))["items"]
    assert listed["attempts"][0]["steps"] is None
    rejected = await board.post(f"/tasks/{task.id}/move", 400, status="in_progress")
    assert rejected["code"] == "feedback_needed"
    back = await board.post(f"/tasks/{task.id}/move", status="in_progress", feedback="Use a set.")
    assert back["attempts"][0]["round"] == 2
    async with board.harness.world.database.transaction() as tx:
        for number in (3, 4):  # of a provider that reported nonsense to an earlier version
            tokens = {"input_tokens": 1 << 62, "output_tokens": 1 << 62, "cost_micros": 1 << 62}
            tx.add(ModelCall(id=f"mcl_{number}", status=200, started_at=now, duration_ms=5, **tokens, **links))
    (view,) = (await board.get(f"/tasks/{task.id}"))["attempts"]
    assert (view["spent"]["calls"], view["spent"]["inputTokens"]) == (4, 1 << 63)


async def test_invalid_requests_are_rejected(board: BoardClient) -> None:
    first = await board.create_task("first")
    second = await board.create_task("second", needs=[first["id"]], start=True)
    assert second["status"] == "backlog"
    assert second["startWhenReady"]
    assert second["blockedBy"] == second["needs"] == [first["id"]]
    assert second["startError"] is None
    blocked = await board.post(f"/tasks/{second['id']}/move", 409, status="in_progress")
    assert (blocked["code"], blocked["blockedBy"]) == ("task_blocked", [first["id"]])
    cycle = await board.web.patch(f"/api/v1/tasks/{first['id']}", json={"needs": [second["id"]]})
    assert (cycle.status_code, cycle.json()["code"]) == (400, "needs_cycle")
    await board.harness.configure(wipLimits={"in_progress": 1})
    await board.post(f"/tasks/{first['id']}/move", status="in_progress")
    full = await board.post(f"/tasks/{(await board.create_task('third'))['id']}/move", 409, status="in_progress")
    assert (full["code"], full["limit"], full["count"]) == ("column_full", 1, 1)
    assert (await board.post(f"/tasks/{first['id']}/move", 409, status="done"))["code"] == "move_refused"
    for wrong in (
        {"title": " "},
        {"attempts": [{}] * 9},
        {"baseBranch": "a..b"},
        {"agent": "nobody"},
        {"budget": {"usd": 0}},
    ):
        response = await board.web.post(
            "/api/v1/tasks", json={"projectId": board.harness.project.id, "title": "x", **wrong}
        )
        assert response.status_code in (400, 422), wrong
    assert (await board.web.get("/api/v1/tasks", params={"cursor": "nonsense"})).status_code == 400


async def test_tasks_are_paged(board: BoardClient) -> None:
    for number in range(5):
        await board.create_task(str(number), start=number % 2 == 0)
    found = await list_all(board.web, "/api/v1/tasks", limit=2, projectId=board.harness.project.id)
    assert [(item["status"], item["title"], item["position"]) for item in found] == [
        ("backlog", "1", 0),
        ("backlog", "3", 1),
        ("in_progress", "0", 0),
        ("in_progress", "2", 1),
        ("in_progress", "4", 2),
    ]


async def test_board_is_paged(board: BoardClient) -> None:
    """With two thousand cards with long descriptions, the first response counts all of them and contains what fits on a
    screen."""
    now, columns = get_time(board.harness.world.clock), list(Column)
    async with board.harness.world.database.transaction() as tx:
        tx.add(
            *(
                Task(
                    id=f"tsk_{number:04}",
                    project_id=board.harness.project.id,
                    created_by=board.harness.me.user_id,
                    title=f"Card {number}",
                    description="A long description. " * 100 + ("needle" if number % 500 == 4 else ""),
                    status=columns[number % len(columns)],
                    position=number,
                    priority=0,
                    created_at=now,
                    updated_at=now,
                )
                for number in range(2000)
            )
        )
    response = await board.web.get("/api/v1/board", params={"projectId": board.harness.project.id})
    page = response.raise_for_status().json()
    assert len(response.content) < 150_000
    assert [(item["status"], item["total"], item["matching"], len(item["items"])) for item in page["columns"]] == [
        (column.value, 400, 400, tasks_api.COLUMN_LIMIT) for column in Column
    ]
    seen: list[tuple[str, int]] = []
    while len(seen) < 400:
        (one,) = (await board.get("/board", status="done", offset=len(seen), limit=150))["columns"]
        seen += [(card["title"], card["position"]) for card in one["items"]]
    assert seen == [(f"Card {3 + 5 * index}", index) for index in range(400)]
    found = (await board.get("/board", q="NEEDLE card"))["columns"]
    assert [(item["total"], item["matching"]) for item in found] == [(400, 0)] * 4 + [(400, 4)]
    assert [(card["title"], card["position"]) for card in found[4]["items"]] == [
        (f"Card {4 + 500 * number}", 100 * number) for number in range(4)
    ]
    (counts,) = (await board.get("/tasks/counts"))["items"]
    assert counts == {
        "projectId": board.harness.project.id,
        "columns": {column.value: 400 for column in Column},
        "failed": 0,
    }


async def test_board_filters(board: BoardClient) -> None:
    wanted = [{"agent": "opencode", "model": None}]
    quiet = await board.create_task("quiet", agent="opencode")
    asked = await board.create_task("asked", start=True)
    failed = await board.create_task("failed", start=True)
    several = await board.create_task("several", attempts=wanted * 2, start=True)
    await board.create_task("waits", needs=[failed["id"]])
    now = get_time(board.harness.world.clock)
    for card, status, column in (
        (asked, AttemptStatus.RUNNING, Column.IN_PROGRESS),
        (failed, AttemptStatus.FAILED, Column.IN_PROGRESS),
        (several, AttemptStatus.READY, Column.IN_REVIEW),
    ):
        await board.harness.set_status(await board.harness.tasks.get(board.harness.me, card["id"]), status, column)
    async with board.harness.world.database.reading() as session:
        session_id = await session.scalar(select(Attempt.session_id).where(Attempt.task_id == asked["id"]))
    assert session_id is not None
    ownership = {"owner_id": board.harness.me.user_id, "project_id": board.harness.project.id, "template": "base"}
    async with board.harness.world.database.transaction() as tx:
        tx.add(Session(id=session_id, task_id=asked["id"], title="x", created_at=now, updated_at=now, **ownership))
        await tx.session.flush()
        fields = {"request": "1", "kind": "question", "title": "?", "detail": {}, "status": "pending"}
        tx.add(Ask(id="ask_1", session_id=session_id, created_at=now, **fields))
        tx.add(
            PullRequest(
                id="pul_1",
                number=7,
                title="fix: x",
                head_branch="task-branch",
                base_branch="main",
                checks="none",
                forge="github",
                url="https://x.test/1",
                state="open",
                draft=False,
                review="none",
                project_id=board.harness.project.id,
                task_id=several["id"],
                created_at=now,
                updated_at=now,
            )
        )

    async def list_titles(**query: Any) -> list[str]:
        page = await board.get("/board", **query)
        return [card["title"] for column in page["columns"] for card in column["items"]]

    assert await list_titles() == ["quiet", "waits", "asked", "failed", "several"]
    assert await list_titles(show="running") == ["asked"]
    assert await list_titles(show="failed") == ["failed"]
    assert await list_titles(show="needs-you") == ["asked", "several"]
    assert await list_titles(agent="opencode") == ["quiet", "several"]
    assert await list_titles(agent="opencode", q="quiet") == ["quiet"]
    assert await list_titles(q="#7") == await list_titles(q="TASK-branch several") == ["several"]
    assert await list_titles(q=quiet["id"]) == ["quiet"]
    await board.create_task("Übersicht of the login", description="and its fix")
    assert await list_titles(q="ÜBERSICHT") == ["Übersicht of the login"]
    assert [task["title"] for task in (await board.get("/tasks", q="fix übersicht"))["items"]] == [
        "Übersicht of the login"
    ]
    (backlog,) = (await board.get("/board", status="backlog"))["columns"]
    assert "description" not in backlog["items"][0]
    assert (await board.get("/board", status="backlog"))["titles"] == {failed["id"]: "failed"}
    assert (await board.web.get("/api/v1/board", params={"limit": 201})).status_code in (400, 422)


async def test_schedules(board: BoardClient) -> None:
    given = {"projectId": board.harness.project.id, "name": "nightly", "cron": "0 3 * * *", "task": {"title": "Tidy"}}
    made = await board.post("/schedules", 201, **given, timezone="Europe/Berlin")
    assert (made["nextAt"], made["lastError"], made["task"]["start"]) == ("2023-11-15T02:00:00.000Z", None, True)
    wrong = await board.post("/schedules", 400, **{**given, "cron": "0 3 * * FOO"})
    assert "not a valid cron expression" in wrong["detail"]
    task = await board.post(f"/schedules/{made['id']}/run", 201)
    assert (task["status"], task["source"]["scheduleId"]) == ("in_progress", made["id"])
    off = await board.web.patch(
        f"/api/v1/schedules/{made['id']}", json={"enabled": False, "task": {"title": "Tidy up"}}
    )
    assert (off.json()["nextAt"], off.json()["task"]["title"]) == (None, "Tidy up")
    assert off.json()["lastTaskId"] == task["id"]
    assert [schedule["id"] for schedule in (await board.get("/schedules"))["items"]] == [made["id"]]
    assert (await board.web.delete(f"/api/v1/schedules/{made['id']}")).status_code == 204
    assert (await board.web.get(f"/api/v1/schedules/{made['id']}")).status_code == 404


async def test_task_shows_why_it_was_not_started(board: BoardClient) -> None:
    harness, mo = board.harness, board.harness.member.principal
    first = await board.create_task("first")
    fields = TaskFields(title="later")
    later = await harness.tasks.create(mo, harness.project.id, fields, needs=[first["id"]], start=True)
    await harness.world.projects.remove_member(harness.me, harness.project.id, mo.user_id)
    await board.post(f"/tasks/{first['id']}/move", status="done")
    await harness.wait_until_idle()
    for shown in (await board.get(f"/tasks/{later.id}"), (await board.get("/tasks", status="backlog"))["items"][0]):
        assert (shown["status"], shown["startWhenReady"]) == ("backlog", False)
        assert "no longer has access to the project" in shown["startError"]
        assert shown["source"] == {"kind": "person"}
    assert (await board.post(f"/tasks/{later.id}/move", status="in_progress"))["startError"] is None
