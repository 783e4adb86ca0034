"""Scenarios for an older SDK. Run them with that SDK's interpreter: `python scenarios.py NAME`.

Every public function is a scenario. The module imports nothing from this project, so it runs in any environment that has e2b.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from e2b import (
    AsyncSandbox,
    CommandExitException,
    NotFoundException,
    Sandbox,
    SandboxException,
    TimeoutException,
)
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox.sandbox_api import SandboxQuery

Failure = TypeVar("Failure", bound=Exception)


def _expect_error(kind: type[Failure], call: Callable[[], object]) -> Failure:
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def sdk_is_older_than_v2_create() -> None:
    major, minor = (int(part) for part in importlib.metadata.version("e2b").split(".")[:2])
    assert (major, minor) < (2, 51)


def create_and_kill() -> None:
    with Sandbox.create(timeout=60, metadata={"sdk": "older"}, envs={"FOO": "bar"}) as sandbox:
        assert sandbox.is_running()
        assert sandbox.commands.run("echo $FOO").stdout == "bar\n"
        info = sandbox.get_info()
        assert info.metadata == {"sdk": "older"}
        assert 50 < (info.end_at - datetime.now(UTC)).total_seconds() < 70
    assert not sandbox.is_running()
    assert sandbox.kill() is False


def default_timeout() -> None:
    with Sandbox.create() as sandbox:
        assert 290 < (sandbox.get_info().end_at - datetime.now(UTC)).total_seconds() < 310


def create_without_secure() -> None:
    """Create a sandbox with `secure=False`, which older SDKs accept. It must work."""
    with Sandbox.create(secure=False) as sandbox:
        assert sandbox.commands.run("echo ok").stdout == "ok\n"
        sandbox.files.write("x.txt", "x")
        assert sandbox.files.read("x.txt") == "x"


def connect_and_timeouts() -> None:
    with Sandbox.create(timeout=300) as sandbox:
        before = sandbox.get_info().end_at
        again = Sandbox.connect(sandbox.sandbox_id, timeout=10)
        assert again.files.exists("/etc/passwd")
        assert sandbox.get_info().end_at == before
        sandbox.set_timeout(30)
        assert sandbox.get_info().end_at < before
    _expect_error(NotFoundException, lambda: Sandbox.connect("ineverexisted00000"))


def pause_and_resume() -> None:
    with Sandbox.create(timeout=60) as sandbox:
        running = sandbox.commands.run("sleep 500", background=True, timeout=0)
        sandbox.beta_pause()
        assert not sandbox.is_running()
        sandbox.connect()
        assert running.pid in [process.pid for process in sandbox.commands.list()]


def list_with_filters() -> None:
    mark = {"run": f"{time.time_ns()}", "odd": "a b&c=d"}
    one, two = Sandbox.create(metadata=mark), Sandbox.create(metadata=mark)
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata=mark), limit=1)
        found = []
        while pages.has_next:
            found += [item.sandbox_id for item in pages.next_items()]
        assert found == [two.sandbox_id, one.sandbox_id], found
    finally:
        one.kill()
        two.kill()


def commands() -> None:
    with Sandbox.create() as sandbox:
        result = sandbox.commands.run("echo out; echo err >&2")
        assert (result.stdout, result.stderr) == ("out\n", "err\n")
        assert _expect_error(CommandExitException, lambda: sandbox.commands.run("exit 7")).exit_code == 7
        _expect_error(TimeoutException, lambda: sandbox.commands.run("sleep 20", timeout=1))
        command = sandbox.commands.run("cat", background=True, stdin=True)
        sandbox.commands.send_stdin(command.pid, "typed")
        for stdout, _, _ in command:
            assert stdout == "typed"
            break
        assert sandbox.commands.kill(command.pid) is True
        assert sandbox.commands.kill(999999) is False
        assert sandbox.commands.run("id -un", user="root").stdout == "root\n"


def terminal() -> None:
    with Sandbox.create() as sandbox:
        shell = sandbox.pty.create(PtySize(rows=24, cols=80), envs={"ABC": "123"})
        sandbox.pty.resize(shell.pid, PtySize(rows=24, cols=101))
        sandbox.pty.send_stdin(shell.pid, b"echo $ABC $(tput cols)\nexit\n")
        output: list[bytes] = []
        assert shell.wait(on_pty=output.append).exit_code == 0
        assert b"123 101" in b"".join(output)


def files() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("a/b.txt", "text")
        sandbox.files.write_files([{"path": "c.txt", "data": "c"}, {"path": "/tmp/d.txt", "data": b"d"}])
        assert sandbox.files.read("/tmp/d.txt") == "d"
        assert [entry.name for entry in sandbox.files.list("a")] == ["b.txt"]
        assert sandbox.files.rename("a/b.txt", "e.txt").path == "/home/user/e.txt"
        handle = sandbox.files.watch_dir("a")
        sandbox.files.write("a/new.txt", "x")
        assert "new.txt" in [event.name for event in handle.get_new_events()]
        handle.stop()
        _expect_error(NotFoundException, lambda: sandbox.files.read("nowhere"))
        assert sandbox.files.make_dir("a") is False


def fork_and_snapshot() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("state.txt", "copied")
        (fork,) = sandbox.fork()
        assert fork.files.read("state.txt") == "copied"
        fork.kill()
        snapshot = sandbox.create_snapshot()
        copy = Sandbox.create(snapshot.snapshot_id)
        assert copy.files.read("state.txt") == "copied"
        copy.kill()
        assert Sandbox.delete_snapshot(snapshot.snapshot_id) is True


def invalid_requests() -> None:
    _expect_error(SandboxException, lambda: Sandbox.create("no-such-template-anywhere"))
    _expect_error(Exception, lambda: Sandbox.create(api_key="e2b_" + "0" * 40))
    sandbox = Sandbox.create()
    sandbox.kill()
    _expect_error(NotFoundException, sandbox.get_info)
    _expect_error(SandboxException, lambda: sandbox.commands.run("true"))


async def async_sdk() -> None:
    sandbox = await AsyncSandbox.create()
    try:
        result = await sandbox.commands.run("echo async")
        assert result.stdout == "async\n"
        seen = asyncio.Event()
        await sandbox.files.make_dir("watched")
        watch = await sandbox.files.watch_dir("watched", on_event=lambda _: seen.set())
        await sandbox.files.write("watched/x", "x")
        await asyncio.wait_for(seen.wait(), 10)
        await watch.stop()
        await asyncio.gather(*(sandbox.commands.run(f"echo {n}") for n in range(10)))
    finally:
        assert await sandbox.kill() is True


if __name__ == "__main__":
    scenario = globals()[sys.argv[1]]
    if inspect.iscoroutinefunction(scenario):
        asyncio.run(scenario())
    else:
        scenario()
