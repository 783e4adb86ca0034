"""Create, stop, boot, kill, and what a driver says of a sandbox meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle, HostRule, NetworkPolicy
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError, UnsupportedError
from tests.conformance.yard import Yard, as_json, from_json


async def test_a_created_sandbox_runs_and_its_agent_answers(yard: Yard) -> None:
    handle, agent = await yard.create()
    assert await yard.driver.condition(handle) is Condition.RUNNING
    assert await agent.health() == 204
    done = await agent.run("echo out; echo err >&2; exit 3")
    assert (done.code, done.out, done.err) == (3, "out\n", "err\n")


async def test_a_handle_survives_json(yard: Yard) -> None:
    handle, agent = await yard.create()
    again = from_json(as_json(handle))
    assert again == handle
    assert await yard.driver.condition(again) is Condition.RUNNING
    await agent.run("echo kept > file")
    stopped = from_json(as_json(await yard.driver.stop(again)))
    booted = from_json(as_json(await yard.driver.boot(stopped, yard.spec(handle.id))))
    assert await yard.agent(booted).read("file") == "kept\n"


async def test_many_are_made_at_the_same_time(yard: Yard) -> None:
    made = await asyncio.gather(*(yard.create() for _ in range(8)))
    answers = await asyncio.gather(
        *(agent.run(f"echo {number} > me; cat me") for number, (_, agent) in enumerate(made))
    )
    assert [answer.out for answer in answers] == [f"{number}\n" for number in range(8)]
    await asyncio.gather(*(yard.driver.kill(handle) for handle, _ in made))
    assert [await yard.driver.condition(handle) for handle, _ in made] == [Condition.ABSENT] * 8


async def test_an_id_is_used_once(yard: Yard) -> None:
    handle, agent = await yard.create("twice")
    with pytest.raises(ConflictError):
        await yard.create("twice")
    assert await agent.health() == 204
    assert await yard.driver.condition(handle) is Condition.RUNNING


async def test_a_create_that_fails_leaves_nothing(yard: Yard) -> None:
    if not yard.real:
        pytest.skip("it has no layers that could be missing")
    with pytest.raises(SandyardError, match="does not exist"):
        await yard.create("broken", layers=("/nowhere/at/all",))
    assert await yard.driver.condition(Handle("broken", yard.driver.name)) is Condition.ABSENT
    assert yard.traces("broken") == []
    _, agent = await yard.create("broken")
    assert await agent.health() == 204


async def test_a_create_that_is_given_up_leaves_nothing(yard: Yard) -> None:
    """Wherever it was when its caller went away."""
    for steps in range(0, 24, 3):
        task = asyncio.ensure_future(yard.create("dropped"))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            await yard.driver.kill(outcome[0])
        assert yard.traces("dropped") == []


async def test_kill_removes_every_trace_and_may_be_repeated(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.begin("sleep 1000")
    await yard.driver.kill(handle)
    assert await yard.driver.condition(handle) is Condition.ABSENT
    assert yard.traces(handle.id) == []
    await yard.driver.kill(handle)
    with pytest.raises(UnreachableError):
        await yard.driver.connect(handle, AGENT_PORT)


async def test_kill_works_from_every_condition(yard: Yard) -> None:
    frozen, _ = await yard.create()
    await yard.driver.freeze(frozen)
    await yard.driver.kill(frozen)
    stopped, _ = await yard.create()
    await yard.driver.kill(await yard.driver.stop(stopped))
    for handle in (frozen, stopped):
        assert await yard.driver.condition(handle) is Condition.ABSENT
        assert yard.traces(handle.id) == []


async def test_stop_keeps_the_file_system_and_boot_begins_anew(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo kept > file")
    await agent.begin("sleep 1000")
    stopped = await yard.driver.stop(handle)
    assert await yard.driver.condition(stopped) is Condition.STOPPED
    assert await yard.driver.stop(stopped) == stopped
    with pytest.raises(UnreachableError):
        await yard.driver.connect(stopped, AGENT_PORT)
    booted = await yard.driver.boot(stopped, yard.spec(handle.id))
    assert await yard.driver.condition(booted) is Condition.RUNNING
    assert await yard.agent(booted).read("file") == "kept\n"
    with pytest.raises(ConflictError):
        await yard.driver.boot(booted, yard.spec(handle.id))


async def test_it_can_be_stopped_and_booted_many_times(yard: Yard) -> None:
    handle, agent = await yard.create()
    for turn in range(4):
        await agent.run(f"echo {turn} >> turns")
        handle = await yard.driver.boot(await yard.driver.stop(handle), yard.spec(handle.id))
        agent = yard.agent(handle)
    assert await agent.read("turns") == "0\n1\n2\n3\n"


async def test_exited_waits_for_the_end(yard: Yard) -> None:
    handle, agent = await yard.create()
    waiting = asyncio.ensure_future(yard.driver.wait_for_exit(handle))
    await agent.run("true")
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await yard.driver.condition(handle) is Condition.RUNNING
    again = asyncio.ensure_future(yard.driver.wait_for_exit(handle))
    await asyncio.sleep(0)
    await yard.driver.kill(handle)
    assert await asyncio.wait_for(again, 10)


async def test_stats_tell_what_is_used_and_allowed(yard: Yard) -> None:
    handle, agent = await yard.create()
    before = await yard.driver.stats(handle)
    assert before.memory_total == 512 << 20
    assert before.disk_total == 10240 << 20
    assert before.cpu_count == 2
    if "cpu" in yard.driver.capabilities.limits:
        await agent.run("i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done")
        after = await yard.driver.stats(handle)
        assert after.cpu_seconds > before.cpu_seconds
    if "memory" in yard.driver.capabilities.limits:
        assert 0 < before.memory_used < 512 << 20


async def test_what_a_driver_lacks_it_explains(yard: Yard) -> None:
    able = yard.driver.capabilities
    assert able.live_copy in {"cow", "copy"}
    for limit in {"memory", "cpu", "pids", "disk"} - able.limits:
        assert able.missing.get(limit) or able.missing["limits"], f"nothing is said about {limit}"
    if not able.egress:
        assert able.missing["egress"]
    if not able.suspend:
        assert able.missing["suspend"]


async def test_rules_that_nothing_would_apply_are_refused(yard: Yard) -> None:
    """A sandbox whose requests go out without their headers would look as if it had them."""
    rules = NetworkPolicy(rules=(HostRule("api.example.com", (("X-Key", "1"),)),))
    spec = replace(yard.spec(), network=rules)
    with pytest.raises(UnsupportedError):
        await yard.driver.create(spec)
    assert yard.traces(spec.id) == []
    handle, agent = await yard.create()
    with pytest.raises(UnsupportedError):
        await yard.driver.set_network(handle, rules)
    assert await agent.health() == 204
