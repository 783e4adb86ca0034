"""Recovery: a new engine takes over the state that a killed engine left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, NetworkPolicy
from sandyard.engine.sandboxes.model import CreateSandbox, Network, OnTimeout, PauseKind
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.harness import SandboxesHarness, expected_settings


async def test_all_sandboxes_survive_a_crash(harness: SandboxesHarness) -> None:
    network = Network(NetworkPolicy(True, ("1.1.1.1", "*.example.com"), ("0.0.0.0/0",)), {"allowOut": ["1.1.1.1"]})
    running = await harness.create(
        metadata={"ä": "ö"}, env={"A": "1"}, network=network, public_traffic=False, on_timeout=OnTimeout.PAUSE,
        auto_resume=True, volume_mounts=({"name": "v", "path": "/v", "id": "v1"},), extra={"mcp": {"x": 1}},
    )  # fmt: skip
    paused = await harness.create()
    await harness.service.pause(paused.id)
    stopped = await harness.create()
    await harness.service.pause(stopped.id, memory=False)
    before = harness.service.list().items
    memories = {sandbox_id: machine.memory for sandbox_id, machine in harness.host.machines.items()}
    await harness.restart()
    assert harness.service.list().items == before
    assert {sandbox_id: machine.memory for sandbox_id, machine in harness.host.machines.items()} == memories
    harness.check()
    harness.host.end(running.id)  # the new engine notices the end of sandboxes too
    harness.host.end(paused.id)
    await harness.settle()
    assert harness.service.get(running.id).memory_lost
    assert harness.service.get(paused.id).pause_kind is PauseKind.FILESYSTEM


async def test_a_second_crash_during_recovery_loses_nothing(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    await harness.start(open_=False)
    reached = harness.driver.block("open")
    opening = asyncio.create_task(harness.service.open())
    await reached.wait()
    await harness.crash()
    opening.cancel()
    await harness.start()
    assert harness.service.get(sandbox.id).running
    harness.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_create_leaves_nothing(harness: SandboxesHarness, when: str) -> None:
    reached = harness.driver.block("create", when)
    creating = asyncio.create_task(harness.create())
    await reached.wait()
    await harness.restart()
    creating.cancel()
    assert harness.service.list().items == () and harness.host.machines == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_fork_leaves_only_the_parent(harness: SandboxesHarness, when: str) -> None:
    parent = await harness.create()
    reached = harness.driver.block("fork", when)
    forking = asyncio.create_task(harness.service.fork(parent.id))
    await reached.wait()
    await harness.restart()
    forking.cancel()
    assert [item.id for item in harness.service.list().items] == [parent.id]
    harness.check()


@pytest.mark.parametrize("verb", ["snapshot", "create"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_many_forks_leaves_no_snapshot(harness: SandboxesHarness, verb: str, when: str) -> None:
    parent = await harness.create()
    reached = harness.driver.block(verb, when)
    forking = asyncio.create_task(harness.service.fork(parent.id, 3))
    await reached.wait()
    await harness.restart()
    forking.cancel()
    await harness.settle()
    assert harness.host.snapshots == {}
    harness.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_pause_is_undone_after_a_crash(harness: SandboxesHarness, when: str) -> None:
    sandbox = await harness.create()
    memory = harness.host.machines[sandbox.id].memory
    reached = harness.driver.block("freeze", when)
    pausing = asyncio.create_task(harness.service.pause(sandbox.id))
    await reached.wait()
    await harness.restart()
    pausing.cancel()
    assert harness.service.get(sandbox.id).running and harness.host.machines[sandbox.id].memory == memory
    harness.check()


@pytest.mark.parametrize(("when", "kind"), [("before", None), ("after", PauseKind.FILESYSTEM)])
async def test_a_filesystem_pause_is_undone_or_completed_after_a_crash(
    harness: SandboxesHarness, when: str, kind: PauseKind | None
) -> None:
    sandbox = await harness.create()
    reached = harness.driver.block("stop", when)
    pausing = asyncio.create_task(harness.service.pause(sandbox.id, memory=False))
    await reached.wait()
    await harness.restart()
    pausing.cancel()
    recovered = harness.service.get(sandbox.id)
    assert recovered.pause_kind is kind and recovered.memory_lost is None
    harness.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_resume_is_undone_after_a_crash(harness: SandboxesHarness, when: str) -> None:
    sandbox = await harness.create()
    memory = harness.host.machines[sandbox.id].memory
    await harness.service.pause(sandbox.id)
    reached = harness.driver.block("thaw", when)
    resuming = asyncio.create_task(harness.service.connect(sandbox.id, 60))
    await reached.wait()
    await harness.restart()
    resuming.cancel()
    assert harness.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    assert harness.host.machines[sandbox.id].memory == memory
    harness.check()


@pytest.mark.parametrize(
    ("verb", "when"), [("stop", "before"), ("stop", "after"), ("boot", "before"), ("boot", "after")]
)
async def test_crash_during_cold_resume_leaves_the_sandbox_paused(
    harness: SandboxesHarness, verb: str, when: str
) -> None:
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    reached = harness.driver.block(verb, when)
    resuming = asyncio.create_task(harness.service.connect(sandbox.id, 60, memory=False))
    await reached.wait()
    await harness.restart()
    resuming.cancel()
    recovered = harness.service.get(sandbox.id)
    assert not recovered.running and recovered.memory_lost is None
    harness.check()
    await harness.service.connect(sandbox.id, 60)
    harness.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_kill_is_completed_after_a_crash(harness: SandboxesHarness, when: str) -> None:
    sandbox = await harness.create()
    reached = harness.driver.block("kill", when)
    killing = asyncio.create_task(harness.service.kill(sandbox.id))
    await reached.wait()
    await harness.restart()
    killing.cancel()
    assert harness.service.list().items == () and harness.host.machines == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_network_change_keeps_record_and_host_consistent(
    harness: SandboxesHarness, when: str
) -> None:
    sandbox = await harness.create()
    reached = harness.driver.block("set_network", when)
    changing = asyncio.create_task(harness.service.set_network(sandbox.id, Network(NetworkPolicy(False))))
    await reached.wait()
    await harness.restart()
    changing.cancel()
    harness.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_sandbox_can_be_resumed_after_a_crash_during_suspend(tmp_path: Path, when: str) -> None:
    harness = SandboxesHarness(tmp_path, suspend=True, suspend_after_s=10)
    await harness.start()
    sandbox = await harness.create()
    await harness.service.pause(sandbox.id)
    reached = harness.driver.block("suspend", when)
    await harness.clock.advance(11)
    await reached.wait()
    await harness.restart()
    assert harness.service.get(sandbox.id).pause_kind in {PauseKind.MEMORY, PauseKind.DISK}
    harness.check()
    await harness.service.connect(sandbox.id, 60)
    harness.check()
    await harness.stop()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_snapshot_leaves_no_snapshot(harness: SandboxesHarness, when: str) -> None:
    sandbox = await harness.create()
    reached = harness.driver.block("snapshot", when)
    taking = asyncio.create_task(harness.service.snapshot(sandbox.id))
    await reached.wait()
    await harness.restart()
    taking.cancel()
    assert harness.host.snapshots == {} and harness.service.list_snapshots().items == ()


async def test_a_snapshot_deletion_is_completed_after_a_crash(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    snapshot = await harness.service.snapshot(sandbox.id)
    reached = harness.driver.block("delete_snapshot")
    await harness.service.delete_snapshot(snapshot.id)
    await reached.wait()
    await harness.restart()
    assert harness.host.snapshots == {} and harness.service.list_snapshots().items == ()


async def test_deleted_snapshot_in_use_survives_a_restart(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    snapshot = await harness.service.snapshot(sandbox.id)
    child = await harness.create(template=snapshot.id)
    await harness.service.delete_snapshot(snapshot.id)
    await harness.restart()
    assert set(harness.host.snapshots) == {snapshot.id}
    await harness.service.kill(child.id)
    await harness.settle()
    assert harness.host.snapshots == {}


async def test_running_sandboxes_are_booted_after_a_reboot_and_report_lost_memory(harness: SandboxesHarness) -> None:
    policy = Network(NetworkPolicy(False))
    running = await harness.create(env={"A": "1"}, network=policy)
    paused = await harness.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await harness.service.pause(paused.id)
    await harness.crash()
    harness.host.reboot()
    harness.boot_id = "boot-2"
    await harness.start()
    await harness.settle()
    recovered = harness.service.get(running.id)
    assert recovered.running and recovered.memory_lost == "The machine was restarted"
    assert harness.host.machines[running.id].init == expected_settings(running, {"A": "1"})
    still_paused = harness.service.get(paused.id)
    assert still_paused.pause_kind is PauseKind.FILESYSTEM and still_paused.memory_lost == "The machine was restarted"
    assert any("The machine was restarted" in entry.message for entry in harness.service.list_logs(running.id))
    harness.check()
    # Traffic resumes it: its memory was not discarded on request.
    (await harness.service.dial(paused.id, AGENT_PORT)).close()
    again = await harness.service.pause(running.id)
    assert again.memory_lost is None
    harness.check()


async def test_traffic_waits_for_the_boot_after_a_reboot(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    harness.host.reboot()
    harness.boot_id = "boot-2"
    await harness.start(open_=False)
    reached = harness.driver.hold("boot")
    await harness.service.open()
    await reached.wait()
    dialling = asyncio.create_task(harness.service.dial(sandbox.id, AGENT_PORT))
    await harness.settle()
    assert not dialling.done()
    harness.driver.release("boot")
    (await dialling).close()
    harness.check()


async def test_a_sandbox_that_cannot_boot_is_paused_not_lost(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    harness.host.reboot()
    await harness.start(open_=False)
    harness.driver.fail("boot", SandyardError("no"))
    await harness.service.open()
    await harness.settle()
    recovered = harness.service.get(sandbox.id)
    assert recovered.pause_kind is PauseKind.FILESYSTEM and recovered.memory_lost
    harness.driver.clear_faults()
    await harness.service.connect(sandbox.id, 60)
    harness.check()


async def test_processes_that_ended_while_the_engine_was_down_are_reported(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    harness.host.reboot()  # the same boot id: only the processes are gone
    await harness.start()
    await harness.settle()
    assert harness.service.get(sandbox.id).memory_lost == "Its processes ended while the engine was down"


async def test_missing_sandboxes_are_removed_and_logged(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    del harness.host.machines[sandbox.id]
    await harness.start()
    assert harness.service.find(sandbox.id) is None
    assert "is gone" in harness.service.list_logs(sandbox.id)[-1].message


async def test_timeouts_that_expired_while_the_engine_was_down_are_applied(harness: SandboxesHarness) -> None:
    killed = await harness.create(timeout_s=10)
    paused = await harness.create(timeout_s=10, on_timeout=OnTimeout.PAUSE)
    alive = await harness.create(timeout_s=1000)
    await harness.crash()
    await harness.clock.advance(60)
    await harness.start()
    await harness.settle()
    assert harness.service.find(killed.id) is None
    assert harness.service.get(paused.id).pause_kind is PauseKind.MEMORY
    assert harness.service.get(alive.id).running
    harness.check()


async def test_timeouts_that_expired_during_a_reboot_are_applied(harness: SandboxesHarness) -> None:
    killed = await harness.create(timeout_s=10)
    paused = await harness.create(timeout_s=10, on_timeout=OnTimeout.PAUSE)
    await harness.crash()
    harness.host.reboot()
    harness.boot_id = "boot-2"
    await harness.clock.advance(60)
    await harness.start()
    await harness.settle()
    assert harness.service.find(killed.id) is None
    recovered = harness.service.get(paused.id)
    assert recovered.pause_kind is PauseKind.FILESYSTEM and recovered.memory_lost == "The machine was restarted"
    assert ("boot", paused.id) not in harness.driver.calls
    harness.check()


async def test_the_driver_is_queried_for_conditions_missing_from_open(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    await harness.crash()
    await harness.start(open_=False)
    real_open = harness.driver.open

    async def open_without_conditions(keep, snapshots):
        await real_open(keep, snapshots)
        return {}

    harness.driver.open = open_without_conditions
    await harness.service.open()
    assert harness.service.get(sandbox.id).running and ("condition", sandbox.id) in harness.driver.calls


async def test_pooled_sandboxes_are_removed_after_a_crash(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=3)
    await harness.start()
    await harness.settle()
    assert len(harness.host.machines) == 3
    ready = set(harness.host.machines)
    await harness.crash()
    harness.settings = harness.settings.model_copy(update={"pool_size": 0})
    await harness.start()
    assert not ready & set(harness.host.machines)
    harness.check()
    await harness.stop()


async def test_an_unfinished_create_does_not_use_up_its_idempotency_key(harness: SandboxesHarness) -> None:
    reached = harness.driver.block("create", "after")
    request = CreateSandbox(idempotency_key="k")
    creating = asyncio.create_task(harness.service.create(request))
    await reached.wait()
    await harness.restart()
    creating.cancel()
    assert (await harness.service.create(request)).running
    harness.check()


async def test_records_and_host_agree_after_every_combination_of_states(harness: SandboxesHarness) -> None:
    """Combine each record state with each host condition; afterwards they agree."""
    kinds = [None, PauseKind.MEMORY, PauseKind.FILESYSTEM]
    for condition in (Condition.RUNNING, Condition.FROZEN, Condition.STOPPED, Condition.SUSPENDED):
        for kind in kinds:
            sandbox = await harness.create()
            if kind is not None:
                await harness.service.pause(sandbox.id, memory=kind is PauseKind.MEMORY)
            harness.host.machines[sandbox.id].condition = condition
    await harness.restart()
    await harness.settle()
    harness.check()
    assert len(harness.service.list().items) == 12
