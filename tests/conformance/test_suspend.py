"""Suspend and restore: memory goes to disk, and the same processes come back in a new driver object."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError
from tests.conformance.guest_agent import GuestAgent
from tests.conformance.harness import DriverHarness, as_json, from_json

pytestmark = pytest.mark.timeout(120)

# A number that exists only in the memory of a shell, which writes it to a file on a signal.
_COUNTER = "n=0; trap 'echo $n > count' USR1; while :; do n=$((n+1)); sleep 0.01; done"


async def _read_counter(agent: GuestAgent, pid: int) -> int:
    await agent.run("rm -f count")
    assert (await agent.run(f"kill -USR1 {pid}")).code == 0
    while not (text := (await agent.run("cat count")).out.strip()):
        await asyncio.sleep(0.01)
    return int(text)


def _memory_path(harness: DriverHarness, handle: Handle) -> Path:
    return harness.host_dir / {"gvisor": "suspended-gvisor"}.get(harness.kind, "suspended") / handle.id


def _list_host_pids(harness: DriverHarness, handle: Handle) -> list[str]:
    """Return the host pids in the sandbox's cgroups."""
    folders = json.loads((harness.host_dir / "instance.json").read_text())["cgroups"].values()
    files = [Path(folder, handle.id, "cgroup.procs") for folder in folders]
    return [pid for file in files if file.exists() for pid in file.read_text().split()]


async def _create_suspended(harness: DriverHarness, command: str = _COUNTER) -> tuple[Handle, int, int]:
    """Return a suspended sandbox, the pid inside it of a process that counts, and its count before the suspend."""
    handle, agent = await harness.create()
    pid = await agent.start(command)
    while (count := await _read_counter(agent, pid)) < 20:
        await asyncio.sleep(0.05)
    await harness.driver.freeze(handle)
    return await harness.driver.suspend(handle), pid, count


async def test_another_engine_restores_the_same_processes(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, count = await _create_suspended(harness)
    assert await harness.driver.get_condition(handle) is Condition.SUSPENDED
    assert _list_host_pids(harness, handle) == []
    assert (await harness.driver.get_stats(handle)).memory_used == 0
    with pytest.raises(UnreachableError):
        await harness.driver.connect(handle, AGENT_PORT)
    stored = from_json(as_json(handle))
    assert await harness.open([stored]) == {handle.id: Condition.SUSPENDED}
    restored = await harness.driver.restore(stored)
    assert await harness.driver.get_condition(restored) is Condition.RUNNING
    assert not _memory_path(harness, handle).exists()
    agent = harness.agent(restored)
    later = await _read_counter(agent, pid)
    assert later >= count
    assert await _read_counter(agent, pid) >= later
    assert (await agent.run("echo new > file; cat file")).out == "new\n"
    assert await harness.open([from_json(as_json(restored))]) == {handle.id: Condition.RUNNING}
    assert await _read_counter(harness.agent(restored), pid) > later


async def test_a_sandbox_can_be_suspended_and_restored_repeatedly(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, count = await _create_suspended(harness)
    for _ in range(2):
        handle = await harness.driver.restore(handle)
        before, count = count, await _read_counter(harness.agent(handle), pid)
        assert count > before
        await harness.driver.freeze(handle)
        handle = await harness.driver.suspend(handle)
    handle = await harness.driver.restore(handle)
    ended = asyncio.ensure_future(harness.driver.wait_for_exit(handle))
    await harness.driver.kill(handle)
    assert await asyncio.wait_for(ended, 10)
    assert harness.traces(handle.id) == []


async def _read_kernel_limits(agent: GuestAgent) -> list[str]:
    """Return the limits on resources that the kernel counts for a sandbox as a whole."""
    lines = (await agent.run("cat /proc/self/limits /proc/mounts /proc/sys/user/max_user_namespaces")).out.splitlines()
    beginnings = ("Max pending signals", "Max msgqueue size", "devpts ", "0")  # 0 user namespaces
    return [line for line in lines if line.startswith(beginnings)]


async def test_kernel_limits_survive_suspend_and_restore(harness: DriverHarness) -> None:
    await harness.require_suspend()
    if harness.kind == "gvisor":
        pytest.skip("a gVisor sandbox has its own kernel, whose limits affect nobody else")
    handle, agent = await harness.create()
    before = await _read_kernel_limits(agent)
    assert len(before) == 4
    assert "max=" in before[2], "the number of terminals must be limited"
    await harness.driver.freeze(handle)
    agent = harness.agent(await harness.driver.restore(await harness.driver.suspend(handle)))
    assert await _read_kernel_limits(agent) == before
    assert int((await agent.run("cat /proc/sys/user/max_inotify_instances")).out) <= 32


async def test_a_crash_before_the_suspended_handle_is_stored_loses_nothing(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, agent = await harness.create()
    pid = await agent.start(_COUNTER)
    await harness.driver.freeze(handle)
    await harness.driver.suspend(handle)
    assert await harness.open([handle]) == {handle.id: Condition.SUSPENDED}
    restored = await harness.driver.restore(handle)
    assert await _read_counter(harness.agent(restored), pid) > 0


async def test_a_suspended_sandbox_can_be_restored_after_a_reboot(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, agent = await harness.create()
    pid = await agent.start(_COUNTER)
    before = from_json(as_json(handle))
    before.data["life"]["boot"] = "another"
    await harness.driver.freeze(handle)
    await harness.driver.suspend(handle)
    assert await harness.open([before]) == {handle.id: Condition.SUSPENDED}
    restored = await harness.driver.restore(before)
    assert await _read_counter(harness.agent(restored), pid) > 0


async def test_new_sandboxes_do_not_get_the_slot_of_a_suspended_one(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, count = await _create_suspended(harness)
    await harness.open([handle])
    others = [await harness.create() for _ in range(3)]
    restored = await harness.driver.restore(handle)
    assert await _read_counter(harness.agent(restored), pid) > count
    for _, agent in others:
        assert await agent.health() == 204


async def test_killing_a_suspended_sandbox_leaves_nothing_behind(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, _, _ = await _create_suspended(harness)
    other, _, _ = await _create_suspended(harness)
    await harness.driver.kill(handle)
    assert await harness.driver.get_condition(handle) is Condition.ABSENT
    assert harness.traces(handle.id) == []
    assert await harness.open() == {}
    assert harness.traces(other.id) == []
    assert [path for path in _memory_path(harness, handle).parent.rglob("*") if path.is_file()] == []


async def test_stopping_a_suspended_sandbox_discards_its_processes(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, _ = await _create_suspended(harness)
    with pytest.raises(ConflictError):
        await harness.driver.boot(handle, harness.spec(handle.id))
    stopped = await harness.driver.stop(handle)
    assert await harness.driver.get_condition(stopped) is Condition.STOPPED
    assert not _memory_path(harness, handle).exists()
    with pytest.raises(ConflictError):
        await harness.driver.restore(stopped)
    booted = await harness.driver.boot(stopped, harness.spec(handle.id))
    assert "trap" not in (await harness.agent(booted).run(f"tr '\\0' ' ' < /proc/{pid}/cmdline | head -c 20")).out
    assert (await harness.agent(booted).run("cat count")).out != ""


async def test_a_failed_restore_keeps_the_memory(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, count = await _create_suspended(harness)
    image = _memory_path(harness, handle) / ("checkpoint.img" if harness.kind == "gvisor" else "criu/pstree.img")
    content = image.read_bytes()
    image.write_bytes(content[:7])
    with pytest.raises(SandyardError, match=r"can't be restored|could not start"):
        await harness.driver.restore(handle)
    assert await harness.driver.get_condition(handle) is Condition.SUSPENDED
    assert _list_host_pids(harness, handle) == []
    image.write_bytes(content)
    restored = await harness.driver.restore(handle)
    assert await _read_counter(harness.agent(restored), pid) > count


async def test_memory_is_not_restored_after_its_processes_ran_again(harness: DriverHarness) -> None:
    """The engine died during a restore, when the processes were already allowed to run."""
    await harness.require_suspend()
    handle, _, _ = await _create_suspended(harness)
    (_memory_path(harness, handle) / "used").touch()
    assert await harness.open([handle]) == {handle.id: Condition.STOPPED}
    assert not _memory_path(harness, handle).exists()


async def test_copying_a_suspended_sandbox_does_not_affect_it(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, pid, count = await _create_suspended(harness)
    layers = await harness.driver.snapshot(handle, "while-suspended")
    copy = await harness.driver.fork(handle, harness.spec())
    _, fresh = await harness.create(layers=layers)
    for agent in (harness.agent(copy), fresh):
        assert int((await agent.run("cat count")).out) == count
    restored = await harness.driver.restore(handle)
    assert await _read_counter(harness.agent(restored), pid) > count


async def test_suspend_and_restore_of_a_running_sandbox_fail(harness: DriverHarness) -> None:
    await harness.require_suspend()
    handle, agent = await harness.create()
    with pytest.raises(ConflictError):
        await harness.driver.suspend(handle)
    with pytest.raises(ConflictError):
        await harness.driver.restore(handle)
    assert await agent.health() == 204


async def test_a_failed_suspend_leaves_the_sandbox_frozen_and_intact(harness: DriverHarness) -> None:
    """A connection that stays open prevents the suspend."""
    await harness.require_suspend()
    if harness.kind == "gvisor":
        pytest.skip("gVisor can suspend a sandbox with open connections")
    handle, agent = await harness.create()
    pid = await agent.start(_COUNTER)
    connection = await harness.driver.connect(handle, AGENT_PORT)
    await agent.health()
    await harness.driver.freeze(handle)
    with connection, pytest.raises(SandyardError, match="still open"):
        await harness.driver.suspend(handle)
    assert await harness.driver.get_condition(handle) is Condition.FROZEN
    assert not _memory_path(harness, handle).exists()
    await harness.driver.thaw(handle)
    assert await _read_counter(agent, pid) > 0
