"""Memory to disk and back: the very processes, in a driver object that never saw them before."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle
from sandyard.engine.drivers.namespace.driver import NamespaceDriver
from sandyard.kit.errors import ConflictError, SandyardError, UnreachableError
from tests.conformance.agent import Agent
from tests.conformance.yard import Yard, as_json, from_json

pytestmark = pytest.mark.timeout(120)

# A number that is nowhere but in a shell's memory, asked for by a signal.
_COUNTER = "n=0; trap 'echo $n > count' USR1; while :; do n=$((n+1)); sleep 0.01; done"


async def _able(yard: Yard) -> None:
    able = yard.driver.capabilities
    if isinstance(yard.driver, NamespaceDriver):
        able = await yard.driver.all_capabilities()
    if not able.suspend:
        pytest.skip(able.missing["suspend"])


async def _count(agent: Agent, pid: int) -> int:
    await agent.run("rm -f count")
    assert (await agent.run(f"kill -USR1 {pid}")).code == 0
    while not (text := (await agent.run("cat count")).out.strip()):
        await asyncio.sleep(0.01)
    return int(text)


def _memory_of(yard: Yard, handle: Handle) -> Path:
    return yard.data_dir / "suspended" / handle.id


def _pids(yard: Yard, handle: Handle) -> list[str]:
    """Host pids in the sandbox's cgroups."""
    folders = json.loads((yard.data_dir / "instance.json").read_text())["cgroups"].values()
    files = [Path(folder, handle.id, "cgroup.procs") for folder in folders]
    return [pid for file in files if file.exists() for pid in file.read_text().split()]


async def _suspended(yard: Yard, command: str = _COUNTER) -> tuple[Handle, int, int]:
    """A suspended sandbox, the pid inside of a process of its, and how far that had counted before."""
    handle, agent = await yard.create()
    pid = await agent.begin(command)
    while (count := await _count(agent, pid)) < 20:
        await asyncio.sleep(0.05)
    await yard.driver.freeze(handle)
    return await yard.driver.suspend(handle), pid, count


async def test_the_very_processes_come_back_in_another_engine(yard: Yard) -> None:
    await _able(yard)
    handle, pid, count = await _suspended(yard)
    assert await yard.driver.condition(handle) is Condition.SUSPENDED
    assert _pids(yard, handle) == []
    assert (await yard.driver.stats(handle)).memory_used == 0
    with pytest.raises(UnreachableError):
        await yard.driver.connect(handle, AGENT_PORT)
    told = from_json(as_json(handle))
    assert await yard.open([told]) == {handle.id: Condition.SUSPENDED}
    restored = await yard.driver.restore(told)
    assert await yard.driver.condition(restored) is Condition.RUNNING
    assert yard.data_dir.joinpath("suspended", handle.id).exists() is False
    agent = yard.agent(restored)
    later = await _count(agent, pid)
    assert later >= count
    assert await _count(agent, pid) >= later
    assert (await agent.run("echo new > file; cat file")).out == "new\n"
    assert await yard.open([from_json(as_json(restored))]) == {handle.id: Condition.RUNNING}
    assert await _count(yard.agent(restored), pid) > later


async def test_it_goes_and_comes_again(yard: Yard) -> None:
    await _able(yard)
    handle, pid, count = await _suspended(yard)
    for _ in range(2):
        handle = await yard.driver.restore(handle)
        before, count = count, await _count(yard.agent(handle), pid)
        assert count > before
        await yard.driver.freeze(handle)
        handle = await yard.driver.suspend(handle)
    ended = asyncio.ensure_future(yard.driver.wait_for_exit(handle := await yard.driver.restore(handle)))
    await yard.driver.kill(handle)
    assert await asyncio.wait_for(ended, 10)
    assert yard.traces(handle.id) == []


async def _counted(agent: Agent) -> list[str]:
    """Of what the kernel counts for all of a sandbox, how much there may be."""
    said = (await agent.run("cat /proc/self/limits /proc/mounts /proc/sys/user/max_user_namespaces")).out.splitlines()
    kinds = ("Max pending signals", "Max msgqueue size", "devpts ", "0")
    return [line for line in said if line.startswith(kinds)]


async def test_what_the_kernel_counts_stays_limited(yard: Yard) -> None:
    await _able(yard)
    handle, agent = await yard.create()
    before = await _counted(agent)
    assert len(before) == 4
    assert "max=" in before[2]
    await yard.driver.freeze(handle)
    agent = yard.agent(await yard.driver.restore(await yard.driver.suspend(handle)))
    assert await _counted(agent) == before
    assert int((await agent.run("cat /proc/sys/user/max_inotify_instances")).out) <= 32


async def test_a_crash_before_the_handle_was_written_loses_nothing(yard: Yard) -> None:
    await _able(yard)
    handle, agent = await yard.create()
    pid = await agent.begin(_COUNTER)
    await yard.driver.freeze(handle)
    await yard.driver.suspend(handle)
    assert await yard.open([handle]) == {handle.id: Condition.SUSPENDED}
    restored = await yard.driver.restore(handle)
    assert await _count(yard.agent(restored), pid) > 0


async def test_images_and_files_are_enough_after_a_reboot(yard: Yard) -> None:
    await _able(yard)
    handle, agent = await yard.create()
    pid = await agent.begin(_COUNTER)
    before = from_json(as_json(handle))
    before.data["life"]["boot"] = "another"
    await yard.driver.freeze(handle)
    await yard.driver.suspend(handle)
    assert await yard.open([before]) == {handle.id: Condition.SUSPENDED}
    restored = await yard.driver.restore(before)
    assert await _count(yard.agent(restored), pid) > 0


async def test_others_do_not_get_its_place_meanwhile(yard: Yard) -> None:
    await _able(yard)
    handle, pid, count = await _suspended(yard)
    await yard.open([handle])
    others = [await yard.create() for _ in range(3)]
    restored = await yard.driver.restore(handle)
    assert await _count(yard.agent(restored), pid) > count
    for _, agent in others:
        assert await agent.health() == 204


async def test_killed_while_suspended_it_leaves_nothing(yard: Yard) -> None:
    await _able(yard)
    handle, _, _ = await _suspended(yard)
    other, _, _ = await _suspended(yard)
    await yard.driver.kill(handle)
    assert await yard.driver.condition(handle) is Condition.ABSENT
    assert yard.traces(handle.id) == []
    assert await yard.open() == {}
    assert yard.traces(other.id) == []
    assert [path for path in (yard.data_dir / "suspended").rglob("*") if path.is_file()] == []


async def test_stopped_while_suspended_it_boots_anew(yard: Yard) -> None:
    await _able(yard)
    handle, pid, _ = await _suspended(yard)
    with pytest.raises(ConflictError):
        await yard.driver.boot(handle, yard.spec(handle.id))
    stopped = await yard.driver.stop(handle)
    assert await yard.driver.condition(stopped) is Condition.STOPPED
    assert not _memory_of(yard, handle).exists()
    with pytest.raises(ConflictError):
        await yard.driver.restore(stopped)
    booted = await yard.driver.boot(stopped, yard.spec(handle.id))
    assert "trap" not in (await yard.agent(booted).run(f"tr '\\0' ' ' < /proc/{pid}/cmdline | head -c 20")).out
    assert (await yard.agent(booted).run("cat count")).out != ""


async def test_a_restore_that_fails_keeps_the_memory(yard: Yard) -> None:
    await _able(yard)
    handle, pid, count = await _suspended(yard)
    image = _memory_of(yard, handle) / "criu" / "pstree.img"
    content = image.read_bytes()
    image.write_bytes(content[:7])
    with pytest.raises(SandyardError, match="can't be restored"):
        await yard.driver.restore(handle)
    assert await yard.driver.condition(handle) is Condition.SUSPENDED
    assert _pids(yard, handle) == []
    image.write_bytes(content)
    restored = await yard.driver.restore(handle)
    assert await _count(yard.agent(restored), pid) > count


async def test_memory_that_ran_on_never_comes_back(yard: Yard) -> None:
    """The engine died while a restore was under way, and the processes were let run already."""
    await _able(yard)
    handle, _, _ = await _suspended(yard)
    (_memory_of(yard, handle) / "used").touch()
    assert await yard.open([handle]) == {handle.id: Condition.STOPPED}
    assert not _memory_of(yard, handle).exists()


async def test_a_suspended_sandbox_is_copied_and_comes_back_unharmed(yard: Yard) -> None:
    await _able(yard)
    handle, pid, count = await _suspended(yard)
    layers = await yard.driver.snapshot(handle, "while-suspended")
    copy = await yard.driver.fork(handle, yard.spec())
    _, fresh = await yard.create(layers=layers)
    for agent in (yard.agent(copy), fresh):
        assert int((await agent.run("cat count")).out) == count
    restored = await yard.driver.restore(handle)
    assert await _count(yard.agent(restored), pid) > count


async def test_only_what_is_frozen_can_go(yard: Yard) -> None:
    await _able(yard)
    handle, agent = await yard.create()
    with pytest.raises(ConflictError):
        await yard.driver.suspend(handle)
    with pytest.raises(ConflictError):
        await yard.driver.restore(handle)
    assert await agent.health() == 204


async def test_what_cannot_go_stays_frozen_and_whole(yard: Yard) -> None:
    """A connection that nobody closes."""
    await _able(yard)
    handle, agent = await yard.create()
    pid = await agent.begin(_COUNTER)
    connection = await yard.driver.connect(handle, AGENT_PORT)
    await agent.health()
    await yard.driver.freeze(handle)
    with connection, pytest.raises(SandyardError, match="still open"):
        await yard.driver.suspend(handle)
    assert await yard.driver.condition(handle) is Condition.FROZEN
    assert not _memory_of(yard, handle).exists()
    await yard.driver.thaw(handle)
    assert await _count(agent, pid) > 0
