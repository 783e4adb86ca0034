"""Fork and snapshot: copies of a file system at one instant that are independent from then on."""

from __future__ import annotations

import pytest

from sandyard.engine.contract import Condition, Handle
from sandyard.kit.errors import ConflictError, NotFoundError, UnsupportedError
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import DriverHarness


async def _fork(harness: DriverHarness, handle: Handle, name: str = "") -> tuple[Handle, GuestAgent]:
    fork = await harness.driver.fork(handle, harness.spec(name))
    return fork, harness.agent(fork)


async def test_a_fork_has_the_same_files_and_is_independent(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo both > file; mkdir -p deep/er; ln -s file link; echo x > gone; rm gone")
    fork, copy = await _fork(harness, handle)
    assert await copy.read("link") == "both\n"
    assert (await copy.run("ls gone")).code != 0
    await agent.run("echo original > file")
    await copy.run("echo copy > file; rm -r deep")
    assert await agent.read("file") == "original\n"
    assert await copy.read("file") == "copy\n"
    assert (await agent.run("ls deep/er")).code == 0
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
    await harness.driver.kill(handle)
    assert await copy.read("file") == "copy\n"
    assert await harness.driver.get_condition(fork) is Condition.RUNNING


async def test_a_fork_does_not_change_the_condition_of_the_original(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo it > file")
    pid = await agent.start("sleep 1000")
    await _fork(harness, handle)
    assert (await agent.run(f"kill -0 {pid}")).code == 0
    await harness.driver.freeze(handle)
    _, fork_of_frozen = await _fork(harness, handle)
    assert await fork_of_frozen.read("file") == "it\n"
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    stopped = await harness.driver.stop(handle)
    _, fork_of_stopped = await _fork(harness, stopped)
    assert await fork_of_stopped.read("file") == "it\n"
    assert await harness.driver.get_condition(stopped) is Condition.STOPPED
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    assert await harness.agent(booted).read("file") == "it\n"


async def test_a_copy_shows_the_files_of_one_instant(harness: DriverHarness) -> None:
    """Two files are written in turn, endlessly: no copy may show the second ahead of the first."""
    handle, agent = await harness.create()
    step = "echo $i > next; mv next first; echo $i > next; mv next second"
    await agent.run("echo 0 > first; echo 0 > second")
    await agent.start(f"i=0; while :; do i=$((i+1)); {step}; done")
    last = -1
    for number in range(3):
        _, fork = await _fork(harness, handle)
        _, later = await harness.create(layers=await harness.driver.snapshot(handle, f"instant{number}"))
        for copy in (fork, later):
            first, second = (int(line) for line in (await copy.run("cat first second")).out.split())
            assert first - second in {0, 1}
            assert first >= last
            last = first


async def test_a_failed_fork_leaves_nothing_behind(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    with pytest.raises(ConflictError):
        await harness.driver.fork(handle, harness.spec(handle.id))
    assert await agent.health() == 204
    missing = Handle("nobody", harness.driver.name, handle.data)
    with pytest.raises(NotFoundError):
        await harness.driver.fork(missing, harness.spec("child"))
    assert harness.traces("child") == []


async def test_a_snapshot_is_independent_of_the_sandbox(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo then > file")
    layers = await harness.driver.snapshot(handle, "early")
    assert await harness.driver.get_condition(handle) is Condition.RUNNING
    await agent.run("echo now > file; echo new > new")
    await harness.driver.kill(handle)
    for _ in range(2):
        _, later = await harness.create(layers=layers)
        assert await later.read("file") == "then\n"
        assert (await later.run("ls new")).code != 0
        await later.run("echo mine > file")


async def test_snapshots_can_build_on_snapshots(harness: DriverHarness) -> None:
    layers = harness.layers
    for number in range(4):
        handle, agent = await harness.create(layers=layers)
        await agent.run(f"echo {number} >> all; echo {number} > only{number}; rm -f only{number - 1}")
        layers = await harness.driver.snapshot(handle, f"level{number}")
        await harness.driver.kill(handle)
    _, top = await harness.create(layers=layers)
    assert await top.read("all") == "0\n1\n2\n3\n"
    assert (await top.run("echo only*")).out == "only3\n"


async def test_frozen_and_stopped_sandboxes_can_be_snapshotted(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo it > file")
    await harness.driver.freeze(handle)
    frozen_layers = await harness.driver.snapshot(handle, "frozen")
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    stopped = await harness.driver.stop(handle)
    stopped_layers = await harness.driver.snapshot(stopped, "stopped")
    assert await harness.driver.get_condition(stopped) is Condition.STOPPED
    await harness.driver.kill(stopped)
    for layers in (frozen_layers, stopped_layers):
        _, later = await harness.create(layers=layers)
        assert await later.read("file") == "it\n"


async def test_a_stopped_sandbox_boots_after_its_snapshot_was_deleted(harness: DriverHarness) -> None:
    handle, agent = await harness.create()
    await agent.run("echo first > file")
    stopped = await harness.driver.stop(handle)
    await harness.driver.snapshot(stopped, "short")
    await harness.driver.delete_snapshot("short")
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    rebooted = harness.agent(booted)
    assert await rebooted.read("file") == "first\n"
    await rebooted.run("echo second >> file")
    fork, copy = await _fork(harness, await harness.driver.stop(booted))
    await harness.driver.kill(booted)
    assert await copy.read("file") == "first\nsecond\n"
    assert await harness.driver.get_condition(fork) is Condition.RUNNING


async def test_deleting_a_snapshot_is_idempotent(harness: DriverHarness) -> None:
    handle, _ = await harness.create()
    await harness.driver.snapshot(handle, "brief")
    assert harness.traces("brief")
    for _ in range(2):
        await harness.driver.delete_snapshot("brief")
        assert harness.traces("brief") == []


async def test_files_of_the_image_can_be_changed_and_removed(harness: DriverHarness) -> None:
    if not harness.real:
        pytest.skip("the fake driver has no image")
    handle, agent = await harness.create()
    assert await agent.read("/var/data/inner/file") == "of the template\n"
    await agent.run("echo changed > /var/data/inner/file; rm /etc/group")
    assert (await agent.run("mkdir /new && mv /new /newer && rmdir /newer")).code == 0
    layers = await harness.driver.snapshot(handle, "changed")
    _, later = await harness.create(layers=layers)
    assert await later.read("/var/data/inner/file") == "changed\n"
    assert (await later.run("ls /etc/group")).code != 0
    assert (await later.run("rm -r /var/data && ls /var/data")).code != 0
    _, fresh = await harness.create()
    assert await fresh.read("/var/data/inner/file") == "of the template\n"


async def test_a_fork_with_memory_is_refused_where_it_is_not_supported(harness: DriverHarness) -> None:
    if harness.spec().isolation in harness.driver.capabilities.memory_fork:
        pytest.skip("this isolation level supports it")
    handle, agent = await harness.create()
    pid = await agent.start("sleep 1000")
    with pytest.raises(UnsupportedError):
        await harness.driver.fork_with_memory(handle, [harness.spec()])
    assert (await agent.run(f"kill -0 {pid}")).code == 0
