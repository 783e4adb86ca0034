"""The state of the installation, and the metrics that follow from the same counts."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from sandyard.kit.clock import get_time
from sandyard.platform.db.models import GitOperation, ModelCall, ModelProvider, Project, Sandbox
from sandyard.platform.domain.instance import status
from sandyard.platform.domain.sandboxes.e2b.errors import EngineTimeoutError
from tests.unit.platform.world import Person, World, client

STATUS = "/api/v1/status"
REPORT = {
    "version": "1",
    "driver": "namespace",
    "startedAt": 1.0,
    "shortage": None,
    "memoryAvailable": 1 << 30,
    "diskFree": 1 << 40,
    "sandboxes": {"running": 1, "paused": 0, "creating": 0, "removing": 0},
}


@pytest.fixture
async def admin(world: World) -> Person:
    return await world.create_person("root", "admin")


def answer_as_engine(world: World, monkeypatch: pytest.MonkeyPatch, report: Mapping[str, Any] | Exception) -> None:
    async def read_status() -> Mapping[str, Any]:
        if isinstance(report, Exception):
            raise report
        return report

    monkeypatch.setattr(type(world.engine), "configured", True)
    monkeypatch.setattr(world.engine, "read_status", read_status)


def make_sandbox(sandbox_id: str, owner: Person, world: World, state: str, error: str | None = None) -> Sandbox:
    return Sandbox(
        id=sandbox_id,
        owner_id=owner.principal.user_id,
        template="base",
        idempotency_key=sandbox_id,
        status=state,
        error=error,
        idle_seconds=300,
        created_at=get_time(world.clock),
    )


async def read(world: World, admin: Person) -> dict[str, Any]:
    async with client(world.app(), admin) as web:
        answer = await web.get(STATUS)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


async def test_only_administrators_see_the_status(world: World, admin: Person) -> None:
    async with client(world.app(), await world.create_person("maria")) as web:
        assert (await web.get(STATUS)).status_code == 403
    async with client(world.app()) as web:
        assert (await web.get(STATUS)).status_code == 401


async def test_an_engine_that_does_not_respond_is_the_first_problem(
    world: World, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_as_engine(world, monkeypatch, EngineTimeoutError("The engine is busy."))
    async with world.database.transaction() as tx:
        tx.session.add(make_sandbox("sbx_1", admin, world, "error", "It is gone."))
    found = await read(world, admin)
    assert found["engine"] is None and found["engineError"] == "The engine is busy."
    assert [problem["severe"] for problem in found["problems"]] == [True, False]
    assert found["problems"][0]["text"] == "The engine is busy."
    assert found["problems"][1] == {
        "text": "A sandbox has failed. It is gone.",
        "severe": False,
        "target": "sandbox",
        "targetId": "sbx_1",
    }


async def test_problems_name_what_is_wrong_and_where_to_solve_it(
    world: World, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"problem": "The bucket is gone.", "published": 1, "pending": 2}
    answer_as_engine(
        world, monkeypatch, REPORT | {"shortage": "The machine is full: 1 MiB is left.", "layerStore": store}
    )
    monkeypatch.setattr(status, "LOW_DISK_BYTES", 1 << 62)
    monkeypatch.setattr(status, "LOW_DISK_FRACTION", 2)
    project = await world.projects.create(admin.principal, "shop")
    now = get_time(world.clock)
    async with world.database.transaction() as tx:
        (await tx.session.get_one(Project, project.id)).connection_error = "The token has expired."
        tx.session.add_all(make_sandbox(f"sbx_{number}", admin, world, "error", "Full.") for number in range(2))
        provider = ModelProvider(id="mpr_1", name="Anthropic", kind="anthropic", base_url="https://x", hint="")
        provider.created_at = provider.updated_at = now
        tx.session.add(provider)
        await tx.session.flush()
        for number, (code, age) in enumerate(((401, 1), (200, 1), (500, 90))):
            call = ModelCall(id=f"mdc_{number}", status=code, duration_ms=1, started_at=now - timedelta(minutes=age))
            call.provider_id, call.error = provider.id, "The key is wrong."
            tx.session.add(call)
    texts = {
        problem["text"]: (problem["severe"], problem["target"]) for problem in (await read(world, admin))["problems"]
    }
    assert texts["No sandbox can be created. The machine is full: 1 MiB is left."] == (True, "sandboxes")
    assert texts["Snapshots are not published in the layer store. The bucket is gone."] == (False, None)
    assert texts["The repository of shop cannot be used. The token has expired."] == (False, "project")
    assert texts["2 sandboxes have failed. Full."] == (False, "sandboxes")
    assert any(text.startswith("Little disk space is left") and severe for text, (severe, _) in texts.items())
    assert texts["A request to Anthropic failed in the last hour. The key is wrong."] == (False, "models")
    assert len(texts) == 6


async def test_an_endpoint_that_is_not_sandyards_has_no_report(
    world: World, admin: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_as_engine(world, monkeypatch, {"status": "fine"})
    found = await read(world, admin)
    assert found["engine"] is None and found["engineError"] is None and found["problems"] == []


async def test_queues_and_slow_work(world: World, admin: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = {"operation": "driver.create", "sandbox": "isbx", "seconds": 7.5, "endedAt": 1, "error": "It is full."}
    answer_as_engine(world, monkeypatch, REPORT | {"slowOperations": [slow]})
    async with world.database.transaction() as tx:
        operation = GitOperation(id="gop_1", kind="clone", status="running", arguments={}, attempts=1)
        operation.created_at = operation.started_at = get_time(world.clock) - timedelta(minutes=5)
        waiting = GitOperation(id="gop_2", kind="push", status="queued", arguments={}, attempts=0)
        waiting.created_at = get_time(world.clock) - timedelta(minutes=3)
        tx.session.add_all((operation, waiting, make_sandbox("sbx_1", admin, world, "provisioning")))
    found = await read(world, admin)
    queues = {queue["name"]: (queue["waiting"], queue["running"]) for queue in found["queues"]}
    assert queues["git"] == (1, 1) and queues["sandboxes"] == (1, 0) and queues["turns"] == (0, 0)
    assert found["engine"]["sandboxes"]["running"] == 1
    assert [work["text"] for work in found["slow"]] == ["Git: clone", "Engine: driver.create of isbx"]
    assert found["slow"][1]["seconds"] == 7.5 and found["slow"][1]["error"] == "It is full."
    async with client(world.app()) as web:
        metrics = (await web.get("/metrics")).text
    assert 'sandyard_queue_waiting{queue="git"} 1.0' in metrics
    assert 'sandyard_queue_oldest_seconds{queue="git"} 180.0' in metrics
    assert 'sandyard_queue_oldest_seconds{queue="turns"} 0.0' in metrics
