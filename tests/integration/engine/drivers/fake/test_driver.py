"""The fake driver fulfils the contract with real guest agents, and fails on request."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandyard.engine.contract import AGENT_PORT, Condition, Handle, Limits, NetworkPolicy, Spec
from sandyard.engine.drivers.fake import processes
from sandyard.engine.drivers.fake.driver import FakeDriver
from sandyard.engine.drivers.fake.faults import When
from sandyard.kit.errors import ConflictError, FullError, NotFoundError, UnreachableError, UnsupportedError


@pytest.fixture
async def driver(tmp_path: Path) -> AsyncIterator[FakeDriver]:
    driver = FakeDriver(tmp_path)
    await driver.open([], [])
    yield driver
    driver.faults.heal()
    await driver.open([], [])  # removes everything
    await driver.close()
    assert not driver.files.sockets.exists()


def spec(name: str, *layers: str, **fields: object) -> Spec:
    return Spec(f"i{name}", layers or ("tpl:base",), **fields)


async def send_request(driver: FakeDriver, handle: Handle, request: str, body: bytes = b"") -> tuple[int, bytes]:
    """Send one HTTP request to the guest agent and return the status and the body."""
    connection = await driver.connect(handle, AGENT_PORT)
    loop = asyncio.get_running_loop()
    head = f"{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/octet-stream\r\n\r\n"
    with connection:
        await loop.sock_sendall(connection, head.encode() + body)
        response = b""
        while received := await asyncio.wait_for(loop.sock_recv(connection, 65536), 10):
            response += received
    top, _, rest = response.partition(b"\r\n\r\n")
    return int(top.split(b" ")[1]), rest


async def write(driver: FakeDriver, handle: Handle, path: str, content: bytes) -> None:
    status, _ = await send_request(driver, handle, f"POST /files?path={path}", content)
    assert status == 200


async def read(driver: FakeDriver, handle: Handle, path: str) -> bytes | None:
    status, content = await send_request(driver, handle, f"GET /files?path={path}")
    return content if status == 200 else None


async def start(driver: FakeDriver, handle: Handle, command: str) -> int:
    """Start a command through the guest agent's Connect protocol and return its pid."""
    message = json.dumps({"process": {"cmd": "/bin/bash", "args": ["-c", command]}}).encode()
    body = b"\0" + len(message).to_bytes(4, "big") + message
    head = "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nContent-Type: application/connect+json\r\n"
    head += f"Connect-Protocol-Version: 1\r\nContent-Length: {len(body)}\r\n\r\n"
    connection = await driver.connect(handle, AGENT_PORT)
    loop = asyncio.get_running_loop()
    with connection:
        await loop.sock_sendall(connection, head.encode() + body)
        response = b""
        while b'"pid"' not in response or b"}" not in response.split(b'"pid"')[1]:
            received = await asyncio.wait_for(loop.sock_recv(connection, 65536), 10)
            assert received, response
            response += received
    return int("".join(char for char in response.split(b'"pid"')[1].split(b"}")[0].decode() if char.isdigit()))


async def test_a_created_sandbox_responds(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    assert json.loads(json.dumps(dict(handle.data))) == handle.data
    assert await driver.get_condition(handle) is Condition.RUNNING
    assert (await send_request(driver, handle, "GET /health"))[0] == 204
    await write(driver, handle, "/home/user/x", b"hello")
    assert await read(driver, handle, "/home/user/x") == b"hello"
    with pytest.raises(ConflictError):
        await driver.create(spec("one"))
    assert await read(driver, handle, "/home/user/x") == b"hello"


async def test_frozen_processes_stop_and_continue_after_a_thaw(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    pid = await start(driver, handle, "while true; do sleep 0.01; done")
    await driver.freeze(handle)
    assert await driver.get_condition(handle) is Condition.FROZEN
    assert processes.read_process(pid).stopped
    await driver.freeze(handle)
    await driver.thaw(handle)
    assert await driver.get_condition(handle) is Condition.RUNNING
    assert not processes.read_process(pid).stopped
    assert (await send_request(driver, handle, "GET /health"))[0] == 204


async def test_a_request_to_a_frozen_sandbox_is_answered_after_a_thaw(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    await driver.freeze(handle)  # as while a snapshot is taken
    answer = asyncio.create_task(send_request(driver, handle, "GET /health"))
    await asyncio.sleep(0)
    await driver.thaw(handle)
    assert (await answer)[0] == 204


async def test_killing_a_sandbox_kills_its_orphans(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    await start(driver, handle, "(setsid sleep 1000 & echo $! > /tmp/unused; setsid sleep 1001 &) ; exec sleep 1002")
    agent = driver.agents["ione"]

    def list_sleep_commands() -> set[bytes]:
        command_lines = set()
        for process in processes.list_process_tree(agent):
            with contextlib.suppress(OSError):  # the process has ended in the meantime
                command_lines.add(Path(f"/proc/{process.pid}/cmdline").read_bytes())
        return {line for line in command_lines if line.startswith(b"sleep\0")}

    async with asyncio.timeout(30):
        while len(list_sleep_commands()) < 3:
            await asyncio.sleep(0.01)
    members = [process.pid for process in processes.list_process_tree(agent)]
    await driver.kill(handle)
    assert not any((found := processes.read_process(pid)) and found.alive for pid in members)


async def test_stop_and_boot_keep_files_only(driver: FakeDriver) -> None:
    one = spec("one")
    handle = await driver.create(one)
    await write(driver, handle, "/home/user/x", b"kept")
    pid = driver.agents["ione"]
    handle = await driver.stop(await driver.stop(handle))
    assert await driver.get_condition(handle) is Condition.STOPPED
    with pytest.raises(UnreachableError):
        await driver.connect(handle, AGENT_PORT)
    handle = await driver.boot(handle, one)
    assert driver.agents["ione"] != pid
    assert await read(driver, handle, "/home/user/x") == b"kept"
    with pytest.raises(ConflictError):
        await driver.boot(handle, one)


async def test_a_snapshot_is_of_one_instant_and_independent_of_other_layers(driver: FakeDriver) -> None:
    first = await driver.create(spec("one"))
    await write(driver, first, "/home/user/x", b"1")
    layers = await driver.snapshot(first, "snap1")
    await write(driver, first, "/home/user/x", b"2")
    second = await driver.create(spec("two", *layers))
    assert await read(driver, second, "/home/user/x") == b"1"
    (driver.files.get_root("itwo") / "home/user/x").unlink()
    third = await driver.create(spec("three", *await driver.snapshot(second, "snap2")))
    assert await read(driver, third, "/home/user/x") is None
    await driver.delete_snapshot("snap1")
    await driver.delete_snapshot("snap1")
    assert await driver.get_condition(first) is Condition.RUNNING


async def test_a_snapshot_of_a_frozen_sandbox_leaves_it_frozen(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    await driver.freeze(handle)
    await driver.snapshot(handle, "snap")
    assert await driver.get_condition(handle) is Condition.FROZEN


async def test_a_fork_has_its_own_files(driver: FakeDriver) -> None:
    parent = await driver.create(spec("one"))
    await write(driver, parent, "/home/user/x", b"1")
    child = await driver.fork(parent, spec("two"))
    await write(driver, child, "/home/user/x", b"2")
    assert await read(driver, parent, "/home/user/x") == b"1"
    assert not list(driver.files.base.glob("fork-*"))


async def test_wait_for_exit_reports_the_reason(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    waiting = asyncio.create_task(driver.wait_for_exit(handle))
    await asyncio.sleep(0)
    os.kill(driver.agents["ione"], signal.SIGKILL)
    assert "exit code -9" in await asyncio.wait_for(waiting, 30)
    assert await driver.get_condition(handle) is Condition.STOPPED
    waiting = asyncio.create_task(driver.wait_for_exit(await driver.create(spec("two"))))
    await asyncio.sleep(0)
    await driver.vanish("itwo")
    assert await asyncio.wait_for(waiting, 30) == "It vanished"
    assert await driver.get_condition(Handle("itwo", "fake")) is Condition.ABSENT


async def test_wait_for_exit_can_be_cancelled(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    waiting = asyncio.create_task(driver.wait_for_exit(handle))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await driver.get_condition(handle) is Condition.RUNNING


async def test_another_driver_object_adopts_known_sandboxes(driver: FakeDriver, tmp_path: Path) -> None:
    handles = {name: await driver.create(spec(name)) for name in ("run", "froze", "stop", "gone", "garbage")}
    await write(driver, handles["run"], "/home/user/x", b"1")
    await driver.freeze(handles["froze"])
    await driver.stop(handles["stop"])
    await driver.vanish("igone")
    await driver.snapshot(handles["run"], "keep")
    await driver.snapshot(handles["run"], "drop")
    other = FakeDriver(tmp_path)
    keep = [Handle(handle.id, handle.driver, json.loads(json.dumps(dict(handle.data)))) for handle in handles.values()]
    conditions = await other.open([handle for handle in keep if handle.id != "igarbage"], ["keep"])
    assert conditions == {
        "irun": Condition.RUNNING, "ifroze": Condition.FROZEN, "istop": Condition.STOPPED, "igone": Condition.ABSENT,
    }  # fmt: skip
    assert await read(other, handles["run"], "/home/user/x") == b"1"
    await other.thaw(handles["froze"])
    assert {path.name for path in other.files.sandboxes.iterdir()} == {"irun", "ifroze", "istop"}
    assert {path.name for path in other.files.snapshots.iterdir()} == {"keep"}
    ended = asyncio.create_task(other.wait_for_exit(handles["run"]))
    await asyncio.sleep(0)
    os.kill(other.agents["irun"], signal.SIGKILL)
    assert "ended" in await asyncio.wait_for(ended, 30)


async def test_connect_reaches_open_ports_and_rejects_closed_ones(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (await driver.connect(handle, port)).close()
    with pytest.raises(UnreachableError):
        await driver.connect(handle, port)


async def test_stats_are_measured_and_the_network_policy_is_stored(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one", limits=Limits(memory_mb=64, cpu_count=3)))
    await write(driver, handle, "/home/user/x", b"x" * 100_000)
    stats = await driver.get_stats(handle)
    assert stats.memory_total == 64 << 20 and stats.cpu_count == 3
    assert stats.memory_used > 1 << 20 and stats.disk_used >= 100_000
    await driver.set_network(handle, NetworkPolicy(False, ("1.1.1.1",)))
    assert driver.get_policy("ione") == NetworkPolicy(False, ("1.1.1.1",))


async def test_a_missing_sandbox_is_absent_and_cannot_be_used(driver: FakeDriver) -> None:
    missing = Handle("inobody", "fake")
    assert await driver.get_condition(missing) is Condition.ABSENT
    await driver.kill(missing)
    for verb in (driver.freeze, driver.thaw, driver.stop, driver.get_stats):
        with pytest.raises(NotFoundError):
            await verb(missing)
    with pytest.raises(NotFoundError):
        await driver.snapshot(missing, "x")
    with pytest.raises(UnsupportedError):
        await driver.suspend(missing)


async def test_verbs_fail_hang_and_slow_down_on_request(driver: FakeDriver) -> None:
    handle = await driver.create(spec("one"))
    driver.faults.make_fail("freeze", FullError("no room"))
    with pytest.raises(FullError, match="no room"):
        await driver.freeze(handle)
    assert await driver.get_condition(handle) is Condition.RUNNING
    driver.faults.make_fail("freeze", FullError("no room"), When.AFTER)
    driver.faults.heal()
    driver.faults.make_stuck("freeze")
    freezing = asyncio.create_task(driver.freeze(handle))
    await asyncio.wait_for(driver.faults.wait_until_hit("freeze"), 30)
    assert await driver.get_condition(handle) is Condition.RUNNING and not freezing.done()
    driver.faults.heal()
    await asyncio.wait_for(freezing, 30)
    assert await driver.get_condition(handle) is Condition.FROZEN
    driver.faults.make_slow("thaw", 0.01)
    await driver.thaw(handle)


async def test_a_cancelled_create_leaves_nothing_behind(driver: FakeDriver) -> None:
    creating = asyncio.create_task(driver.create(spec("one")))
    while "ione" not in driver.agents:
        await asyncio.sleep(0)
    pid = driver.agents["ione"]
    creating.cancel()
    await asyncio.gather(creating, return_exceptions=True)
    for _ in range(500):
        if await driver.get_condition(Handle("ione", "fake")) is Condition.ABSENT:
            break
        await asyncio.sleep(0.01)
    assert processes.read_process(pid) is None or not processes.read_process(pid).alive
    assert await driver.get_condition(Handle("ione", "fake")) is Condition.ABSENT
