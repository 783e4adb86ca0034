"""Restarts and crashes of the engine: the sandboxes it knows survive, all others are removed."""

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

from sandyard.engine.contract import Condition, Handle, Layers
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.drivers.machine.driver import MachineDriver
from tests.conformance.harness import DriverHarness, from_json


async def _start_engine(harness: DriverHarness, *arguments: str) -> asyncio.subprocess.Process:
    command = [
        sys.executable,
        "-m",
        "tests.conformance.engine",
        harness.kind,
        str(harness.data_dir),
        harness.layers[0],
        *arguments,
    ]
    return await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)


async def _adopt(harness: DriverHarness, *keep: Handle, snapshots: tuple[str, ...] = ()) -> dict[str, list[str]]:
    """Return what a new process finds for each sandbox: its condition, and the content of `file` if it runs."""
    handles = json.dumps([asdict(handle) for handle in keep])
    process = await _start_engine(harness, "adopt", handles, json.dumps(snapshots))
    output, _ = await process.communicate()
    assert process.returncode == 0
    return dict(json.loads(output))


async def test_a_new_engine_process_adopts_known_sandboxes(harness: DriverHarness) -> None:
    running, agent = await harness.create()
    await agent.run("echo run > file")
    await agent.start("sleep 1000")
    frozen, agent = await harness.create()
    await agent.run("echo frost > file")
    await harness.driver.freeze(frozen)
    stopped = await harness.driver.stop((await harness.create())[0])
    unknown = Handle("never", harness.driver.name, running.data)
    await harness.close()
    found = await _adopt(harness, running, frozen, stopped, unknown)
    assert found == {
        running.id: ["running", "run\n"],
        frozen.id: ["frozen", None],
        stopped.id: ["stopped", None],
        "never": ["absent", None],
    }
    again = await harness.open([running, frozen, stopped])
    assert again == {running.id: Condition.RUNNING, frozen.id: Condition.FROZEN, stopped.id: Condition.STOPPED}
    await harness.driver.thaw(frozen)
    assert await harness.agent(frozen).read("file") == "frost\n"
    ended = asyncio.ensure_future(harness.driver.wait_for_exit(running))
    await harness.driver.kill(running)
    assert await asyncio.wait_for(ended, 10)
    booted = await harness.driver.boot(stopped, harness.spec(stopped.id))
    assert await harness.driver.get_condition(booted) is Condition.RUNNING


async def test_open_removes_sandboxes_and_snapshots_that_are_not_listed(harness: DriverHarness) -> None:
    kept, agent = await harness.create()
    await agent.run("echo kept > file")
    running, _ = await harness.create()
    frozen, _ = await harness.create()
    await harness.driver.freeze(frozen)
    stopped = await harness.driver.stop((await harness.create())[0])
    wanted = await harness.driver.snapshot(kept, "wanted")
    await harness.driver.snapshot(kept, "unwanted")
    assert await harness.open([kept], ["wanted"]) == {kept.id: Condition.RUNNING}
    for handle in (running, frozen, stopped):
        assert await harness.driver.get_condition(handle) is Condition.ABSENT
        assert harness.traces(handle.id) == []
    assert harness.traces("unwanted") == []
    assert await harness.agent(kept).read("file") == "kept\n"
    _, later = await harness.create(layers=wanted)
    assert await later.read("file") == "kept\n"


async def test_records_with_paths_of_layers_are_adopted(harness: DriverHarness) -> None:
    """Earlier versions recorded the paths of layers instead of their names, in handles and for snapshots."""
    if harness.kind == "cluster":
        pytest.skip("earlier versions have no other hosts")
    handle, agent = await harness.create()
    await agent.run("echo one > file")
    stopped = await harness.driver.stop(handle)
    named = await harness.driver.snapshot(stopped, "old")
    _, agent = await harness.create(layers=named)
    await agent.run("echo two > more")
    layers = find_paths(harness, named)
    assert layers != named
    based = await harness.driver.create(harness.spec(layers=layers))
    if harness.real:
        assert based.data["layers"] == list(layers)
    based = await harness.driver.stop(based)
    found = await harness.open([stopped, based], ["old"])
    assert found == {stopped.id: Condition.STOPPED, based.id: Condition.STOPPED}
    booted = await harness.driver.boot(based, harness.spec(based.id, layers=layers))
    assert await harness.agent(booted).read("file") == "one\n"
    fork = await harness.driver.fork(booted, harness.spec(layers=layers))
    assert await harness.agent(fork).read("file") == "one\n"
    again = await harness.driver.snapshot(booted, "new")
    assert again[-len(layers) :] == layers if harness.real else len(again) == 1
    _, agent = await harness.create(layers=again)
    assert await agent.read("file") == "one\n"


def find_paths(harness: DriverHarness, layers: Layers) -> Layers:
    """Return what earlier versions recorded for these layers."""
    if isinstance(harness.driver, MachineDriver):
        return harness.driver.machine.find_layers(layers)
    assert isinstance(harness.driver, FakeDriver)
    return tuple(str(path) for path in reversed(harness.driver.files.find_snapshots(layers)))


async def test_open_is_idempotent(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    for _ in range(2):
        assert await harness.driver.open([handle], []) == {handle.id: Condition.RUNNING}
    assert await agent.health() == 204
    other, _ = await harness.create()
    assert await harness.driver.open([handle], []) == {handle.id: Condition.RUNNING}
    assert await harness.driver.get_condition(other) is Condition.ABSENT


async def test_a_boot_whose_handle_was_not_stored_loses_no_files(harness: DriverHarness) -> None:
    """The engine died after the boot and before it stored the new handle. With the old handle the sandbox is either found running and
    usable, or its processes are gone. Its file system is kept in both cases."""
    handle, agent = await harness.create()
    await agent.run("echo kept > file")
    stopped = await harness.driver.stop(handle)
    for known in (stopped, handle):
        await harness.driver.boot(stopped, harness.spec(handle.id))
        found = await harness.open([known])
        if found[handle.id] is Condition.RUNNING:
            assert await harness.agent(known).read("file") == "kept\n"
        else:
            assert found == {handle.id: Condition.STOPPED}
        stopped = await harness.driver.stop(known)
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    assert await harness.agent(booted).read("file") == "kept\n"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kills", [2, pytest.param(6, marks=pytest.mark.slow)])
async def test_killing_the_engine_at_any_instant_loses_and_leaves_nothing(harness: DriverHarness, kills: int) -> None:
    rng = random.Random(20)
    for _ in range(kills):
        await harness.close()
        process = await _start_engine(harness, "work")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"open\n"
        await asyncio.sleep(rng.uniform(0.05, 0.6))
        os.kill(process.pid, signal.SIGKILL)
        lines = (await process.stdout.read()).decode().split("\n")
        await process.wait()
        known = {handle.id: handle for handle in (from_json(line) for line in lines[:-1])}
        found = await harness.open(known.values())
        for name, condition in found.items():
            if condition is Condition.RUNNING and "f" not in name:
                assert await harness.agent(known[name]).read("file") == "alive\n"
        assert await harness.open() == {}
        leftovers = [name for name in known if harness.traces(name)]
        assert leftovers == []
