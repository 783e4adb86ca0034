"""Sandboxes whose condition is in doubt, because their host was unreachable or restarted under a living engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition
from sandyard.engine.sandboxes.model import OnTimeout, PauseKind
from sandyard.engine.sandboxes.reconciler import MAX_CONCURRENT_BOOTS
from sandyard.kit.errors import BusyError, UnreachableError
from tests.unit.engine.sandboxes.harness import SandboxesHarness, expected_settings

RESTARTED = "Its host was restarted"


async def test_sandboxes_are_booted_from_their_files_after_their_host_was_restarted(harness: SandboxesHarness) -> None:
    running = await harness.create(env={"A": "1"})
    harness.host.machines[running.id].files = frozenset({"work"})
    paused = await harness.create()
    await harness.service.pause(paused.id)
    without_memory = await harness.create()
    await harness.service.pause(without_memory.id, memory=False)
    harness.host.away = True
    harness.driver.come_back(rebooted=True)
    await harness.settle()
    booted = harness.service.get(running.id)
    assert booted.running and booted.memory_lost == RESTARTED
    assert harness.host.machines[running.id].files == {"work"}
    assert harness.host.machines[running.id].init == expected_settings(running, {"A": "1"})
    still_paused = harness.service.get(paused.id)
    assert still_paused.pause_kind is PauseKind.FILESYSTEM and still_paused.memory_lost == RESTARTED
    assert harness.service.get(without_memory.id).memory_lost is None
    harness.check()
    harness.host.end(running.id, "out of memory")  # its end is noticed again
    await harness.settle()
    assert "out of memory" in (harness.service.get(running.id).memory_lost or "")
    harness.check()


async def test_doubt_about_sandboxes_that_did_not_change_has_no_effect(harness: SandboxesHarness) -> None:
    running, paused = await harness.create(), await harness.create()
    await harness.service.pause(paused.id)
    before = [harness.service.get(item.id) for item in (running, paused)]
    calls = len(harness.driver.calls)
    harness.driver.on_doubt([running.id, paused.id, "unknown"], "Its host was unreachable")
    await harness.settle()
    assert [harness.service.get(item.id) for item in (running, paused)] == before
    assert {verb for verb, _ in harness.driver.calls[calls:]} == {"condition"}
    (await harness.service.dial(running.id, AGENT_PORT)).close()
    harness.check()


async def test_traffic_waits_until_the_condition_is_known(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.host.reboot()
    reached = harness.driver.hold("boot")
    harness.driver.on_doubt([sandbox.id], RESTARTED)
    await reached.wait()
    dialling = asyncio.create_task(harness.service.dial(sandbox.id, AGENT_PORT))
    await harness.settle()
    assert not dialling.done()
    harness.driver.release("boot")
    (await dialling).close()


async def test_nothing_is_removed_while_the_host_is_away(harness: SandboxesHarness) -> None:
    running, paused = await harness.create(timeout_s=3600), await harness.create()
    await harness.service.pause(paused.id)
    harness.host.away = True
    harness.driver.on_doubt([running.id, paused.id], "Its host is unreachable")
    for _ in range(5):
        await harness.clock.advance(60)
        await harness.settle()
    for sandbox in (running, paused):
        with pytest.raises(UnreachableError):
            await harness.service.connect(sandbox.id, 3600)
    assert harness.service.get(running.id).running and not harness.service.get(paused.id).running
    harness.driver.come_back(rebooted=False)
    await harness.settle()
    harness.check()
    await harness.service.connect(paused.id, 60)
    harness.check()


async def test_a_timeout_while_the_host_is_away_takes_effect_later(harness: SandboxesHarness) -> None:
    killed = await harness.create(timeout_s=10)
    paused = await harness.create(timeout_s=10, on_timeout=OnTimeout.PAUSE)
    harness.host.away = True
    await harness.clock.advance(60)
    await harness.settle()
    assert harness.service.find(killed.id) is None and harness.service.get(paused.id).running
    harness.driver.come_back(rebooted=True)
    await harness.clock.advance(60)
    await harness.settle()
    assert harness.service.get(paused.id).pause_kind is PauseKind.FILESYSTEM
    harness.check()


async def test_a_kill_while_the_host_is_away_takes_effect_later(harness: SandboxesHarness) -> None:
    sandbox = await harness.create()
    harness.host.away = True
    with pytest.raises(BusyError):
        await harness.service.kill(sandbox.id)
    assert harness.service.find(sandbox.id) is None
    harness.driver.come_back(rebooted=True)
    await harness.clock.advance(60)
    await harness.settle()
    assert harness.host.machines == {}


async def test_a_host_that_is_away_when_the_engine_starts_loses_nothing(harness: SandboxesHarness) -> None:
    running, paused = await harness.create(timeout_s=3600), await harness.create()
    await harness.service.pause(paused.id)
    await harness.crash()
    harness.host.away = True
    await harness.start()
    await harness.clock.advance(60)
    await harness.settle()
    assert harness.service.get(running.id).running and not harness.service.get(paused.id).running
    harness.driver.come_back(rebooted=True)
    await harness.settle()
    assert harness.service.get(running.id).memory_lost == RESTARTED
    harness.check()


async def test_a_host_that_is_lost_during_a_boot_does_not_pause_the_sandbox(harness: SandboxesHarness) -> None:
    sandbox = await harness.create(timeout_s=3600)
    harness.host.reboot()
    reached = harness.driver.hold("boot")
    harness.driver.on_doubt([sandbox.id], RESTARTED)
    await reached.wait()
    harness.driver.fail("boot", UnreachableError("The host is not responding."))
    harness.host.away = True
    harness.driver.allow["boot", "before"].set()
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.driver.clear_faults()
    harness.driver.come_back(rebooted=True)
    await harness.settle()
    assert harness.service.get(sandbox.id).running
    harness.check()


async def test_only_a_few_sandboxes_are_booted_at_once(harness: SandboxesHarness) -> None:
    created = [await harness.create() for _ in range(MAX_CONCURRENT_BOOTS + 3)]
    reached = harness.driver.hold("boot")
    harness.host.reboot()
    harness.driver.on_doubt([item.id for item in created], RESTARTED)
    await reached.wait()
    await harness.settle()
    booting = [candidate for candidate in harness.driver.now_running.values() if "boot" in candidate]
    assert len(booting) == MAX_CONCURRENT_BOOTS
    harness.driver.release("boot")
    await harness.settle()
    assert {machine.condition for machine in harness.host.machines.values()} == {Condition.RUNNING}
    harness.check()


async def test_ready_sandboxes_in_doubt_are_replaced(tmp_path: Path) -> None:
    harness = SandboxesHarness(tmp_path, pool_size=3)
    await harness.start()
    await harness.settle()
    before = set(harness.host.machines)
    harness.host.away = True
    harness.driver.come_back(rebooted=True)
    await harness.clock.advance(5)
    await harness.settle()
    after = set(harness.host.machines)
    assert len(before) == len(after) == 3 and not before & after
    sandbox = await harness.create()
    assert sandbox.id in after
    await harness.stop()
