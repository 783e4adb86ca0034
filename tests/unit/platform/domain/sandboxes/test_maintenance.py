"""Sandboxes of one owner whose calls never return do not delay the maintenance of others' sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.clock import ManualClock, SystemClock
from sandyard.platform.db.models import Attempt, Sandbox, Session, Task
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.e2b import EngineError, EngineState
from sandyard.platform.domain.sandboxes.lifecycle import INSTANCE, ROW, SLOTS_PER_OWNER, Lifecycle
from sandyard.platform.domain.sandboxes.maintenance import SandboxMaintenance
from sandyard.platform.domain.sandboxes.model import SANDBOX_LOST, NewSandbox, Status, utc_now
from tests.unit.platform.world import ROOT, Person, World

MANY = 2 * SLOTS_PER_OWNER
IDLE_S = 100
PATIENCE_S = 20.0


class Engine:
    """Calls for the `blocked` sandboxes never return."""

    def __init__(self) -> None:
        self.boxes: dict[str, Any] = {}
        self.blocked: set[str] = set()
        self.calls: list[tuple[str, str]] = []
        self.stranded: set[str] = set()
        self.refuses_hosts = False

    @property
    def hosts(self) -> Engine:
        return self

    async def list_stranded(self) -> frozenset[str]:
        if self.refuses_hosts:
            raise EngineError("This endpoint has another route of that name.")
        return frozenset(self.stranded)

    async def _call(self, verb: str, engine_id: str) -> None:
        self.calls.append((verb, engine_id))
        if engine_id in self.blocked:
            await asyncio.Event().wait()

    async def create(self, *, metadata: dict[str, str], **_: Any) -> Any:
        engine_id = f"eng_{len(self.boxes)}"
        box = SimpleNamespace(id=engine_id, isolation=None, metadata=metadata, state=EngineState.RUNNING)
        self.boxes[engine_id] = box
        return box

    async def list(self, _: dict[str, str]) -> list[Any]:
        return list(self.boxes.values())

    async def get_info(self, engine_id: str) -> Any:
        await self._call("get_info", engine_id)
        return self.boxes[engine_id]

    async def pause(self, engine_id: str) -> None:
        await self._call("pause", engine_id)

    async def kill(self, engine_id: str) -> None:
        await self._call("kill", engine_id)
        self.boxes.pop(engine_id, None)

    async def set_network(self, engine_id: str, _: Any) -> None:
        await self._call("set_network", engine_id)

    async def extend(self, engine_id: str, _: float) -> None:
        await self._call("extend", engine_id)

    async def get_usage(self, engine_id: str) -> None:
        await self._call("get_usage", engine_id)


class MaintenanceHarness:
    def __init__(self, world: World) -> None:
        self.world = world
        self.engine = Engine()
        self.clock = ManualClock()
        self.lifecycle = Lifecycle(
            world.database, cast(Any, self.engine), cast(Any, None), Activity(self.clock), instance="x", idle_margin_s=1
        )  # fmt: skip
        self.maintenance = SandboxMaintenance(
            world.database, self.lifecycle, world.settings, SystemClock(), stop_agent=self._stop_agent
        )

    async def _stop_agent(self, _: str) -> None:
        raise AssertionError

    async def sandbox(self, owner: Person, project_id: str | None = None, *, blocked: bool = False) -> Sandbox:
        wanted = NewSandbox(template="base", idle_seconds=IDLE_S, project_id=project_id)
        row = await self.lifecycle.create(owner.principal.user_id, wanted)
        row = await self.lifecycle.wait_until_provisioned(row.id)
        if blocked:
            self.engine.blocked.add(row.engine_id or "")
        return row

    async def wait_for_status(self, row: Sandbox, status: Status) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (await self.lifecycle.repository.get(row.id)).status != status:
                await asyncio.sleep(0.01)

    async def wait_for_call(self, verb: str, row: Sandbox) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while (verb, row.engine_id) not in self.engine.calls:
                await asyncio.sleep(0.01)


@pytest.fixture
async def harness(world: World) -> AsyncIterator[MaintenanceHarness]:
    made = MaintenanceHarness(world)
    yield made
    await made.lifecycle.close()


async def test_idle_pausing(harness: MaintenanceHarness) -> None:
    """The next round finds sandboxes of others too, and pauses no sandbox twice."""
    ann, bob = await harness.world.create_person("ann"), await harness.world.create_person("bob")
    blocked = [await harness.sandbox(ann, blocked=True) for _ in range(MANY)]
    for _ in range(2):
        row = await harness.sandbox(bob)
        await harness.clock.advance(IDLE_S + 1)
        async with asyncio.timeout(PATIENCE_S):
            await harness.maintenance.pause_idle()
        await harness.wait_for_status(row, Status.PAUSED)
    pauses = [
        engine_id for verb, engine_id in harness.engine.calls if verb == "pause" and engine_id in harness.engine.blocked
    ]
    assert len(pauses) == len(set(pauses)) == SLOTS_PER_OWNER < len(blocked)


async def test_requested_deletion(harness: MaintenanceHarness) -> None:
    ann, bob = await harness.world.create_person("ann"), await harness.world.create_person("bob")
    rows = [await harness.sandbox(ann, blocked=True) for _ in range(MANY)]
    rows.append(await harness.sandbox(bob))
    for row in rows:
        await harness.lifecycle.repository.set_fields(row.id, destroy_requested_at=utc_now())
    async with asyncio.timeout(PATIENCE_S):
        await harness.maintenance.reconcile()
    await harness.wait_for_status(rows[-1], Status.DESTROYED)


async def test_reconciliation(harness: MaintenanceHarness) -> None:
    ann, bob = await harness.world.create_person("ann"), await harness.world.create_person("bob")
    rows = [await harness.sandbox(ann, blocked=True) for _ in range(MANY)]
    rows.append(await harness.sandbox(bob))
    for row in rows:
        harness.engine.boxes[row.engine_id or ""].state = EngineState.PAUSED
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_S):
            await harness.maintenance.reconcile()
    assert harness.maintenance.reconciled.is_set()
    await harness.wait_for_status(rows[-1], Status.PAUSED)
    looks = [engine_id for verb, engine_id in harness.engine.calls if verb == "get_info"]
    assert all(looks.count(engine_id) <= 1 for engine_id in harness.engine.blocked), (
        "one reconciliation of each at a time"
    )


async def test_only_tasks_give_up_sandboxes_of_lost_hosts(harness: MaintenanceHarness) -> None:
    ann = await harness.world.create_person("ann")
    project = await harness.world.projects.create(ann.principal, "p")
    now = utc_now()
    card = {"description": "", "status": "in_progress", "position": 0, "priority": 0}
    async with harness.world.database.transaction() as tx:
        tx.add(Task(id="tsk_1", project_id=project.id, title="t", created_at=now, updated_at=now, **card))
    own, forked, of_task, of_other_host = [await harness.sandbox(ann) for _ in range(4)]
    for row in (forked, of_task, of_other_host):
        await harness.lifecycle.repository.set_fields(row.id, task_id="tsk_1")
    owner = {"owner_id": ann.principal.user_id, "task_id": "tsk_1", "updated_at": now}
    attempt = {"project_id": project.id, "agent": "a", "status": "running", "round": 1, "queued_at": now}
    for number, row in enumerate((of_task, of_other_host)):
        session_id = f"ses_{number}"
        async with harness.world.database.transaction() as tx:
            tx.add(Session(id=session_id, title="", template="base", created_at=now, sandbox_id=row.id, **owner))
            tx.add(Attempt(id=f"att_{number}", number=number, session_id=session_id, **attempt, **owner))
        await harness.lifecycle.repository.set_fields(row.id, session_id=session_id)
    harness.engine.refuses_hosts = True
    await harness.maintenance.reconcile()
    assert harness.maintenance.reconciled.is_set(), "the rest of the round is done"
    harness.engine.refuses_hosts = False
    harness.engine.stranded = {row.engine_id or "" for row in (own, forked, of_task)}
    await harness.maintenance.reconcile()
    await harness.wait_for_status(of_task, Status.ERROR)
    await harness.wait_for_call("kill", of_task)
    assert (await harness.lifecycle.repository.get(of_task.id)).error_code == SANDBOX_LOST
    for row in (own, forked, of_other_host):
        assert (await harness.lifecycle.repository.get(row.id)).status == Status.RUNNING


async def test_orphans(harness: MaintenanceHarness) -> None:
    ann = await harness.world.create_person("ann")
    lost = [await harness.sandbox(ann, blocked=True) for _ in range(MANY)]
    for row in lost:
        await harness.lifecycle.mark_lost(row.id)
    orphan = await harness.engine.create(metadata={INSTANCE: "x", ROW: "sbx_nobody"})
    for _ in range(2):
        async with asyncio.timeout(PATIENCE_S):
            await harness.maintenance.reconcile()
    async with asyncio.timeout(PATIENCE_S):
        while orphan.id in harness.engine.boxes:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("by_maintenance", [True, False])
async def test_network_settings(harness: MaintenanceHarness, by_maintenance: bool) -> None:
    """Also within a project."""
    projects, ann, bob = (
        harness.world.projects,
        await harness.world.create_person("ann"),
        await harness.world.create_person("bob"),
    )
    project = await projects.create(ann.principal, "site")
    await projects.add_member(ann.principal, project.id, bob.principal.user_id)
    for _ in range(MANY):
        await harness.sandbox(ann, project.id, blocked=True)
    row = await harness.sandbox(bob, project.id)
    settings = ProjectSettings.model_validate({"network": {"mode": "listed", "allow": ["one.example.org"]}})
    await projects.update(ann.principal, project.id, settings=settings)
    if by_maintenance:
        async with asyncio.timeout(PATIENCE_S):
            await harness.maintenance.reconcile()
    else:
        harness.lifecycle.tasks.spawn(harness.lifecycle.apply_network(project.id))
    await harness.wait_for_call("set_network", row)


async def test_health_check(harness: MaintenanceHarness) -> None:
    ann, bob = await harness.world.create_person("ann"), await harness.world.create_person("bob")
    for _ in range(MANY):
        await harness.sandbox(ann, blocked=True)
    row = await harness.sandbox(bob)
    async with asyncio.timeout(PATIENCE_S):
        await harness.maintenance.check_health()
    await harness.wait_for_call("get_usage", row)


async def test_pausing_after_lost_access(harness: MaintenanceHarness) -> None:
    ann, bob = await harness.world.create_person("ann"), await harness.world.create_person("bob")
    for _ in range(MANY):
        await harness.sandbox(ann, blocked=True)
    row = await harness.sandbox(bob)
    for person in (ann, bob):
        await harness.world.users.update(ROOT, person.principal.user_id, disabled=True)
    async with asyncio.timeout(PATIENCE_S):
        await harness.maintenance.stop_without_access()
    await harness.wait_for_status(row, Status.PAUSED)


async def test_sizes_of_sandboxes_from_an_earlier_version_are_recorded(
    world: World, harness: MaintenanceHarness
) -> None:
    row = await harness.sandbox(await world.create_person("ann"))
    assert (row.cpu_count, row.memory_mb) == (None, None)
    box = harness.engine.boxes[row.engine_id or ""]
    box.cpu_count, box.memory_mb = 4, 2048
    await harness.maintenance.reconcile()
    await harness.maintenance.wait()
    row = await harness.lifecycle.repository.get(row.id)
    assert (row.cpu_count, row.memory_mb) == (4, 2048)
