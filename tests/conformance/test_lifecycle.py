"""Create, stop, boot and kill, and what a driver reports about a sandbox in between."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle, HostRule, NetworkPolicy
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError, UnsupportedError
from tests.conformance.harness import DriverHarness, as_json, from_json


async def test_a_created_sandbox_runs_and_its_guest_agent_responds(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
    assert await agent.health() == 204
    result = await agent.run("echo out; echo err >&2; exit 3")
    assert (result.code, result.out, result.err) == (3, "out\n", "err\n")


async def test_a_handle_works_after_a_json_round_trip(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    again = from_json(as_json(handle))
    assert again == handle
    assert await harness.driver.get_condition(again) is Condition.RUNNING
    await agent.run("echo kept > file")
    stopped = from_json(as_json(await harness.driver.stop(again)))
    booted = from_json(as_json(await harness.driver.boot(stopped, harness.spec(handle.id))))
    assert await harness.agent(booted).read("file") == "kept\n"


async def test_sandboxes_can_be_created_concurrently(harness: DriverHarness) -> None:
    created = await asyncio.gather(*(harness.create() for _ in range(8)))
    outputs = await asyncio.gather(
        *(agent.run(f"echo {number} > me; cat me") for number, (_, agent) in enumerate(created))
    )
    assert [output.out for output in outputs] == [f"{number}\n" for number in range(8)]
    await asyncio.gather(*(harness.driver.kill(handle) for handle, _ in created))
    assert [await harness.driver.get_condition(handle) for handle, _ in created] == [Condition.ABSENT] * 8


async def test_creating_a_sandbox_with_a_used_id_fails(harness: DriverHarness) -> None:
    handle, agent = await harness.create("twice")
    with pytest.raises(ConflictError):
        await harness.create("twice")
    assert await agent.health() == 204
    assert await harness.driver.get_condition(handle) is Condition.RUNNING


async def test_a_failed_create_leaves_nothing_behind(harness: DriverHarness) -> None:
    if not harness.real:
        pytest.skip("the fake driver has no layers that could be missing")
    with pytest.raises(SandyardError, match="does not exist"):
        await harness.create("broken", layers=("/nowhere/at/all",))
    assert await harness.driver.get_condition(Handle("broken", harness.driver.name)) is Condition.ABSENT
    assert harness.traces("broken") == []
    _, agent = await harness.create("broken")
    assert await agent.health() == 204


async def test_a_cancelled_create_leaves_nothing_behind(harness: DriverHarness) -> None:
    """Cancel it at different steps."""
    for steps in range(0, 24, 3):
        task = asyncio.ensure_future(harness.create("dropped"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await harness.driver.kill(outcome[0])
        assert harness.traces("dropped") == []


async def test_kill_removes_every_trace_and_is_idempotent(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.start("sleep 1000")
    await harness.driver.kill(handle)
    assert await harness.driver.get_condition(handle) is Condition.ABSENT
    assert harness.traces(handle.id) == []
    await harness.driver.kill(handle)
    with pytest.raises(UnreachableError):
        await harness.driver.connect(handle, AGENT_PORT)


async def test_frozen_and_stopped_sandboxes_can_be_killed(harness: DriverHarness) -> None:
    frozen, _ = await harness.create()
    await harness.driver.freeze(frozen)
    await harness.driver.kill(frozen)
    stopped, _ = await harness.create()
    await harness.driver.kill(await harness.driver.stop(stopped))
    for handle in (frozen, stopped):
        assert await harness.driver.get_condition(handle) is Condition.ABSENT
        assert harness.traces(handle.id) == []


async def test_stop_keeps_the_file_system_for_the_next_boot(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    await agent.start("sleep 1000")
    stopped = await harness.driver.stop(handle)
    assert await harness.driver.get_condition(stopped) is Condition.STOPPED
    assert await harness.driver.stop(stopped) == stopped
    with pytest.raises(UnreachableError):
        await harness.driver.connect(stopped, AGENT_PORT)
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    assert await harness.driver.get_condition(booted) is Condition.RUNNING
    assert await harness.agent(booted).read("file") == "kept\n"
    with pytest.raises(ConflictError):
        await harness.driver.boot(booted, harness.spec(handle.id))


async def test_a_sandbox_can_be_stopped_and_booted_repeatedly(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    for number in range(4):
        await agent.run(f"echo {number} >> turns")
        handle = await harness.driver.boot(await harness.driver.stop(handle), harness.spec(handle.id))
        agent = harness.agent(handle)
    assert await agent.read("turns") == "0\n1\n2\n3\n"


async def test_wait_for_exit_returns_when_the_sandbox_ends(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    waiting = asyncio.ensure_future(harness.driver.wait_for_exit(handle))
    await agent.run("true")
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
    again = asyncio.ensure_future(harness.driver.wait_for_exit(handle))
    await asyncio.sleep(0)
    await harness.driver.kill(handle)
    assert await asyncio.wait_for(again, 10)


async def test_wait_for_exit_returns_at_once_if_the_sandbox_has_ended(harness: DriverHarness) -> None:
    stopped = await harness.driver.stop((await harness.create())[0])
    assert await asyncio.wait_for(harness.driver.wait_for_exit(stopped), 10)


async def test_the_driver_reports_what_is_left_for_new_sandboxes(harness: DriverHarness) -> None:
    room = harness.driver.get_room()
    assert room.full is None and room.disk
    assert room.memory_available is None or room.memory_available > 1 << 20
    assert room.disk_free is None or room.disk_free > 1 << 20


async def test_stats_report_usage_and_limits(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    before = await harness.driver.get_stats(handle)
    assert before.memory_total == 512 << 20
    assert before.disk_total == 10240 << 20
    assert before.cpu_count == 2
    if "cpu" in harness.driver.capabilities.limits:
        await agent.run("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done")
        after = await harness.driver.get_stats(handle)
        assert after.cpu_seconds > before.cpu_seconds
    if "memory" in harness.driver.capabilities.limits:
        assert 0 < before.memory_used < 512 << 20


async def test_a_driver_explains_its_missing_capabilities(harness: DriverHarness) -> None:
    capabilities = harness.driver.capabilities
    assert capabilities.live_copy in {"cow", "copy"}
    for limit in {"memory", "cpu", "pids", "disk"} - capabilities.limits:
        assert capabilities.missing.get(limit) or capabilities.missing["limits"], (
            f"the driver should explain why it has no {limit} limit"
        )
    if not capabilities.egress:
        assert capabilities.missing["egress"]
    if harness.isolation not in capabilities.suspend:
        assert capabilities.missing["suspend"]


async def test_network_rules_that_the_driver_cannot_apply_are_rejected(harness: DriverHarness) -> None:
    """Otherwise requests would be sent without the headers of the rules, and nobody would notice."""
    rules = NetworkPolicy(rules=(HostRule("api.example.com", (("X-Key", "1"),)),))
    spec = replace(harness.spec(), network=rules)
    with pytest.raises(UnsupportedError):
        await harness.driver.create(spec)
    assert harness.traces(spec.id) == []
    handle, agent = await harness.create()
    with pytest.raises(UnsupportedError):
        await harness.driver.set_network(handle, rules)
    assert await agent.health() == 204
