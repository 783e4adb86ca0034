"""Test the asynchronous SDK: the same verbs, its own streams, and concurrent requests."""

from __future__ import annotations

import asyncio
import os

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)

from .conftest import NewAsyncSandbox
from .waiting import until_async


async def test_quick_start() -> None:
    async with await AsyncSandbox.create() as sandbox:
        assert await sandbox.is_running()
        await sandbox.files.write("hello.txt", "hello")
        result = await sandbox.commands.run("cat hello.txt")
        assert (result.exit_code, result.stdout) == (0, "hello")
    assert not await sandbox.is_running()


async def test_many_sandboxes_concurrently(new_async_sandbox: NewAsyncSandbox) -> None:
    created = await asyncio.gather(*(new_async_sandbox() for _ in range(15)))
    results = await asyncio.gather(*(sandbox.commands.run("echo $E2B_SANDBOX_ID") for sandbox in created))
    assert [result.stdout.strip() for result in results] == [sandbox.sandbox_id for sandbox in created]


async def test_info_timeout_and_list(new_async_sandbox: NewAsyncSandbox, unique: str) -> None:
    sandbox = await new_async_sandbox(metadata={"run": unique}, timeout=100)
    await sandbox.set_timeout(500)
    info = await sandbox.get_info()
    assert (info.end_at - info.started_at).total_seconds() > 400
    pages = AsyncSandbox.list(query=SandboxQuery(metadata={"run": unique}), limit=1)
    assert [item.sandbox_id for item in await pages.next_items()] == [sandbox.sandbox_id]
    assert not pages.has_next
    connected = await AsyncSandbox.connect(sandbox.sandbox_id, timeout=10)
    assert (await connected.get_info()).end_at == info.end_at


async def test_commands(async_sandbox: AsyncSandbox) -> None:
    output: list[str] = []
    result = await async_sandbox.commands.run("echo out; echo err >&2", on_stdout=output.append)
    assert (result.stdout, result.stderr, "".join(output)) == ("out\n", "err\n", "out\n")
    with pytest.raises(CommandExitException) as caught:
        await async_sandbox.commands.run("exit 42")
    assert caught.value.exit_code == 42
    with pytest.raises(TimeoutException):
        await async_sandbox.commands.run("sleep 30", timeout=1)
    with pytest.raises(InvalidArgumentException):
        await async_sandbox.commands.run("pwd", cwd="/no/such/place")


async def test_many_streams_concurrently(async_sandbox: AsyncSandbox) -> None:
    commands = await asyncio.gather(
        *(async_sandbox.commands.run(f"sleep 1; echo {number}", background=True) for number in range(50))
    )
    results = await asyncio.gather(*(command.wait() for command in commands))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(50)]


async def test_stdin_and_reconnect(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("cat", background=True, stdin=True)
    await async_sandbox.commands.send_stdin(command.pid, "one ")
    await command.disconnect()
    connected = await async_sandbox.commands.connect(command.pid)
    await connected.send_stdin("two")
    await connected.close_stdin()
    assert (await connected.wait()).stdout.endswith("two")
    with pytest.raises(NotFoundException):
        await async_sandbox.commands.connect(999999)
    assert await async_sandbox.commands.kill(999999) is False


async def test_kill_and_list(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("sleep 60", background=True)
    assert [process.pid for process in await async_sandbox.commands.list()] == [command.pid]
    assert await command.kill() is True
    with pytest.raises(CommandExitException):
        await async_sandbox.commands.run(f"kill -0 {command.pid}")


async def test_killing_the_sandbox_ends_the_stream_with_an_error(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("sleep 60", background=True)
    await async_sandbox.kill()
    with pytest.raises(SandboxException, match="sandbox was killed or reached its end of life"):
        await command.wait()


async def test_terminal(async_sandbox: AsyncSandbox) -> None:
    output = bytearray()
    terminal = await async_sandbox.pty.create(
        PtySize(rows=24, cols=80), on_data=output.extend, envs={"ABC": "123"}, cwd="/tmp"
    )
    await async_sandbox.pty.resize(terminal.pid, PtySize(rows=33, cols=99))
    await async_sandbox.pty.send_stdin(terminal.pid, b"echo $ABC $PWD; stty size; exit\n")
    assert (await terminal.wait()).exit_code == 0
    assert b"123 /tmp" in output
    assert b"33 99" in output
    assert await async_sandbox.pty.kill(999999) is False


@pytest.mark.not_in_gvisor("gVisor has no extended attributes")
async def test_metadata_of_a_file(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.files.write("a.txt", "a", metadata={"by": "async"})
    assert (await async_sandbox.files.get_info("a.txt")).metadata == {"by": "async"}


async def test_files(async_sandbox: AsyncSandbox) -> None:
    files = async_sandbox.files
    data = os.urandom(500_000)
    assert (await files.write("a/b.bin", data)).path == "/home/user/a/b.bin"
    assert await files.read("a/b.bin", format="bytes") == data
    assert b"".join([chunk async for chunk in await files.read("a/b.bin", format="stream")]) == data
    await files.write("z.txt", "zip " * 1000, gzip=True)
    assert await files.read("z.txt", gzip=True) == "zip " * 1000
    assert [entry.name for entry in await files.list("a")] == ["b.bin"]
    assert (await files.rename("a/b.bin", "c.bin")).path == "/home/user/c.bin"
    assert await files.make_dir("a") is False
    await files.remove("a")
    assert not await files.exists("a")
    with pytest.raises(NotFoundException):
        await files.read("a/b.bin")
    many = [{"path": f"many/{number}", "data": str(number)} for number in range(60)]
    assert len(await files.write_files(many)) == 60  # type: ignore[arg-type]
    assert [await files.read(f"many/{number}") for number in range(0, 60, 20)] == ["0", "20", "40"]


async def test_watch_streams_events(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.files.make_dir("watched")
    seen: list[tuple[str, str]] = []
    ended = asyncio.Event()
    handle = await async_sandbox.files.watch_dir(
        "watched",
        on_event=lambda event: seen.append((event.type.value, event.name)),
        on_exit=lambda _: ended.set(),
        recursive=True,
        include_entry=True,
    )
    await async_sandbox.files.write("watched/note.txt", "x")
    await async_sandbox.files.make_dir("watched/late")
    await async_sandbox.files.write("watched/late/deep.txt", "x")

    async def all_events_seen() -> bool:
        wanted = {("create", "note.txt"), ("write", "note.txt"), ("create", "late"), ("write", "late/deep.txt")}
        return wanted <= set(seen)

    await until_async(all_events_seen)
    await handle.stop()
    with pytest.raises(NotFoundException):
        await async_sandbox.files.watch_dir("nowhere", on_event=print)
    await async_sandbox.files.write("plain", "x")
    with pytest.raises(SandboxException):
        await async_sandbox.files.watch_dir("plain", on_event=print)


async def test_a_watch_ends_with_its_sandbox(async_sandbox: AsyncSandbox) -> None:
    ended: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()
    await async_sandbox.files.watch_dir("/home/user", on_event=print, on_exit=ended.set_result, timeout=0)
    await async_sandbox.kill()
    assert isinstance(await asyncio.wait_for(ended, 10), Exception)


async def test_pause_and_connect(async_sandbox: AsyncSandbox) -> None:
    command = await async_sandbox.commands.run("sleep 600", background=True, timeout=0)
    assert await async_sandbox.pause() is True
    assert await async_sandbox.pause() is False
    assert (await async_sandbox.get_info()).state == SandboxState.PAUSED
    assert not await async_sandbox.is_running()
    await asyncio.gather(*(AsyncSandbox.connect(async_sandbox.sandbox_id) for _ in range(5)))
    assert await async_sandbox.is_running()
    assert command.pid in [process.pid for process in await async_sandbox.commands.list()]


async def test_fork_and_snapshot(async_sandbox: AsyncSandbox, new_async_sandbox: NewAsyncSandbox) -> None:
    await async_sandbox.files.write("state.txt", "copied")
    forks = [fork for fork in await async_sandbox.fork(count=2) if isinstance(fork, AsyncSandbox)]
    try:
        assert [await fork.files.read("state.txt") for fork in forks] == ["copied"] * 2
    finally:
        await asyncio.gather(*(fork.kill() for fork in forks))
    snapshot = await async_sandbox.create_snapshot()
    copy = await new_async_sandbox(snapshot.snapshot_id)
    assert await copy.files.read("state.txt") == "copied"
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is True
    assert await AsyncSandbox.delete_snapshot(snapshot.snapshot_id) is False


async def test_network_and_metrics(async_sandbox: AsyncSandbox) -> None:
    await async_sandbox.update_network({"deny_out": ["0.0.0.0/0"], "allow_out": ["example.com"]})
    network = (await async_sandbox.get_info()).network
    assert network is not None
    assert network["allow_out"] == ["example.com"]
    with pytest.raises(SandboxException):
        await async_sandbox.update_network({"deny_out": ["example.com"]})
    await until_async(async_sandbox.get_metrics)


async def test_invalid_requests_are_refused(async_sandbox: AsyncSandbox) -> None:
    with pytest.raises(AuthenticationException):
        await AsyncSandbox.create(api_key="e2b_" + "0" * 40)
    with pytest.raises(SandboxNotFoundException):
        await AsyncSandbox.connect("ineverexisted00000")
    assert await AsyncSandbox.kill("ineverexisted00000") is False
    assert await async_sandbox.kill() is True
    with pytest.raises(SandboxNotFoundException):
        await async_sandbox.get_info()


async def test_a_cancelled_reader_does_not_stop_the_command(async_sandbox: AsyncSandbox) -> None:
    task = asyncio.create_task(async_sandbox.commands.run("touch begun; sleep 1; touch done", timeout=0))

    async def has_started() -> bool:
        return await async_sandbox.files.exists("begun")

    await until_async(has_started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    async def has_finished() -> bool:
        return await async_sandbox.files.exists("done")

    await until_async(has_finished)
