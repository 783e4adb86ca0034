"""The limit on the sandboxes that one user may have running."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandyard.kit.clock import SystemClock
from sandyard.kit.ids import random_id
from sandyard.platform.db.models import Sandbox
from sandyard.platform.domain.projects.egress import Allowed
from sandyard.platform.domain.sandboxes.activity import Activity
from sandyard.platform.domain.sandboxes.lifecycle import Lifecycle
from sandyard.platform.domain.sandboxes.model import NewSandbox, Status
from sandyard.platform.domain.sandboxes.running_limit import RunningLimitError
from tests.unit.platform.world import Person, World

LIMIT = 2


class Engine:
    """An engine that does everything at once."""

    async def create(self, **_: Any) -> Any:
        return SimpleNamespace(id=random_id("eng_"), isolation="gvisor")

    async def fork(self, engine_id: str, timeout_s: int, count: int) -> list[Any]:
        return [SimpleNamespace(id=random_id("eng_"), isolation="gvisor", containers=False) for _ in range(count)]

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
            running_per_user=limit,
        )

    async def create(self, owner_id: str | None = None, *, internal: bool = False) -> Sandbox:
        wanted = NewSandbox(template="base", idle_seconds=300, internal=internal)
        row = await self.lifecycle.create(owner_id or self.owner_id, wanted)
        return await self.lifecycle.wait_until_provisioned(row.id)

    async def pause(self, row: Sandbox) -> Sandbox:
        return await self.lifecycle.pause(row)


@pytest.fixture
async def harness(world: World) -> LimitHarness:
    return LimitHarness(world, await world.person("ann"))


async def test_limits_creation(world: World, harness: LimitHarness) -> None:
    rows = [await harness.create() for _ in range(LIMIT)]
    with pytest.raises(RunningLimitError, match=r"limit of 2 running sandboxes.*Pause or delete") as refused:
        await harness.create()
    assert (refused.value.status, refused.value.code) == (429, "too_many_sandboxes")
    await harness.create((await world.person("bob")).principal.user_id)
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
    assert sum(isinstance(one, RunningLimitError) for one in results) == 6 - LIMIT
    assert len(await harness.lifecycle.repository.list_with_status(Status.RUNNING)) == LIMIT


async def test_does_not_count_sandboxes_of_the_platform(harness: LimitHarness) -> None:
    for _ in range(LIMIT):
        await harness.create(internal=True)
        await harness.create()
    await harness.create(internal=True)


async def test_zero_is_no_limit(world: World) -> None:
    harness = LimitHarness(world, await world.person("cid"), limit=0)
    for _ in range(LIMIT + 1):
        await harness.create()
