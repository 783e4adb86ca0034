"""The pool of ready sandboxes: claimed without the driver, refilled in the background, released under pressure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.engine.contract import Condition, Isolation, Limits, NetworkPolicy
from sandyard.engine.sandboxes import components, service
from sandyard.engine.sandboxes.model import Defaults, Network, Template
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.harness import BASE, SandboxesHarness, expected_settings


@pytest.fixture
async def pooled_harness(tmp_path: Path) -> AsyncIterator[SandboxesHarness]:
    harness = SandboxesHarness(tmp_path, pool_size=3, memory_reserve_mb=1)
    await harness.start()
    await harness.settle()
    yield harness
    await harness.stop()


def count_creates(harness: SandboxesHarness) -> int:
    return [verb for verb, _ in harness.driver.calls].count("create")


async def test_claiming_a_ready_sandbox_does_not_call_the_driver(pooled_harness: SandboxesHarness) -> None:
    ready = set(pooled_harness.host.machines)
    assert len(ready) == 3 and pooled_harness.service.list().items == ()
    reached = pooled_harness.driver.hold("create")
    sandbox = await pooled_harness.create()
    assert sandbox.id in ready
    await pooled_harness.settle()
    await pooled_harness.clock.advance(1)
    await reached.wait()  # the refill has started
    pooled_harness.driver.clear_faults()
    await pooled_harness.settle()
    assert len(pooled_harness.host.machines) == 4


async def test_ready_sandboxes_have_their_settings_before_they_are_claimed(pooled_harness: SandboxesHarness) -> None:
    ready = {name: machine.init for name, machine in pooled_harness.host.machines.items()}
    sandbox = await pooled_harness.create()
    assert ready[sandbox.id] == pooled_harness.host.machines[sandbox.id].init == expected_settings(sandbox)


async def test_a_claim_with_variables_sends_them_to_the_agent(pooled_harness: SandboxesHarness) -> None:
    ready = set(pooled_harness.host.machines)
    sandbox = await pooled_harness.create(env={"A": "1"})
    assert sandbox.id in ready
    assert pooled_harness.host.machines[sandbox.id].init == expected_settings(sandbox, {"A": "1"})


async def test_requests_with_other_limits_or_network_bypass_the_pool(pooled_harness: SandboxesHarness) -> None:
    ready = set(pooled_harness.host.machines)
    for fields in ({"limits": Limits(memory_mb=99)}, {"network": Network(NetworkPolicy(False))}):
        sandbox = await pooled_harness.create(**fields)
        assert sandbox.id not in ready
    assert pooled_harness.host.machines[sandbox.id].policy == NetworkPolicy(False)


async def test_a_requested_template_gets_a_pool_until_it_is_unused(pooled_harness: SandboxesHarness) -> None:
    template = Template("other0000", ("tpl:o",), ("other",), {"T": "1"}, Defaults("root"))
    pooled_harness.templates.templates.append(template)
    first = await pooled_harness.create(template="other")
    await pooled_harness.settle()
    ready = [
        machine
        for machine in pooled_harness.host.machines.values()
        if machine.spec.layers == ("tpl:o",) and machine.spec.id != first.id
    ]
    assert len(ready) == 3
    second = await pooled_harness.create(template="other")
    (claimed,) = [candidate for candidate in ready if candidate.spec.id == second.id]
    assert claimed.init == expected_settings(second, {"T": "1"}, "root")
    await pooled_harness.clock.advance(700)
    await pooled_harness.settle()
    remaining = [machine for machine in pooled_harness.host.machines.values() if machine.spec.layers == ("tpl:o",)]
    assert {item.spec.id for item in remaining} <= {first.id, second.id}
    assert (
        len([machine for machine in pooled_harness.host.machines.values() if machine.spec.layers == BASE.layers]) == 3
    )


async def test_a_rebuilt_template_gets_new_sandboxes(pooled_harness: SandboxesHarness) -> None:
    pooled_harness.templates.templates[0] = Template(BASE.id, ("tpl:new",), BASE.aliases)
    sandbox = await pooled_harness.create()
    assert pooled_harness.host.machines[sandbox.id].spec.layers == ("tpl:new",)


async def test_a_ready_sandbox_that_ends_is_replaced(pooled_harness: SandboxesHarness) -> None:
    dead = next(iter(pooled_harness.host.machines))
    pooled_harness.host.end(dead)
    await pooled_harness.settle()
    assert dead not in pooled_harness.host.machines and len(pooled_harness.host.machines) == 3


async def test_a_claimed_sandbox_is_watched(pooled_harness: SandboxesHarness) -> None:
    sandbox = await pooled_harness.create()
    pooled_harness.host.end(sandbox.id, "oops")
    await pooled_harness.settle()
    assert "oops" in (pooled_harness.service.get(sandbox.id).memory_lost or "")


async def test_memory_pressure_empties_the_pool(
    pooled_harness: SandboxesHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandyard.engine.sandboxes.capacity.CACHE_SECONDS", -1)
    pooled_harness.available_memory = 0
    await pooled_harness.clock.advance(3)
    await pooled_harness.settle()
    assert pooled_harness.host.machines == {}
    before = count_creates(pooled_harness)
    await pooled_harness.clock.advance(20)
    assert count_creates(pooled_harness) == before
    pooled_harness.available_memory = 1 << 40
    await pooled_harness.clock.advance(3)
    await pooled_harness.settle()
    assert len(pooled_harness.host.machines) == 3


async def test_refilling_waits_for_clients(pooled_harness: SandboxesHarness) -> None:
    reached = pooled_harness.driver.hold("create")
    tasks = [asyncio.create_task(pooled_harness.create(limits=Limits(memory_mb=99))) for _ in range(3)]
    await reached.wait()
    await pooled_harness.create()  # taken from the pool, which then needs a refill
    await pooled_harness.settle()
    assert count_creates(pooled_harness) == 6  # three at the start and three for clients, none for the pool
    pooled_harness.driver.clear_faults()
    await asyncio.gather(*tasks)
    await pooled_harness.settle()
    assert count_creates(pooled_harness) == 6  # enough are left, and a client was active a moment ago
    await pooled_harness.clock.advance(1)
    await pooled_harness.settle()
    assert count_creates(pooled_harness) == 7


async def test_a_failed_refill_is_retried_later(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=2)
    await harness.start(open_=False)
    harness.driver.fail("create", SandyardError("not now"))
    await harness.service.open()
    await harness.settle()
    assert count_creates(harness) == 1
    harness.driver.clear_faults()
    await harness.clock.advance(3)
    await harness.settle()
    assert len(harness.host.machines) == 2
    await harness.stop()
    assert harness.host.machines == {}


async def test_the_pool_and_clients_together_respect_the_sandbox_limit(tmp_path: Path) -> None:
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


async def test_a_burst_uses_the_ready_sandboxes_and_creates_the_rest(pooled_harness: SandboxesHarness) -> None:
    created = await asyncio.gather(*(pooled_harness.create() for _ in range(20)))
    assert len({item.id for item in created}) == 20
    await pooled_harness.settle()
    await pooled_harness.clock.advance(1)
    await pooled_harness.settle()
    assert len(pooled_harness.host.machines) == 23


async def test_the_pool_prepares_no_sandboxes_from_snapshots(pooled_harness: SandboxesHarness) -> None:
    snapshot = await pooled_harness.service.snapshot((await pooled_harness.create()).id)
    sandbox = await pooled_harness.create(template=snapshot.id)
    await pooled_harness.settle()
    based_on_snapshot = [
        machine for machine in pooled_harness.host.machines.values() if f"snap:{snapshot.id}" in machine.spec.layers
    ]
    assert [item.spec.id for item in based_on_snapshot] == [sandbox.id]


async def test_pooled_sandboxes_with_gvisor_are_frozen_until_they_are_claimed(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=3, pool_gvisor_size=2, gvisor=True, min_isolation="gvisor")
    await harness.start()
    await harness.settle()
    assert [machine.condition for machine in harness.host.machines.values()] == [Condition.FROZEN] * 2
    ready = set(harness.host.machines)
    sandbox = await harness.create()
    assert sandbox.id in ready
    assert harness.host.machines[sandbox.id].condition is Condition.RUNNING
    assert sandbox.isolation is Isolation.GVISOR
    await harness.stop()


async def test_stop_waits_for_the_removal_of_the_sandbox_that_is_being_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver with a running sandbox would leave its mounts and cgroups on the machine."""
    monkeypatch.setattr(service, "CLOSE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(components, "BACKGROUND_TIMEOUT_S", 0.05)
    harness = SandboxesHarness(tmp_path, pool_size=1, pool_gvisor_size=1, gvisor=True, min_isolation="gvisor")
    await harness.start()
    await harness.driver.hold("freeze").wait()  # created, and not frozen yet
    kill_started = harness.driver.hold("kill")

    async def finish_late() -> None:
        await kill_started.wait()
        await asyncio.sleep(0.2)
        harness.driver.clear_faults()

    finishing = asyncio.create_task(finish_late())
    await harness.service.close()
    harness.database.close()
    await finishing
    assert harness.host.machines == {}
