"""Engines come and go, well or badly; sandboxes stay, and only those that somebody knows."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import asdict

import pytest

from sandyard.engine.contract import Condition, Handle
from tests.conformance.yard import Yard, from_json


async def _engine(yard: Yard, *arguments: str) -> asyncio.subprocess.Process:
    command = [
        sys.executable,
        "-m",
        "tests.conformance.engine",
        yard.kind,
        str(yard.data_dir),
        yard.layers[0],
        *arguments,
    ]
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)


async def _adopt(yard: Yard, *keep: Handle, snapshots: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """What a fresh process finds."""
    handles = json.dumps([asdict(handle) for handle in keep])
    process = await _engine(yard, "adopt", handles, json.dumps(snapshots))
    output, _ = await process.communicate()
    assert process.returncode == 0
    return dict(json.loads(output))


async def test_a_new_process_adopts_what_the_old_one_left(yard: Yard) -> None:
    running, agent = await yard.create()
    await agent.run("echo run > file")
    await agent.begin("sleep 1000")
    frozen, agent = await yard.create()
    await agent.run("echo frost > file")
    await yard.driver.freeze(frozen)
    stopped = await yard.driver.stop((await yard.create())[0])
    unknown = Handle("never", yard.driver.name, running.data)
    await yard.close()
    found = await _adopt(yard, running, frozen, stopped, unknown)
    assert found == {
        running.id: ["running", "run\n"],
        frozen.id: ["frozen", None],
        stopped.id: ["stopped", None],
        "never": ["absent", None],
    }
    again = await yard.open([running, frozen, stopped])
    assert again == {running.id: Condition.RUNNING, frozen.id: Condition.FROZEN, stopped.id: Condition.STOPPED}
    await yard.driver.thaw(frozen)
    assert await yard.agent(frozen).read("file") == "frost\n"
    ended = asyncio.ensure_future(yard.driver.wait_for_exit(running))
    await yard.driver.kill(running)
    assert await asyncio.wait_for(ended, 10)
    booted = await yard.driver.boot(stopped, yard.spec(stopped.id))
    assert await yard.driver.condition(booted) is Condition.RUNNING


async def test_what_is_not_named_is_garbage(yard: Yard) -> None:
    kept, agent = await yard.create()
    await agent.run("echo kept > file")
    running, _ = await yard.create()
    frozen, _ = await yard.create()
    await yard.driver.freeze(frozen)
    stopped = await yard.driver.stop((await yard.create())[0])
    wanted = await yard.driver.snapshot(kept, "wanted")
    await yard.driver.snapshot(kept, "unwanted")
    assert await yard.open([kept], ["wanted"]) == {kept.id: Condition.RUNNING}
    for handle in (running, frozen, stopped):
        assert await yard.driver.condition(handle) is Condition.ABSENT
        assert yard.traces(handle.id) == []
    assert yard.traces("unwanted") == []
    assert await yard.agent(kept).read("file") == "kept\n"
    _, later = await yard.create(layers=wanted)
    assert await later.read("file") == "kept\n"


async def test_opening_twice_is_like_opening_once(yard: Yard) -> None:
    handle, agent = await yard.create()
    for _ in range(2):
        assert await yard.driver.open([handle], []) == {handle.id: Condition.RUNNING}
    assert await agent.health() == 204
    other, _ = await yard.create()
    assert await yard.driver.open([handle], []) == {handle.id: Condition.RUNNING}
    assert await yard.driver.condition(other) is Condition.ABSENT


async def test_a_boot_nobody_heard_of(yard: Yard) -> None:
    """The engine died between the boot and writing its handle down. With the old handle the sandbox is either found, and then it is of
    use, or its processes are gone; its file system is there."""
    handle, agent = await yard.create()
    await agent.run("echo kept > file")
    stopped = await yard.driver.stop(handle)
    for known in (stopped, handle):
        await yard.driver.boot(stopped, yard.spec(handle.id))
        found = await yard.open([known])
        if found[handle.id] is Condition.RUNNING:
            assert await yard.agent(known).read("file") == "kept\n"
        else:
            assert found == {handle.id: Condition.STOPPED}
        stopped = await yard.driver.stop(known)
    booted = await yard.driver.boot(stopped, yard.spec(handle.id))
    assert await yard.agent(booted).read("file") == "kept\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("deaths", [2, pytest.param(6, marks=pytest.mark.slow)])
async def test_an_engine_killed_at_any_instant_loses_and_leaves_nothing(yard: Yard, deaths: int) -> None:
    rng = random.Random(20)
    for _ in range(deaths):
        await yard.close()
        process = await _engine(yard, "work")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        os.kill(process.pid, signal.SIGKILL)
        lines = (await process.stdout.read()).decode().split("\n")
        await process.wait()
        known = {handle.id: handle for handle in (from_json(line) for line in lines[:-1])}
        found = await yard.open(known.values())
        for name, condition in found.items():
            if condition is Condition.RUNNING and "f" not in name:
                assert await yard.agent(known[name]).read("file") == "alive\n"
        assert await yard.open() == {}
        left = [name for name in known if yard.traces(name)]
        assert left == []
