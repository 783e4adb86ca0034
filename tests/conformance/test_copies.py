"""Fork and snapshot: copies of a file system at one instant, and independent of it from then on."""

from __future__ import annotations

import pytest

from sandyard.engine.contract import Condition, Handle
from sandyard.kit.errors import ConflictError, NotFoundError
from tests.conformance.agent import Agent
from tests.conformance.yard import Yard


async def _fork(yard: Yard, handle: Handle, name: str = "") -> tuple[Handle, Agent]:
    fork = await yard.driver.fork(handle, yard.spec(name))
    return fork, yard.agent(fork)


async def test_a_fork_has_the_files_and_is_another_sandbox(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo both > file; mkdir -p deep/er; ln -s file link; echo x > gone; rm gone")
    fork, copy = await _fork(yard, handle)
    assert await copy.read("link") == "both\n"
    assert (await copy.run("ls gone")).code != 0
    await agent.run("echo original > file")
    await copy.run("echo copy > file; rm -r deep")
    assert await agent.read("file") == "original\n"
    assert await copy.read("file") == "copy\n"
    assert (await agent.run("ls deep/er")).code == 0
    assert await yard.driver.condition(handle) is Condition.RUNNING
    await yard.driver.kill(handle)
    assert await copy.read("file") == "copy\n"
    assert await yard.driver.condition(fork) is Condition.RUNNING


async def test_the_original_goes_on_in_the_condition_it_was_in(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo it > file")
    pid = await agent.begin("sleep 1000")
    await _fork(yard, handle)
    assert (await agent.run(f"kill -0 {pid}")).code == 0
    await yard.driver.freeze(handle)
    _, of_frozen = await _fork(yard, handle)
    assert await of_frozen.read("file") == "it\n"
    assert await yard.driver.condition(handle) is Condition.FROZEN
    stopped = await yard.driver.stop(handle)
    _, of_stopped = await _fork(yard, stopped)
    assert await of_stopped.read("file") == "it\n"
    assert await yard.driver.condition(stopped) is Condition.STOPPED
    booted = await yard.driver.boot(stopped, yard.spec(handle.id))
    assert await yard.agent(booted).read("file") == "it\n"


async def test_a_copy_is_of_one_instant(yard: Yard) -> None:
    """Two files are written one after the other, for ever: no copy may show the second one ahead of the first."""
    handle, agent = await yard.create()
    step = "echo $i > next; mv next first; echo $i > next; mv next second"
    await agent.run("echo 0 > first; echo 0 > second")
    await agent.begin(f"i=0; while :; do i=$((i+1)); {step}; done")
    last = -1
    for number in range(3):
        _, fork = await _fork(yard, handle)
        _, later = await yard.create(layers=await yard.driver.snapshot(handle, f"instant{number}"))
        for copy in (fork, later):
            first, second = (int(line) for line in (await copy.run("cat first second")).out.split())
            assert first - second in {0, 1}
            assert first >= last
            last = first


async def test_a_fork_that_fails_leaves_nothing(yard: Yard) -> None:
    handle, agent = await yard.create()
    with pytest.raises(ConflictError):
        await yard.driver.fork(handle, yard.spec(handle.id))
    assert await agent.health() == 204
    gone = Handle("nobody", yard.driver.name, handle.data)
    with pytest.raises(NotFoundError):
        await yard.driver.fork(gone, yard.spec("child"))
    assert yard.traces("child") == []


async def test_a_snapshot_is_independent_of_the_sandbox(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo then > file")
    layers = await yard.driver.snapshot(handle, "early")
    assert await yard.driver.condition(handle) is Condition.RUNNING
    await agent.run("echo now > file; echo new > new")
    await yard.driver.kill(handle)
    for _ in range(2):
        _, later = await yard.create(layers=layers)
        assert await later.read("file") == "then\n"
        assert (await later.run("ls new")).code != 0
        await later.run("echo mine > file")


async def test_snapshots_stand_on_snapshots(yard: Yard) -> None:
    layers = yard.layers
    for number in range(4):
        handle, agent = await yard.create(layers=layers)
        await agent.run(f"echo {number} >> all; echo {number} > only{number}; rm -f only{number - 1}")
        layers = await yard.driver.snapshot(handle, f"level{number}")
        await yard.driver.kill(handle)
    _, top = await yard.create(layers=layers)
    assert await top.read("all") == "0\n1\n2\n3\n"
    assert (await top.run("echo only*")).out == "only3\n"


async def test_snapshots_of_frozen_and_stopped_sandboxes(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo it > file")
    await yard.driver.freeze(handle)
    frozen = await yard.driver.snapshot(handle, "frozen")
    assert await yard.driver.condition(handle) is Condition.FROZEN
    stopped = await yard.driver.stop(handle)
    still = await yard.driver.snapshot(stopped, "stopped")
    assert await yard.driver.condition(stopped) is Condition.STOPPED
    await yard.driver.kill(stopped)
    for layers in (frozen, still):
        _, later = await yard.create(layers=layers)
        assert await later.read("file") == "it\n"


async def test_a_stopped_sandbox_goes_on_after_its_snapshot_is_gone(yard: Yard) -> None:
    handle, agent = await yard.create()
    await agent.run("echo first > file")
    stopped = await yard.driver.stop(handle)
    await yard.driver.snapshot(stopped, "short")
    await yard.driver.delete_snapshot("short")
    booted = await yard.driver.boot(stopped, yard.spec(handle.id))
    again = yard.agent(booted)
    assert await again.read("file") == "first\n"
    await again.run("echo second >> file")
    fork, copy = await _fork(yard, await yard.driver.stop(booted))
    await yard.driver.kill(booted)
    assert await copy.read("file") == "first\nsecond\n"
    assert await yard.driver.condition(fork) is Condition.RUNNING


async def test_deleting_a_snapshot_may_be_repeated(yard: Yard) -> None:
    handle, _ = await yard.create()
    await yard.driver.snapshot(handle, "brief")
    assert yard.traces("brief")
    for _ in range(2):
        await yard.driver.delete_snapshot("brief")
        assert yard.traces("brief") == []


async def test_files_of_the_image_can_be_changed_and_removed(yard: Yard) -> None:
    if not yard.real:
        pytest.skip("it has no image")
    handle, agent = await yard.create()
    assert await agent.read("/var/data/inner/file") == "of the template\n"
    await agent.run("echo changed > /var/data/inner/file; rm /etc/group")
    assert (await agent.run("mkdir /new && mv /new /newer && rmdir /newer")).code == 0
    layers = await yard.driver.snapshot(handle, "changed")
    _, later = await yard.create(layers=layers)
    assert await later.read("/var/data/inner/file") == "changed\n"
    assert (await later.run("ls /etc/group")).code != 0
    assert (await later.run("rm -r /var/data && ls /var/data")).code != 0
    _, fresh = await yard.create()
    assert await fresh.read("/var/data/inner/file") == "of the template\n"
