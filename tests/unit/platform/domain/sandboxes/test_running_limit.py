"""The limit on the sandboxes that one user may have running."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.clock import SystemClock, get_time
from sandyard.kit.errors import ForbiddenError
from sandyard.kit.ids import make_random_id
from sandyard.platform.db.models import ModelCall, Project, Sandbox, User
from sandyard.platform.domain.instance.quotas import QuotaService
from sandyard.platform.domain.models.ledger import Ledger
from sandyard.platform.domain.projects.egress import Allowed
from sandyard.platform.domain.projects.model import ProjectSettings
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import NewSandbox, Status, utc_now
from sandyard.platform.domain.sandboxes.running_limit import QuotaExceededError, RunningLimitError
from sandyard.platform.domain.users.model import Principal
from sandyard.platform.domain.users.quotas import UserQuotas
from tests.unit.platform.world import Person, World

LIMIT = 2


class Engine:
    """An engine that does everything at once."""

    async def create(self, **_: Any) -> Any:
        return SimpleNamespace(id=make_random_id("eng_"), isolation="gvisor")

    async def fork(self, engine_id: str, timeout_s: int, count: int) -> list[Any]:
        return [SimpleNamespace(id=make_random_id("eng_"), isolation="gvisor", containers=False) for _ in range(count)]

    async def set_network(self, engine_id: str, allowed: Allowed) -> None: ...
    async def pause(self, engine_id: str) -> None: ...
    async def resume(self, engine_id: str, timeout_s: int) -> None: ...
    async def kill(self, engine_id: str) -> None: ...


class LimitHarness:
    def __init__(self, world: World, owner: Person, limit: int = LIMIT) -> None:
        self.owner_id = owner.principal.user_id
        self.lifecycle = Lifecycle(
            world.database,
            cast(Any, Engine()),
            cast(Any, None),
            Activity(SystemClock()),
            instance="x",
            idle_margin_s=1,
            resolve_quotas=lambda quotas: quotas.model_copy(update={"running_sandboxes": limit or None}),
        )

    async def create(self, owner_id: str | None = None, *, internal: bool = False) -> Sandbox:
        wanted = NewSandbox(template="base", idle_seconds=300, internal=internal)
        row = await self.lifecycle.create(owner_id or self.owner_id, wanted)
        return await self.lifecycle.wait_until_provisioned(row.id)

    async def pause(self, row: Sandbox) -> Sandbox:
        return await self.lifecycle.pause(row)


@pytest.fixture
async def harness(world: World) -> LimitHarness:
    return LimitHarness(world, await world.create_person("ann"))


async def test_limits_creation(world: World, harness: LimitHarness) -> None:
    rows = [await harness.create() for _ in range(LIMIT)]
    with pytest.raises(RunningLimitError, match=r"limit of 2 running sandboxes.*Pause or delete") as refused:
        await harness.create()
    assert (refused.value.status, refused.value.code) == (429, "too_many_sandboxes")
    await harness.create((await world.create_person("bob")).principal.user_id)
    await harness.pause(rows[0])
    await harness.create()
    await harness.lifecycle.destroy(rows[1])
    await harness.create()


async def test_limits_resuming(harness: LimitHarness) -> None:
    paused = await harness.pause(await harness.create())
    others = [await harness.create() for _ in range(LIMIT)]
    with pytest.raises(RunningLimitError):
        await harness.lifecycle.ensure_running(paused)
    assert (await harness.lifecycle.resume(paused, to_reconcile=True)).status == "running"
    await harness.pause(others[0])
    await harness.lifecycle.ensure_running(others[1])


async def test_limits_forks(harness: LimitHarness) -> None:
    parent, wanted = await harness.create(), NewSandbox(template="base", idle_seconds=300)
    copies = await harness.lifecycle.fork_all(harness.owner_id, parent, [wanted] * LIMIT)
    assert sorted(isinstance(copy, RunningLimitError) for copy in copies) == [False, True]
    with pytest.raises(RunningLimitError):
        await harness.lifecycle.fork(harness.owner_id, parent, wanted)


async def test_concurrent_requests_do_not_exceed_limit(harness: LimitHarness) -> None:
    paused = [await harness.pause(await harness.create()) for _ in range(3)]
    results = await asyncio.gather(
        *(harness.lifecycle.resume(row) for row in paused),
        *(harness.create() for _ in range(3)),
        return_exceptions=True,
    )
    assert sum(isinstance(result, RunningLimitError) for result in results) == 6 - LIMIT
    assert len(await harness.lifecycle.repository.list_with_status(Status.RUNNING)) == LIMIT


async def test_does_not_count_sandboxes_of_the_platform(harness: LimitHarness) -> None:
    for _ in range(LIMIT):
        await harness.create(internal=True)
        await harness.create()
    await harness.create(internal=True)


async def test_zero_is_no_limit(world: World) -> None:
    harness = LimitHarness(world, await world.create_person("cid"), limit=0)
    for _ in range(LIMIT + 1):
        await harness.create()


SIZED = SimpleNamespace(cpu_count=2, memory_mb=1024)


async def set_quotas(world: World, owner_id: str, **quotas: int) -> None:
    async with world.database.transaction() as tx:
        user = await tx.session.get(User, owner_id)
        assert user is not None
        user.quotas = UserQuotas(**quotas).model_dump(by_alias=True, exclude_none=True)


@pytest.fixture
async def sized(world: World, monkeypatch: pytest.MonkeyPatch) -> LimitHarness:
    """Sandboxes have two processors and 1 GiB of memory. There is no limit on their number."""

    async def create(self: Engine, **_: Any) -> Any:
        return SimpleNamespace(id=make_random_id("eng_"), isolation="gvisor", **vars(SIZED))

    monkeypatch.setattr(Engine, "create", create)
    return LimitHarness(world, await world.create_person("ann"), limit=0)


@pytest.mark.parametrize(
    ("quotas", "message"),
    [
        ({"cpus": 5}, r"limit of 5 processors.*per user.*4 are in use, and it needs 2.*ask an administrator"),
        ({"memory_mb": 2048}, r"limit of 2048 MiB of memory.*2048 are in use, and it needs 1024"),
    ],
)
async def test_limits_what_running_sandboxes_have(
    world: World, sized: LimitHarness, quotas: dict[str, int], message: str
) -> None:
    await set_quotas(world, sized.owner_id, **quotas)
    first = await sized.create()
    await sized.create()
    with pytest.raises(QuotaExceededError, match=message) as refused:
        await sized.create()
    assert (refused.value.status, refused.value.code) == (429, "quota_exceeded")
    await sized.create((await world.create_person("bob")).principal.user_id)
    await sized.pause(first)
    await sized.create()
    with pytest.raises(QuotaExceededError):
        await sized.lifecycle.resume(first)


async def test_concurrent_requests_cannot_exceed_a_limit(world: World, sized: LimitHarness) -> None:
    await sized.create()
    await set_quotas(world, sized.owner_id, cpus=6)
    outcomes = await asyncio.gather(*(sized.create() for _ in range(5)), return_exceptions=True)
    assert sum(isinstance(outcome, Sandbox) for outcome in outcomes) == 2
    assert sum(isinstance(outcome, QuotaExceededError) for outcome in outcomes) == 3


async def test_creates_one_sandbox_at_a_time_while_the_size_is_limited_and_unknown(
    world: World, sized: LimitHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await set_quotas(world, sized.owner_id, cpus=4)
    gate, create = asyncio.Event(), Engine.create

    async def create_later(self: Engine, **values: Any) -> Any:
        await gate.wait()
        return await create(self, **values)

    monkeypatch.setattr(Engine, "create", create_later)
    wanted = NewSandbox(template="base", idle_seconds=300)
    first = await sized.lifecycle.create(sized.owner_id, wanted)
    with pytest.raises(QuotaExceededError, match="The size of sandboxes of the template base is not known"):
        await sized.create()
    gate.set()
    await sized.lifecycle.wait_until_provisioned(first.id)
    await sized.create()
    with pytest.raises(QuotaExceededError, match="4 are in use"):
        await sized.create()


async def test_limits_disk_space_including_that_of_paused_sandboxes(world: World, sized: LimitHarness) -> None:
    row = await sized.pause(await sized.create())
    await set_quotas(world, sized.owner_id, disk_mb=100)
    await sized.create()
    async with world.database.transaction() as tx:
        stored = await tx.session.get(Sandbox, row.id)
        assert stored is not None
        stored.usage = cast(Any, {"disk_bytes": 120 << 20})
    with pytest.raises(QuotaExceededError, match=r"limit of 100 MiB of disk space.*120 MiB are used"):
        await sized.create()


async def test_limits_the_sandboxes_of_a_project(world: World, sized: LimitHarness) -> None:
    settings = ProjectSettings.model_validate({"quotas": {"cpus": 4, "runningSandboxes": 5}})
    now = utc_now()
    async with world.database.transaction() as tx:
        tx.session.add(
            Project(
                id="prj_1",
                owner_id=sized.owner_id,
                name="p",
                settings=settings.to_column(),
                created_at=now,
                updated_at=now,
            )
        )
    bob = (await world.create_person("bob")).principal.user_id

    async def create(owner_id: str) -> Sandbox:
        wanted = NewSandbox(template="base", idle_seconds=300, project_id="prj_1")
        row = await sized.lifecycle.create(owner_id, wanted)
        return await sized.lifecycle.wait_until_provisioned(row.id)

    await create(sized.owner_id)
    await create(bob)
    with pytest.raises(QuotaExceededError, match=r"of the project p .*raise the limit in the project's settings"):
        await create(bob)
    await sized.create(bob)


async def test_use_is_shown_next_to_the_limits(world: World, sized: LimitHarness) -> None:
    admin = await world.create_person("root", "admin")
    ann = Principal(sized.owner_id, "ann", "member", "test")
    await sized.create()
    async with world.database.transaction() as tx:
        tx.session.add(
            ModelCall(
                id="mcl_1", owner_id=ann.user_id, status=200, input_tokens=70, output_tokens=30, cost_micros=2_500_000,
                started_at=get_time(world.clock), duration_ms=1,
            )
        )  # fmt: skip
    service = QuotaService(
        world.database, world.projects, Ledger(world.database, world.clock), world.settings, world.clock
    )
    await service.set_user(admin.principal, ann.user_id, UserQuotas(cpus=8, running_sandboxes=0, monthly_usd=10))
    state = await service.read_user(ann, ann.user_id)
    assert {item.name.value: (item.used, item.limit) for item in state.items} == {
        "runningSandboxes": (1, None),
        "cpus": (2, 8),
        "memoryMb": (1024, None),
        "diskMb": (0, None),
        "monthlyUsd": (2.5, 10),
        "monthlyTokens": (100, None),
    }
    with pytest.raises(ForbiddenError):
        await service.set_user(ann, ann.user_id, UserQuotas())
    with pytest.raises(ForbiddenError):
        await service.read_user(ann, admin.principal.user_id)
