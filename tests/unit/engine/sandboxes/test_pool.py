"""Ready sandboxes: claimed without the driver, refilled behind the clients' backs, given back under pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.engine.contract import Limits, NetworkPolicy
from sandyard.engine.sandboxes.model import Defaults, Network, Template
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.harness import BASE, SandboxesHarness, expected_settings


@pytest.fixture
async def pooled(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path, pool_size=3)
    await harness.start()
    await harness.settle()
    yield harness
    await harness.stop()


def creates(harness: SandboxesHarness) -> int:
    return [verb for verb, _ in harness.driver.calls].count("create")


async def test_a_claim_asks_the_driver_for_nothing(pooled: SandboxesHarness) -> None:
    ready = set(pooled.host.machines)
    assert len(ready) == 3 and pooled.service.list().items == ()
    reached = pooled.driver.held("create")
    sandbox = await pooled.create()
    assert sandbox.id in ready
    await pooled.settle()
    await pooled.clock.advance(1)
    await reached.wait()  # the refill has begun
    pooled.driver.heal()
    await pooled.settle()
    assert len(pooled.host.machines) == 4


async def test_ready_ones_know_who_they_are(pooled: SandboxesHarness) -> None:
    ready = {name: machine.init for name, machine in pooled.host.machines.items()}
    sandbox = await pooled.create()
    assert ready[sandbox.id] == pooled.host.machines[sandbox.id].init == expected_settings(sandbox)


async def test_a_claim_with_variables_tells_them(pooled: SandboxesHarness) -> None:
    ready = set(pooled.host.machines)
    sandbox = await pooled.create(env={"A": "1"})
    assert sandbox.id in ready
    assert pooled.host.machines[sandbox.id].init == expected_settings(sandbox, {"A": "1"})


async def test_what_is_not_default_is_made_to_measure(pooled: SandboxesHarness) -> None:
    ready = set(pooled.host.machines)
    for fields in ({"limits": Limits(memory_mb=99)}, {"network": Network(NetworkPolicy(False))}):
        sandbox = await pooled.create(**fields)
        assert sandbox.id not in ready
    assert pooled.host.machines[sandbox.id].policy == NetworkPolicy(False)


async def test_a_template_that_is_asked_for_gets_a_pool_and_loses_it(pooled: SandboxesHarness) -> None:
    template = Template("other0000", ("tpl:o",), ("other",), {"T": "1"}, Defaults("root"))
    pooled.templates.templates.append(template)
    first = await pooled.create(template="other")
    await pooled.settle()
    ready = [one for one in pooled.host.machines.values() if one.spec.layers == ("tpl:o",) and one.spec.id != first.id]
    assert len(ready) == 3
    second = await pooled.create(template="other")
    (claimed,) = [one for one in ready if one.spec.id == second.id]
    assert claimed.init == expected_settings(second, {"T": "1"}, "root")
    await pooled.clock.advance(700)
    await pooled.settle()
    left = [one for one in pooled.host.machines.values() if one.spec.layers == ("tpl:o",)]
    assert {one.spec.id for one in left} <= {first.id, second.id}
    assert len([one for one in pooled.host.machines.values() if one.spec.layers == BASE.layers]) == 3


async def test_a_rebuilt_template_gets_new_ones(pooled: SandboxesHarness) -> None:
    pooled.templates.templates[0] = Template(BASE.id, ("tpl:new",), BASE.aliases)
    sandbox = await pooled.create()
    assert pooled.host.machines[sandbox.id].spec.layers == ("tpl:new",)


async def test_a_ready_one_that_ends_is_replaced(pooled: SandboxesHarness) -> None:
    dead = next(iter(pooled.host.machines))
    pooled.host.end(dead)
    await pooled.settle()
    assert dead not in pooled.host.machines and len(pooled.host.machines) == 3


async def test_a_claimed_one_is_watched(pooled: SandboxesHarness) -> None:
    sandbox = await pooled.create()
    pooled.host.end(sandbox.id, "oops")
    await pooled.settle()
    assert "oops" in (pooled.service.get(sandbox.id).memory_lost or "")


async def test_memory_pressure_empties_it(pooled: SandboxesHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandyard.engine.sandboxes.capacity._FRESH_S", -1)
    monkeypatch.setattr(pooled.service._components.capacity, "_memory", lambda: 0)
    pooled.service._components.capacity._settings = pooled.settings.model_copy(update={"memory_reserve_mb": 1})
    await pooled.clock.advance(3)
    await pooled.settle()
    assert pooled.host.machines == {}
    before = creates(pooled)
    await pooled.clock.advance(20)
    assert creates(pooled) == before
    monkeypatch.setattr(pooled.service._components.capacity, "_memory", lambda: 1 << 40)
    await pooled.clock.advance(3)
    await pooled.settle()
    assert len(pooled.host.machines) == 3


async def test_refilling_waits_for_clients(pooled: SandboxesHarness) -> None:
    reached = pooled.driver.held("create")
    tasks = [asyncio.create_task(pooled.create(limits=Limits(memory_mb=99))) for _ in range(3)]
    await reached.wait()
    await pooled.create()  # from the pool; wants a refill
    await pooled.settle()
    assert creates(pooled) == 6  # three at the start, three clients'; none for the pool
    pooled.driver.heal()
    await asyncio.gather(*tasks)
    await pooled.settle()
    assert creates(pooled) == 6  # there are enough, and a client was here a moment ago
    await pooled.clock.advance(1)
    await pooled.settle()
    assert creates(pooled) == 7


async def test_a_failing_refill_is_tried_again_later(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=2)
    await harness.start(open_=False)
    harness.driver.broken("create", SandyardError("not now"))
    await harness.service.open()
    await harness.settle()
    assert creates(harness) == 1
    harness.driver.heal()
    await harness.clock.advance(3)
    await harness.settle()
    assert len(harness.host.machines) == 2
    await harness.stop()
    assert harness.host.machines == {}


async def test_the_pool_leaves_the_last_places_to_clients(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=8, max_sandboxes=4)
    await harness.start()
    await harness.settle()
    assert len(harness.host.machines) == 4
    for _ in range(4):
        await harness.create()
    await harness.settle()
    assert len(harness.host.machines) == 4
    harness.check()
    await harness.stop()


async def test_a_burst_takes_what_is_ready_and_makes_the_rest(pooled: SandboxesHarness) -> None:
    made = await asyncio.gather(*(pooled.create() for _ in range(20)))
    assert len({one.id for one in made}) == 20
    await pooled.settle()
    await pooled.clock.advance(1)
    await pooled.settle()
    assert len(pooled.host.machines) == 23


async def test_nothing_ready_stands_on_a_snapshot(pooled: SandboxesHarness) -> None:
    snapshot = await pooled.service.snapshot((await pooled.create()).id)
    sandbox = await pooled.create(template=snapshot.id)
    await pooled.settle()
    standing = [one for one in pooled.host.machines.values() if f"snap:{snapshot.id}" in one.spec.layers]
    assert [one.spec.id for one in standing] == [sandbox.id]
