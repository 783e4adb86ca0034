"""A sandbox when its project's settings, its owner's access or the database change at the wrong moment."""

from __future__ import annotations

import asyncio
from datetime import datetime
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.kit.errors import ConflictError
from sandyard.platform.api.sandboxes import SandboxView
from sandyard.platform.db.database import DatabaseUnavailableError
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.projects.egress import Allowed
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.e2b import EngineQuotaError
from sandyard.platform.domain.sandboxes.lifecycle import CREATIONS_PER_OWNER, Lifecycle
from sandyard.platform.domain.sandboxes.model import NewSandbox, OwnerWithoutAccessError, utc_now
from tests.unit.platform.world import Person, World

MAX_COPIES = 2
"""How many copies the engine can make at once."""


class Engine:
    """Sandboxes that start at once, what each may connect to, and what else was done to them."""

    def __init__(self) -> None:
        self.allowed: list[Allowed] = []
        self.calls: list[str] = []

    async def create(self, *, allowed: Allowed, **_: Any) -> Any:
        self.allowed.append(allowed)
        return SimpleNamespace(id="eng_1", isolation="gvisor")

    async def set_network(self, engine_id: str, allowed: Allowed) -> None:
        self.allowed.append(allowed)

    async def pause(self, engine_id: str) -> None:
        self.calls.append("pause")

    async def resume(self, engine_id: str, timeout_s: int) -> None:
        self.calls.append("resume")

    async def kill(self, engine_id: str) -> None:
        self.calls.append("kill")

    async def fork(self, engine_id: str, timeout_s: int, count: int) -> list[Any]:
        self.calls.append("fork")
        numbers = range(2, count + 2)
        made = [SimpleNamespace(id=f"eng_{number}", isolation="namespace", containers=True) for number in numbers]
        return [*made[:MAX_COPIES], *(EngineQuotaError() for _ in made[MAX_COPIES:])]


class LifecycleHarness:
    def __init__(self, world: World, owner: Person, project_id: str) -> None:
        self.world, self.owner, self.project_id = world, owner, project_id
        self.engine = Engine()
        self.lifecycle = Lifecycle(
            world.database, cast(Any, self.engine), cast(Any, None), Activity(SystemClock()), instance="x", idle_margin_s=1
        )  # fmt: skip

    async def allow(self, *hosts: str) -> None:
        settings = ProjectSettings.model_validate({"network": {"mode": "listed", "allow": hosts}})
        await self.world.projects.update(self.owner.principal, self.project_id, settings=settings)

    async def sandbox(self, owner: Person | None = None, *, internal: bool = False) -> Sandbox:
        wanted = NewSandbox(template="base", idle_seconds=300, project_id=self.project_id, internal=internal)
        row = await self.lifecycle.create((owner or self.owner).principal.user_id, wanted)
        return await self.lifecycle.wait_until_provisioned(row.id)


@pytest.fixture
async def harness(world: World) -> LifecycleHarness:
    owner = await world.create_person("ann")
    project = await world.projects.create(owner.principal, "site")
    return LifecycleHarness(world, owner, project.id)


async def test_isolation_level_of_sandbox_and_of_its_fork_is_recorded(harness: LifecycleHarness) -> None:
    sandbox = await harness.sandbox()
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=harness.project_id)
    fork = await harness.lifecycle.fork(harness.owner.principal.user_id, sandbox, wanted)
    assert [SandboxView.from_row(row).isolation for row in (sandbox, fork)] == ["gvisor", "namespace"]


async def test_short_database_outage_does_not_fail_sandbox(
    harness: LifecycleHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.platform.db.retry.RETRY_S", 0)
    real, errors = harness.lifecycle.load_allowed, [DatabaseUnavailableError()]

    async def shaky(row: Sandbox) -> Allowed:
        if errors:
            raise errors.pop()
        return await real(row)

    monkeypatch.setattr(harness.lifecycle, "load_allowed", shaky)
    assert (await harness.sandbox()).status == "running"


class Lock(asyncio.Lock):
    """The lock of a sandbox that somebody else is changing. `wanted` is set when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        if self.locked():
            self.wanted.set()
        return await super().acquire()


@pytest.mark.parametrize("status", ["running", "paused"])
async def test_applies_changes_made_while_waiting_for_lock(harness: LifecycleHarness, status: str) -> None:
    """The newest settings are applied, and only to a sandbox that still runs."""
    row = await harness.sandbox()
    await harness.allow("one.example.org")
    lock = harness.lifecycle.locks[row.id] = Lock()
    async with lock:
        applying = asyncio.create_task(harness.lifecycle.apply_network(harness.project_id))
        await lock.wanted.wait()
        await harness.allow("two.example.org")
        await harness.lifecycle.repository.set_fields(row.id, status=status)
    await applying
    expected: list[Allowed] = [["two.example.org"]] if status == "running" else []
    assert harness.engine.allowed[1:] == expected
    known = await harness.lifecycle.repository.get(row.id)
    assert known.network == (expected[0] if expected else None)


@pytest.mark.parametrize("status", ["running", "paused"])
async def test_nobody_uses_sandbox_of_removed_owner(harness: LifecycleHarness, status: str) -> None:
    lifecycle, projects, ann = harness.lifecycle, harness.world.projects, harness.owner.principal
    bob = await harness.world.create_person("bob")
    await projects.add_member(ann, harness.project_id, bob.principal.user_id)
    row = await harness.sandbox(bob)
    if status == "paused":
        await lifecycle.pause(row)

    async def use() -> None:
        async with lifecycle.using(row):
            pass

    async def call() -> None:
        async def verb(engine_id: str) -> None:
            harness.engine.calls.append("use")

        await lifecycle.call(row, verb)

    async def fork() -> None:
        wanted = NewSandbox(template="base", idle_seconds=300, project_id=harness.project_id)
        await lifecycle.fork(bob.principal.user_id, row, wanted)

    await use()
    await lifecycle.repository.set_fields(row.id, status=status)
    await projects.remove_member(ann, harness.project_id, bob.principal.user_id)
    harness.engine.calls.clear()
    for attempt in (use, call, fork, lambda: lifecycle.ensure_running(row), lambda: lifecycle.resume(row)):
        with pytest.raises(OwnerWithoutAccessError) as refusal:
            await attempt()
        assert refusal.value.status == 403
    assert harness.engine.calls == []
    await projects.add_member(ann, harness.project_id, bob.principal.user_id)
    assert await lifecycle.ensure_running(row) == "eng_1"


async def test_sandbox_below_its_projects_isolation_is_not_forked(harness: LifecycleHarness) -> None:
    row = await harness.sandbox()
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=harness.project_id)

    async def fork(required: str) -> Sandbox:
        settings = ProjectSettings.model_validate({"isolation": required})
        await harness.world.projects.update(harness.owner.principal, harness.project_id, settings=settings)
        harness.engine.calls.clear()
        return await harness.lifecycle.fork(harness.owner.principal.user_id, row, wanted)

    with pytest.raises(
        ConflictError, match=r"level is namespace, but the project now requires gvisor. Create a new sandbox"
    ):
        await fork("gvisor")
    assert harness.engine.calls == ["fork", "kill"]
    assert (await fork("namespace")).status == "running"
    assert harness.engine.calls == ["fork"]


async def test_sandbox_with_containers_is_not_forked_if_its_project_forbids_them(harness: LifecycleHarness) -> None:
    row = await harness.sandbox()
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=harness.project_id)

    async def fork(containers: bool | None) -> Sandbox:
        settings = ProjectSettings.model_validate({"containers": containers})
        await harness.world.projects.update(harness.owner.principal, harness.project_id, settings=settings)
        harness.engine.calls.clear()
        return await harness.lifecycle.fork(harness.owner.principal.user_id, row, wanted)

    with pytest.raises(ConflictError, match="its project no longer allows that"):
        await fork(containers=False)
    assert harness.engine.calls == ["fork", "kill"]
    assert (await fork(containers=None)).status == "running"


async def test_sandbox_of_removed_owner_is_saved_paused_and_destroyed(harness: LifecycleHarness) -> None:
    lifecycle, ann = harness.lifecycle, harness.owner.principal
    bob = await harness.world.create_person("bob")
    await harness.world.projects.add_member(ann, harness.project_id, bob.principal.user_id)
    row = await harness.sandbox(bob)
    await harness.world.projects.remove_member(ann, harness.project_id, bob.principal.user_id)

    async def save(row: Sandbox) -> None:
        harness.engine.calls.append("save")

    lifecycle.before_pause.append(save)
    lifecycle.before_destroy.append(save)
    row = await lifecycle.pause(row)
    assert row.status == "paused"
    await lifecycle.destroy(row)
    assert (await lifecycle.repository.get(row.id)).status == "destroyed"
    assert harness.engine.calls == ["save", "pause", "save", "kill"]


async def test_platform_uses_its_own_sandbox_of_removed_owner(harness: LifecycleHarness) -> None:
    row = await harness.sandbox(await harness.world.create_person("bob"), internal=True)
    assert await harness.lifecycle.ensure_running(row) == "eng_1"


async def test_copies_of_one_instant_succeed_or_fail_independently(harness: LifecycleHarness) -> None:
    row = await harness.sandbox()
    prepared: list[tuple[str, str | None]] = []

    async def prepare(parent: Sandbox, begun: datetime, copy: Sandbox) -> None:
        assert begun < utc_now()
        prepared.append((parent.id, copy.engine_id))

    harness.lifecycle.after_fork.append(prepare)
    wanted = NewSandbox(template="base", idle_seconds=300, project_id=harness.project_id)
    first, second, third = await harness.lifecycle.fork_all(harness.owner.principal.user_id, row, [wanted] * 3)
    assert isinstance(first, Sandbox) and isinstance(second, Sandbox) and isinstance(third, EngineQuotaError)
    assert harness.engine.calls == ["fork"]
    assert prepared == [(row.id, "eng_2"), (row.id, "eng_3")]
    assert {(await harness.lifecycle.repository.get(copy.id)).status for copy in (first, second)} == {"running"}


class BusyEngine(Engine):
    """An engine that creates and forks nothing until `go` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()
        self.requested: list[str] = []

    async def create(self, *, idempotency_key: str, allowed: Allowed, **_: Any) -> Any:
        self.requested.append(idempotency_key)
        await self.go.wait()
        return SimpleNamespace(id=f"eng_{idempotency_key}", isolation="gvisor")

    async def fork(self, engine_id: str, timeout_s: int, count: int) -> list[Any]:
        self.requested.append("fork")
        await self.go.wait()
        return await super().fork(engine_id, timeout_s, count)


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0.002)


async def test_burst_of_a_user_does_not_occupy_the_engine(harness: LifecycleHarness) -> None:
    lifecycle, ann = harness.lifecycle, harness.owner.principal.user_id
    wanted = NewSandbox(template="base", idle_seconds=300)
    parent = await harness.sandbox()
    lifecycle.engine = engine = cast(Any, BusyEngine())
    mine = [await lifecycle.create(ann, wanted) for _ in range(CREATIONS_PER_OWNER + 2)]
    fork = asyncio.create_task(lifecycle.fork(ann, parent, wanted))
    await settle()
    assert engine.requested == [row.idempotency_key for row in mine[:CREATIONS_PER_OWNER]]
    deleted, cancelled = asyncio.create_task(lifecycle.destroy(mine[-2])), lifecycle.provision(mine[-1].id)
    await settle()
    cancelled.cancel()

    bob = await harness.world.create_person("bob")
    other = await lifecycle.create(bob.principal.user_id, wanted)
    await settle()
    assert engine.requested[CREATIONS_PER_OWNER:] == [other.idempotency_key]
    assert (await lifecycle.repository.get(mine[-1].id)).status == "provisioning"

    engine.go.set()
    assert (await fork).status == "running"
    await deleted
    assert mine[-2].idempotency_key not in engine.requested
    assert (await lifecycle.wait_until_provisioned(mine[-1].id)).status == "running"
