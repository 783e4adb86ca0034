"""What a new engine makes of what a killed one left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, NetworkPolicy
from sandyard.engine.sandboxes.model import CreateSandbox, Network, OnTimeout, PauseKind
from sandyard.kit.errors import SandyardError
from tests.unit.engine.sandboxes.yard import Yard, told


async def test_everything_is_there_after_a_crash(yard: Yard) -> None:
    network = Network(NetworkPolicy(True, ("1.1.1.1", "*.example.com"), ("0.0.0.0/0",)), {"allowOut": ["1.1.1.1"]})
    running = await yard.create(
        metadata={"ä": "ö"}, env={"A": "1"}, network=network, public_traffic=False, on_timeout=OnTimeout.PAUSE,
        auto_resume=True, volume_mounts=({"name": "v", "path": "/v", "id": "v1"},), extra={"mcp": {"x": 1}},
    )  # fmt: skip
    paused = await yard.create()
    await yard.service.pause(paused.id)
    stopped = await yard.create()
    await yard.service.pause(stopped.id, memory=False)
    before = yard.service.list().items
    memories = {sandbox_id: machine.memory for sandbox_id, machine in yard.host.machines.items()}
    await yard.restart()
    assert yard.service.list().items == before
    assert {sandbox_id: machine.memory for sandbox_id, machine in yard.host.machines.items()} == memories
    yard.check()
    yard.host.end(running.id)  # its end is noticed by the new engine as well
    yard.host.end(paused.id)
    await yard.settle()
    assert yard.service.get(running.id).memory_lost
    assert yard.service.get(paused.id).pause_kind is PauseKind.FILESYSTEM


async def test_a_second_crash_right_after_the_first(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    await yard.start(open_=False)
    reached = yard.driver.stuck("open")
    opening = asyncio.create_task(yard.service.open())
    await reached.wait()
    await yard.crash()
    opening.cancel()
    await yard.start()
    assert yard.service.get(sandbox.id).running
    yard.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_create_leaves_nothing(yard: Yard, when: str) -> None:
    reached = yard.driver.stuck("create", when)
    creating = asyncio.create_task(yard.create())
    await reached.wait()
    await yard.restart()
    creating.cancel()
    assert yard.service.list().items == () and yard.host.machines == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_fork_leaves_only_the_parent(yard: Yard, when: str) -> None:
    parent = await yard.create()
    reached = yard.driver.stuck("fork", when)
    forking = asyncio.create_task(yard.service.fork(parent.id))
    await reached.wait()
    await yard.restart()
    forking.cancel()
    assert [one.id for one in yard.service.list().items] == [parent.id]
    yard.check()


@pytest.mark.parametrize("verb", ["snapshot", "create"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_many_forks_leaves_no_snapshot(yard: Yard, verb: str, when: str) -> None:
    parent = await yard.create()
    reached = yard.driver.stuck(verb, when)
    forking = asyncio.create_task(yard.service.fork(parent.id, 3))
    await reached.wait()
    await yard.restart()
    forking.cancel()
    await yard.settle()
    assert yard.host.snapshots == {}
    yard.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_pause_is_undone(yard: Yard, when: str) -> None:
    sandbox = await yard.create()
    memory = yard.host.machines[sandbox.id].memory
    reached = yard.driver.stuck("freeze", when)
    pausing = asyncio.create_task(yard.service.pause(sandbox.id))
    await reached.wait()
    await yard.restart()
    pausing.cancel()
    assert yard.service.get(sandbox.id).running and yard.host.machines[sandbox.id].memory == memory
    yard.check()


@pytest.mark.parametrize(("when", "kind"), [("before", None), ("after", PauseKind.FILESYSTEM)])
async def test_crash_during_filesystem_pause(yard: Yard, when: str, kind: PauseKind | None) -> None:
    sandbox = await yard.create()
    reached = yard.driver.stuck("stop", when)
    pausing = asyncio.create_task(yard.service.pause(sandbox.id, memory=False))
    await reached.wait()
    await yard.restart()
    pausing.cancel()
    found = yard.service.get(sandbox.id)
    assert found.pause_kind is kind and found.memory_lost is None
    yard.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_resume_is_undone(yard: Yard, when: str) -> None:
    sandbox = await yard.create()
    memory = yard.host.machines[sandbox.id].memory
    await yard.service.pause(sandbox.id)
    reached = yard.driver.stuck("thaw", when)
    resuming = asyncio.create_task(yard.service.connect(sandbox.id, 60))
    await reached.wait()
    await yard.restart()
    resuming.cancel()
    assert yard.service.get(sandbox.id).pause_kind is PauseKind.MEMORY
    assert yard.host.machines[sandbox.id].memory == memory
    yard.check()


@pytest.mark.parametrize(
    ("verb", "when"), [("stop", "before"), ("stop", "after"), ("boot", "before"), ("boot", "after")]
)
async def test_crash_during_cold_resume_stays_paused(yard: Yard, verb: str, when: str) -> None:
    sandbox = await yard.create()
    await yard.service.pause(sandbox.id)
    reached = yard.driver.stuck(verb, when)
    resuming = asyncio.create_task(yard.service.connect(sandbox.id, 60, memory=False))
    await reached.wait()
    await yard.restart()
    resuming.cancel()
    found = yard.service.get(sandbox.id)
    assert not found.running and found.memory_lost is None
    yard.check()
    await yard.service.connect(sandbox.id, 60)
    yard.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_kill_is_finished(yard: Yard, when: str) -> None:
    sandbox = await yard.create()
    reached = yard.driver.stuck("kill", when)
    killing = asyncio.create_task(yard.service.kill(sandbox.id))
    await reached.wait()
    await yard.restart()
    killing.cancel()
    assert yard.service.list().items == () and yard.host.machines == {}


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_network_change(yard: Yard, when: str) -> None:
    sandbox = await yard.create()
    reached = yard.driver.stuck("set_network", when)
    changing = asyncio.create_task(yard.service.set_network(sandbox.id, Network(NetworkPolicy(False))))
    await reached.wait()
    await yard.restart()
    changing.cancel()
    yard.check()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_suspend(tmp_path: Path, when: str) -> None:
    yard = Yard(tmp_path, suspend=True, suspend_after_s=10)
    await yard.start()
    sandbox = await yard.create()
    await yard.service.pause(sandbox.id)
    reached = yard.driver.stuck("suspend", when)
    await yard.clock.advance(11)
    await reached.wait()
    await yard.restart()
    assert yard.service.get(sandbox.id).pause_kind in {PauseKind.MEMORY, PauseKind.DISK}
    yard.check()
    await yard.service.connect(sandbox.id, 60)
    yard.check()
    await yard.stop()


@pytest.mark.parametrize("when", ["before", "after"])
async def test_crash_during_snapshot_leaves_none(yard: Yard, when: str) -> None:
    sandbox = await yard.create()
    reached = yard.driver.stuck("snapshot", when)
    taking = asyncio.create_task(yard.service.snapshot(sandbox.id))
    await reached.wait()
    await yard.restart()
    taking.cancel()
    assert yard.host.snapshots == {} and yard.service.snapshots().items == ()


async def test_crash_during_deletion_of_a_snapshot(yard: Yard) -> None:
    sandbox = await yard.create()
    snapshot = await yard.service.snapshot(sandbox.id)
    reached = yard.driver.stuck("delete_snapshot")
    await yard.service.delete_snapshot(snapshot.id)
    await reached.wait()
    await yard.restart()
    assert yard.host.snapshots == {} and yard.service.snapshots().items == ()


async def test_deleted_snapshot_in_use_survives_a_restart(yard: Yard) -> None:
    sandbox = await yard.create()
    snapshot = await yard.service.snapshot(sandbox.id)
    child = await yard.create(template=snapshot.id)
    await yard.service.delete_snapshot(snapshot.id)
    await yard.restart()
    assert set(yard.host.snapshots) == {snapshot.id}
    await yard.service.kill(child.id)
    await yard.settle()
    assert yard.host.snapshots == {}


async def test_reboot_boots_running_ones_and_says_so(yard: Yard) -> None:
    policy = Network(NetworkPolicy(False))
    running = await yard.create(env={"A": "1"}, network=policy)
    paused = await yard.create(on_timeout=OnTimeout.PAUSE, auto_resume=True)
    await yard.service.pause(paused.id)
    await yard.crash()
    yard.host.reboot()
    yard.boot_id = "boot-2"
    await yard.start()
    await yard.settle()
    found = yard.service.get(running.id)
    assert found.running and found.memory_lost == "The machine was restarted"
    assert yard.host.machines[running.id].init == told(running, {"A": "1"})
    slept = yard.service.get(paused.id)
    assert slept.pause_kind is PauseKind.FILESYSTEM and slept.memory_lost == "The machine was restarted"
    assert any("The machine was restarted" in entry.message for entry in yard.service.logs(running.id))
    yard.check()
    (await yard.service.dial(paused.id, AGENT_PORT)).close()  # traffic wakes it: it did not choose to lose its memory
    again = await yard.service.pause(running.id)
    assert again.memory_lost is None
    yard.check()


async def test_traffic_waits_for_the_boot_after_a_reboot(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    yard.host.reboot()
    yard.boot_id = "boot-2"
    await yard.start(open_=False)
    reached = yard.driver.held("boot")
    await yard.service.open()
    await reached.wait()
    dialling = asyncio.create_task(yard.service.dial(sandbox.id, AGENT_PORT))
    await yard.settle()
    assert not dialling.done()
    yard.driver.release("boot")
    (await dialling).close()
    yard.check()


async def test_a_sandbox_that_cannot_boot_is_paused_not_lost(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    yard.host.reboot()
    await yard.start(open_=False)
    yard.driver.broken("boot", SandyardError("no"))
    await yard.service.open()
    await yard.settle()
    found = yard.service.get(sandbox.id)
    assert found.pause_kind is PauseKind.FILESYSTEM and found.memory_lost
    yard.driver.heal()
    await yard.service.connect(sandbox.id, 60)
    yard.check()


async def test_processes_that_ended_while_the_engine_was_down(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    yard.host.reboot()  # the same boot id: only the processes are gone
    await yard.start()
    await yard.settle()
    assert yard.service.get(sandbox.id).memory_lost == "Its processes ended while the engine was down"


async def test_absent_ones_are_removed_with_a_word(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    del yard.host.machines[sandbox.id]
    await yard.start()
    assert yard.service.find(sandbox.id) is None
    assert "is gone" in yard.service.logs(sandbox.id)[-1].message


async def test_timeouts_that_passed_while_the_engine_was_down(yard: Yard) -> None:
    killed = await yard.create(timeout_s=10)
    paused = await yard.create(timeout_s=10, on_timeout=OnTimeout.PAUSE)
    alive = await yard.create(timeout_s=1000)
    await yard.crash()
    await yard.clock.advance(60)
    await yard.start()
    await yard.settle()
    assert yard.service.find(killed.id) is None
    assert yard.service.get(paused.id).pause_kind is PauseKind.MEMORY
    assert yard.service.get(alive.id).running
    yard.check()


async def test_timeouts_that_passed_during_a_reboot(yard: Yard) -> None:
    killed = await yard.create(timeout_s=10)
    paused = await yard.create(timeout_s=10, on_timeout=OnTimeout.PAUSE)
    await yard.crash()
    yard.host.reboot()
    yard.boot_id = "boot-2"
    await yard.clock.advance(60)
    await yard.start()
    await yard.settle()
    assert yard.service.find(killed.id) is None
    found = yard.service.get(paused.id)
    assert found.pause_kind is PauseKind.FILESYSTEM and found.memory_lost == "The machine was restarted"
    assert ("boot", paused.id) not in yard.driver.calls
    yard.check()


async def test_a_driver_that_forgets_to_say_is_asked(yard: Yard) -> None:
    sandbox = await yard.create()
    await yard.crash()
    await yard.start(open_=False)
    really = yard.driver.open

    async def silent(keep, snapshots):
        await really(keep, snapshots)
        return {}

    yard.driver.open = silent
    await yard.service.open()
    assert yard.service.get(sandbox.id).running and ("condition", sandbox.id) in yard.driver.calls


async def test_pooled_sandboxes_are_garbage_after_a_crash(tmp_path: Path) -> None:
    yard = Yard(tmp_path, pool_size=3)
    await yard.start()
    await yard.settle()
    assert len(yard.host.machines) == 3
    ready = set(yard.host.machines)
    await yard.crash()
    yard.settings = yard.settings.model_copy(update={"pool_size": 0})
    await yard.start()
    assert not ready & set(yard.host.machines)
    yard.check()
    await yard.stop()


async def test_half_done_key_use_is_not_remembered(yard: Yard) -> None:
    reached = yard.driver.stuck("create", "after")
    request = CreateSandbox(idempotency_key="k")
    creating = asyncio.create_task(yard.service.create(request))
    await reached.wait()
    await yard.restart()
    creating.cancel()
    assert (await yard.service.create(request)).running
    yard.check()


async def test_a_host_that_disagrees_in_every_way(yard: Yard) -> None:
    """Each record meets each condition; afterwards they agree."""
    kinds = [None, PauseKind.MEMORY, PauseKind.FILESYSTEM]
    for condition in (Condition.RUNNING, Condition.FROZEN, Condition.STOPPED, Condition.SUSPENDED):
        for kind in kinds:
            sandbox = await yard.create()
            if kind is not None:
                await yard.service.pause(sandbox.id, memory=kind is PauseKind.MEMORY)
            yard.host.machines[sandbox.id].condition = condition
    await yard.restart()
    await yard.settle()
    yard.check()
    assert len(yard.service.list().items) == 12
