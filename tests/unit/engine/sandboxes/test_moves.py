"""Sandboxes move to another host."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandyard.engine.contract import Condition, Handle
from sandyard.engine.sandboxes.evacuation import EmptiedHost, Evacuation
from sandyard.engine.sandboxes.model import PauseKind, StartCommand, State
from sandyard.engine.sandboxes.mover import TRANSFER_S
from sandyard.kit.errors import BusyError, FullError, NotFoundError, SandyardError, UnsupportedError
from tests.unit.engine.sandboxes import harness as harness_module
from tests.unit.engine.sandboxes.harness import SandboxesHarness, expected_settings
from tests.unit.engine.sandboxes.two_hosts import OTHER, TwoHosts, TwoHostsDriver

REASON = "Its host is being drained"


@pytest.fixture
async def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[SandboxesHarness]:
    monkeypatch.setattr(harness_module, "DoubleDriver", TwoHostsDriver)
    harness = SandboxesHarness(tmp_path)
    await harness.start()
    yield harness
    await harness.stop()


async def move(harness: SandboxesHarness, sandbox_id: str) -> None:
    harness.driver.draining = True  # type: ignore[attr-defined]
    components = harness.service.components
    await components.mover.move(components.registry.get(sandbox_id), REASON)


async def test_a_running_sandbox_is_booted_on_another_host_under_its_id(harness: SandboxesHarness) -> None:
    created = await harness.create(env={"A": "b"})
    harness.host.machines[created.id].files = frozenset({"work"})
    await move(harness, created.id)
    await harness.settle()
    assert [*harness.host.machines] == [created.id + OTHER]
    machine = harness.host.machines[created.id + OTHER]
    assert (machine.condition, machine.files) == (Condition.RUNNING, {"work"})
    assert machine.init is not None
    settings = expected_settings(created, {"A": "b"})
    assert {key: machine.init[key] for key in settings} == settings
    moved = harness.service.get(created.id)
    assert (moved.state, moved.memory_lost, moved.ends_at) == (State.RUNNING, REASON, created.ends_at)
    assert (moved.access_token, moved.metadata) == (created.access_token, created.metadata)
    assert harness.interrupted == [(created.id, "died")]
    assert REASON in [entry.message.partition(";")[0] for entry in harness.service.list_logs(created.id)]


async def test_the_next_engine_finds_it_where_it_is(harness: SandboxesHarness) -> None:
    created = await harness.create()
    await move(harness, created.id)
    await harness.restart()
    moved = harness.service.get(created.id)
    assert moved.layers[0].startswith("snap:")
    assert [*harness.host.machines] == [created.id + OTHER]
    assert len(harness.host.snapshots) == 1, "its layers are kept"
    await harness.service.kill(created.id)
    await harness.settle()
    assert harness.host.machines == {}
    assert harness.host.snapshots == {}


@pytest.mark.parametrize("memory", [True, False])
async def test_a_paused_sandbox_stays_paused_and_says_what_it_lost(harness: SandboxesHarness, memory: bool) -> None:
    created = await harness.create()
    await harness.service.pause(created.id, memory=memory)
    await move(harness, created.id)
    await harness.settle()
    moved = harness.service.get(created.id)
    assert (moved.state, moved.pause_kind) == (State.PAUSED, PauseKind.FILESYSTEM)
    assert moved.memory_lost == (REASON if memory else None)
    assert {name: machine.condition for name, machine in harness.host.machines.items()} == {
        created.id + OTHER: Condition.STOPPED
    }
    await harness.service.resume(created.id, 60)
    assert harness.host.machines[created.id + OTHER].condition is Condition.RUNNING


@pytest.mark.parametrize("verb", ["snapshot", "create", "init"])
async def test_a_sandbox_that_cannot_be_moved_continues_where_it_was(harness: SandboxesHarness, verb: str) -> None:
    created = await harness.create()
    memory = harness.host.machines[created.id].memory
    if verb == "init":
        harness.templates.templates[0] = replace(harness.templates.templates[0], start=StartCommand("x"))
        original = TwoHostsDriver.connect

        async def refuse(driver: TwoHostsDriver, handle: Handle, port: int) -> Any:
            if handle.data.get("at"):
                raise SandyardError("no agent")
            return await original(driver, handle, port)

        harness.driver.connect = refuse.__get__(harness.driver)  # type: ignore[method-assign]
    else:
        harness.driver.fail(verb, FullError("No host can take the sandbox."))
    with pytest.raises(SandyardError):
        await move(harness, created.id)
    harness.driver.clear_faults()
    await harness.settle()
    assert {name: (machine.condition, machine.memory) for name, machine in harness.host.machines.items()} == {
        created.id: (Condition.RUNNING, memory)
    }
    assert harness.service.get(created.id).memory_lost is None
    assert harness.host.snapshots == {}
    assert harness.interrupted == []


async def test_it_waits_frozen_until_its_layers_are_copied(harness: SandboxesHarness) -> None:
    created = await harness.create()
    harness.driver.fail("create", BusyError("Its layers are being copied."))
    moving = harness.service.components.background.spawn(move(harness, created.id))
    await harness.clock.advance(100)
    assert harness.host.machines[created.id].condition is Condition.FROZEN
    assert len(harness.host.snapshots) == 1, "what is being copied is kept"
    harness.driver.clear_faults()
    await harness.clock.advance(2)
    await moving
    await harness.settle()
    assert [*harness.host.machines] == [created.id + OTHER]


async def test_it_does_not_wait_forever(harness: SandboxesHarness) -> None:
    created = await harness.create(timeout_s=7200)
    harness.driver.fail("create", BusyError("Its layers are being copied."))
    moving = harness.service.components.background.spawn(move(harness, created.id))
    await harness.clock.advance(TRANSFER_S + 2)
    with pytest.raises(BusyError):
        await moving
    await harness.settle()
    assert harness.host.machines[created.id].condition is Condition.RUNNING
    assert harness.host.snapshots == {}


async def test_a_crash_leaves_it_where_it_was(harness: SandboxesHarness) -> None:
    created = await harness.create()
    memory = harness.host.machines[created.id].memory
    reached = harness.driver.hold("create", "after")
    moving = harness.service.components.background.spawn(move(harness, created.id))
    await reached.wait()
    assert created.id + OTHER in harness.host.machines
    await harness.restart()
    assert moving.cancelled()
    await harness.settle()
    machine = harness.host.machines[created.id]
    assert ([*harness.host.machines], machine.condition, machine.memory) == ([created.id], Condition.RUNNING, memory)
    assert harness.service.get(created.id).memory_lost is None


async def test_a_sandbox_that_is_killed_while_it_moves_leaves_nothing(harness: SandboxesHarness) -> None:
    created = await harness.create()
    reached = harness.driver.hold("create", "after")
    moving = harness.service.components.background.spawn(move(harness, created.id))
    await reached.wait()
    await harness.service.kill(created.id)
    with pytest.raises(NotFoundError):
        await moving
    harness.driver.release("create", "after")
    await harness.settle()
    assert harness.host.machines == {}
    assert harness.host.snapshots == {}


async def test_sandboxes_with_volumes_stay(harness: SandboxesHarness) -> None:
    created = await harness.create(volume_mounts=({"name": "data", "id": "v1", "path": "/data"},))
    with pytest.raises(UnsupportedError, match="the volume data"):
        await move(harness, created.id)
    assert harness.host.machines[created.id].condition is Condition.RUNNING


def make_evacuation(harness: SandboxesHarness) -> Evacuation:
    components = harness.service.components
    return Evacuation(
        mover=components.mover,
        checkpoints=components.checkpoints,
        registry=components.registry,
        pool=components.pool,
        clock=harness.clock,
        places=TwoHosts(harness),
        on_return=lambda host_id: None,
    )


@pytest.fixture
async def evacuation(harness: SandboxesHarness) -> AsyncIterator[Evacuation]:
    made = make_evacuation(harness)
    yield made
    await made.close()


async def test_a_host_is_emptied_and_kept_empty(harness: SandboxesHarness, evacuation: Evacuation) -> None:
    created = [await harness.create() for _ in range(6)]
    await harness.service.pause(created[0].id)
    harness.driver.draining = True  # type: ignore[attr-defined]
    evacuation.set_hosts({"first": EmptiedHost("one")})
    await harness.settle()
    assert {*harness.host.machines} == {item.id + OTHER for item in created}
    assert {record.memory_lost for record in harness.service.list().items} == {"Its host one was drained"}
    progress = evacuation.find_progress("first")
    assert progress is not None
    assert (progress.moved, progress.total, progress.failures) == (6, 6, {})
    await harness.clock.advance(10)
    assert progress.moved == 6, "each is moved once"
    harness.driver.draining = False  # type: ignore[attr-defined]
    late = await harness.create()  # was placed there when the drain began
    harness.driver.draining = True  # type: ignore[attr-defined]
    await harness.clock.advance(3)
    await harness.settle()
    assert late.id + OTHER in harness.host.machines
    evacuation.set_hosts({})
    assert evacuation.find_progress("first") is None


async def test_a_failed_move_is_reported_and_tried_again(harness: SandboxesHarness, evacuation: Evacuation) -> None:
    created = await harness.create()
    harness.driver.draining = True  # type: ignore[attr-defined]
    harness.driver.fail("create", FullError("No host can take the sandbox."))
    evacuation.set_hosts({"first": EmptiedHost("one")})
    await harness.settle()
    progress = evacuation.find_progress("first")
    assert progress is not None
    assert progress.failures == {created.id: "No host can take the sandbox."}
    assert harness.host.machines[created.id].condition is Condition.RUNNING
    await harness.clock.advance(60)
    attempts = [verb for verb, _ in harness.driver.calls].count("create") - 1
    assert 3 <= attempts <= 5, "after growing delays"
    harness.driver.clear_faults()
    assert (progress.moved, progress.total, len(progress.failures)) == (0, 1, 1)
    await harness.clock.advance(62)
    await harness.settle()
    assert (progress.moved, progress.failures) == (1, {})


async def test_ready_sandboxes_of_the_host_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness_module, "DoubleDriver", TwoHostsDriver)
    harness = SandboxesHarness(tmp_path, pool_size=2)
    await harness.start()
    await harness.create()
    await harness.settle()
    ready = [machine for machine in harness.host.machines if harness.service.find(machine) is None]
    assert ready
    evacuation = make_evacuation(harness)
    harness.driver.draining = True  # type: ignore[attr-defined]
    evacuation.set_hosts({"first": EmptiedHost("one")})
    await harness.settle()
    assert not {*ready} & {*harness.host.machines}
    await evacuation.close()
    await harness.stop()
