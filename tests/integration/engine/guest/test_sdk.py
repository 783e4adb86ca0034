"""The unmodified Python SDK against the guest agent: the data-plane calls of a user, as in E2B's own test suite."""

from __future__ import annotations

import asyncio
import io
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FilesystemEventType,
    FileType,
    InvalidArgumentException,
    NotFoundException,
    PtySize,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.filesystem.filesystem import WriteEntry

from tests.integration.engine.guest.client import GuestAgent
from tests.integration.engine.guest.sdk_gateway import SdkGateway


@pytest.fixture(scope="module")
def gateway(agent: GuestAgent) -> Iterator[SdkGateway]:
    gateway = SdkGateway(agent.connect)
    yield gateway
    gateway.close()


@pytest.fixture(scope="module")
def sandbox(gateway: SdkGateway) -> Sandbox:
    return Sandbox.create(**gateway.options)


@pytest.fixture
async def async_sandbox(gateway: SdkGateway) -> AsyncIterator[AsyncSandbox]:
    yield await AsyncSandbox.create(**gateway.options)


# commands ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["Hello, World!", "!@#$%^&*()_+", "Hello,\nWorld!"])
def test_run_returns_output_and_exit_code(sandbox: Sandbox, text: str) -> None:
    result = sandbox.commands.run(f"echo '{text}'; echo problem >&2", envs={"FOO": "bar"})
    assert (result.stdout, result.stderr, result.exit_code, result.error) == (f"{text}\n", "problem\n", 0, None)


def test_invalid_utf8_in_output_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.commands.run('printf "' + "a" * 8191 + '\\xe2"').stdout == "a" * 8191 + "\ufffd"


def test_failures_raise_the_exceptions_of_the_sdk(sandbox: Sandbox) -> None:
    with pytest.raises(CommandExitException) as failure:
        sandbox.commands.run("echo out; exit 3")
    assert (failure.value.exit_code, failure.value.stdout) == (3, "out\n")
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 10", timeout=0.5)
    with pytest.raises(InvalidArgumentException):
        sandbox.commands.run("true", cwd="/not/there")
    with pytest.raises(AuthenticationException):
        sandbox.commands.run("true", user="stranger")
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)
    assert sandbox.commands.kill(999_999) is False


def test_a_background_command_can_be_reconnected_and_killed(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("echo begun; sleep 60", background=True)
    assert command.pid in [process.pid for process in sandbox.commands.list()]
    command.disconnect()
    again = sandbox.commands.connect(command.pid)
    assert sandbox.commands.kill(command.pid) is True
    with pytest.raises(CommandExitException):
        again.wait()
    with pytest.raises(CommandExitException):
        sandbox.commands.run(f"kill -0 {command.pid}")


def test_stdin_can_be_sent_and_closed(sandbox: Sandbox) -> None:
    command = sandbox.commands.run("cat", background=True, stdin=True)
    command.send_stdin("Hello,\n")
    sandbox.commands.stream_input(command.pid, ["World", b"!"])
    command.close_stdin()
    assert command.wait().stdout == "Hello,\nWorld!"


def test_a_background_job_does_not_delay_its_command(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result = sandbox.commands.run("sleep 20 & echo $!")
    assert time.monotonic() - started < 10
    os.kill(int(result.stdout), 9)


async def test_async_commands_stream_output_and_run_concurrently(async_sandbox: AsyncSandbox) -> None:
    output: list[str] = []
    command = await async_sandbox.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.1; done", background=True, on_stdout=output.append
    )
    result = await command.wait()
    assert (result.exit_code, "".join(output)) == (0, "1\n2\n3\n")
    many = await asyncio.gather(*(async_sandbox.commands.run(f"echo {number}") for number in range(20)))
    assert [result.stdout for result in many] == [f"{number}\n" for number in range(20)]


# terminals -----------------------------------------------------------------------------------------------------------


def test_a_terminal_can_be_resized_and_used(sandbox: Sandbox) -> None:
    output: list[bytes] = []
    terminal = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"}, cwd="/")
    sandbox.pty.resize(terminal.pid, PtySize(rows=24, cols=100))
    sandbox.pty.send_stdin(terminal.pid, b"echo $ABC; tput cols; pwd\nexit\n")
    assert terminal.wait(on_pty=output.append).exit_code == 0
    text = b"".join(output).decode()
    assert "123\r\n100\r\n" in text


async def test_an_async_terminal_can_be_reconnected(async_sandbox: AsyncSandbox) -> None:
    output: list[bytes] = []
    terminal = await async_sandbox.pty.create(PtySize(rows=24, cols=80), on_data=lambda data: None)
    await terminal.disconnect()
    again = await async_sandbox.pty.connect(terminal.pid, on_data=output.append)
    await async_sandbox.pty.send_stdin(terminal.pid, b"echo again-$((20 + 3))\nexit 0\n")
    assert (await again.wait()).exit_code == 0
    assert b"again-23" in b"".join(output)


# files ---------------------------------------------------------------------------------------------------------------


def test_files_can_be_written_and_read(sandbox: Sandbox, home: Path) -> None:
    info = sandbox.files.write("sub/file.txt", "text \u00fc")
    assert (info.path, info.name, info.type) == ("/home/user/sub/file.txt", "file.txt", FileType.FILE)
    assert sandbox.files.read("sub/file.txt") == "text \u00fc"
    assert sandbox.files.read("sub/file.txt", gzip=True) == "text \u00fc"
    data = os.urandom(5_000_000)
    sandbox.files.write("/home/user/bytes", data)
    assert sandbox.files.read("bytes", format="bytes") == data
    sandbox.files.write("streamed", io.BytesIO(data))
    assert b"".join(sandbox.files.read("streamed", format="stream")) == data
    sandbox.files.write("packed", data, gzip=True)
    assert (home / "packed").read_bytes() == data
    sandbox.files.write("pieces", (part for part in (b"a", b"b" * 100_000, b"c")))
    assert (home / "pieces").stat().st_size == 100_002
    assert sandbox.files.read("~/empty") == "" if sandbox.files.write("~/empty", "") else False


def test_several_files_can_be_written_at_once(sandbox: Sandbox, home: Path) -> None:
    files = [WriteEntry(path=f"many/{number}.txt", data=f"file {number}") for number in range(10)]
    infos = sandbox.files.write_files(files, metadata={"Source": "test"})
    assert [info.path for info in infos] == [f"/home/user/many/{number}.txt" for number in range(10)]
    assert all(info.metadata == {"source": "test"} for info in infos)
    assert sandbox.files.read("many/7.txt") == "file 7"
    assert all(entry.metadata == {"source": "test"} for entry in sandbox.files.list("many"))


def test_entries_can_be_listed_renamed_and_removed(sandbox: Sandbox, home: Path) -> None:
    assert sandbox.files.make_dir("dir/inner") is True
    assert sandbox.files.make_dir("dir/inner") is False
    sandbox.files.write("dir/f", "1234")
    (home / "dir/l").symlink_to("f")
    names = [(entry.name, entry.type, entry.path) for entry in sandbox.files.list("dir", depth=2)]
    assert names == [
        ("f", FileType.FILE, "/home/user/dir/f"),
        ("inner", FileType.DIR, "/home/user/dir/inner"),
        ("l", FileType.SYMLINK, "/home/user/dir/l"),
    ]
    info = sandbox.files.get_info("dir/l")
    assert info.symlink_target == "/home/user/dir/f"
    info = sandbox.files.get_info("dir/f")
    assert (info.size, info.mode, info.permissions, info.owner, info.group) == (4, 0o644, "-rw-r--r--", "user", "user")
    assert abs(info.modified_time.timestamp() - time.time()) < 60
    assert sandbox.files.rename("dir/f", "dir/g").path == "/home/user/dir/g"
    assert sandbox.files.exists("dir/g")
    assert not sandbox.files.exists("dir/f")
    sandbox.files.remove("dir")
    assert not sandbox.files.exists("dir")
    for call in (sandbox.files.read, sandbox.files.get_info, sandbox.files.list):
        with pytest.raises(NotFoundException):
            call("dir")
    with pytest.raises(InvalidArgumentException):
        sandbox.files.read("/home")
    with pytest.raises(AuthenticationException):
        sandbox.files.read("x", user="stranger")


def test_watch_events_can_be_polled(sandbox: Sandbox, home: Path) -> None:
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.make_dir("watched/in")
    sandbox.files.write("watched/in/file", "x")
    seen = []
    deadline = time.monotonic() + 10
    while ("in/file", FilesystemEventType.WRITE) not in seen:
        assert time.monotonic() < deadline
        seen += [(event.name, event.type) for event in handle.get_new_events()]
    assert seen[0] == ("in", FilesystemEventType.CREATE)
    handle.stop()
    with pytest.raises(SandboxException):
        sandbox.files.watch_dir("watched/in/file")
    with pytest.raises(NotFoundException):
        sandbox.files.watch_dir("nowhere")


async def test_async_watch_calls_back_with_events(async_sandbox: AsyncSandbox, home: Path) -> None:
    seen: asyncio.Queue[tuple[str, FilesystemEventType, str | None]] = asyncio.Queue()
    name = f"w-{uuid.uuid4()}"
    await async_sandbox.files.make_dir(name)
    handle = await async_sandbox.files.watch_dir(
        name,
        on_event=lambda e: seen.put_nowait((e.name, e.type, e.entry.path if e.entry else None)),
        include_entry=True,
    )
    await async_sandbox.files.write(f"{name}/f", "x")
    first = await asyncio.wait_for(seen.get(), 10)
    assert first == ("f", FilesystemEventType.CREATE, f"/home/user/{name}/f")
    await handle.stop()


async def test_async_transfers_run_concurrently(async_sandbox: AsyncSandbox, home: Path) -> None:
    await asyncio.gather(*(async_sandbox.files.write(f"p{number}", str(number) * 1000) for number in range(20)))
    texts = await asyncio.gather(*(async_sandbox.files.read(f"p{number}") for number in range(20)))
    assert texts == [str(number) * 1000 for number in range(20)]
    parts = [part async for part in await async_sandbox.files.read("p1", format="stream")]
    assert b"".join(parts) == b"1" * 1000
    assert await async_sandbox.is_running()
