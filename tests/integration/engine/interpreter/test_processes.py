"""Kernel processes, with a short program in the role of the fork server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from pathlib import Path

import pytest

from sandyard.engine.interpreter import processes
from sandyard.engine.interpreter.kernel import Kernel, KernelError
from sandyard.engine.interpreter.processes import FORK_SERVER, ForkServer, Process
from sandyard.engine.interpreter.specs import Spec

# greets when the file `greet` exists, and answers each request with the pid of a new process when `answer` exists
PROGRAM = """
import json, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).parent
def wait(name):
    while not (here / name).exists():
        time.sleep(0.01)
wait("greet")
print("{}", flush=True)
for line in sys.stdin:
    file = json.loads(line)["connection_file"]
    child = subprocess.Popen(["sleep", "100"], start_new_session=True)
    (here / pathlib.Path(file).name).write_text(str(child.pid))
    wait("answer")
    print(json.dumps({"pid": child.pid}), flush=True)
"""


async def _wait_for_file(path: Path) -> str:
    async with asyncio.timeout(30):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("cancelled", ["while the server starts", "while it forks"])
async def test_a_cancelled_fork_does_not_take_the_kernel_of_the_next_one(tmp_path: Path, cancelled: str) -> None:
    (tmp_path / FORK_SERVER).write_text(PROGRAM)
    forks = ForkServer(tmp_path)
    first = asyncio.create_task(forks.fork("python", Path("first"), "/", {}))
    if cancelled == "while the server starts":
        async with asyncio.timeout(30):
            while forks.process is None:
                await asyncio.sleep(0.01)
    else:
        (tmp_path / "greet").touch()
        await _wait_for_file(tmp_path / "first")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (tmp_path / "greet").touch()
    (tmp_path / "answer").touch()
    async with asyncio.timeout(30):
        second = await forks.fork("python", Path("second"), "/", {})
    assert second == int((tmp_path / "second").read_text())
    abandoned_pid = int(await _wait_for_file(tmp_path / "first"))
    async with asyncio.timeout(30):
        while _process_state(abandoned_pid) not in "ZX":
            await asyncio.sleep(0.01)
    os.kill(second, 9)
    assert forks.process is not None
    forks.process.kill()
    await forks.process.wait()


async def test_a_kernel_that_ends_during_its_greeting_fails_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise its end would go unnoticed, and its first execution would wait forever."""
    kernel = Kernel(Spec("echo", "echo", ("sleep", "100")), tmp_path, lambda: None)

    async def do_nothing(channel: str) -> None:
        pass

    async def end_during_greeting() -> None:
        kernel.kill()
        async with asyncio.timeout(30):
            while kernel.alive:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(kernel, "connect_channel", do_nothing)
    monkeypatch.setattr(kernel, "greet", end_during_greeting)
    with pytest.raises(KernelError, match="ended while it was starting"):
        await kernel.start(ForkServer(tmp_path), "/", dict(os.environ))


def _process_state(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"


async def test_the_end_of_a_kernel_is_noticed_on_a_system_without_pidfds(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(pid: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", fail)
    monkeypatch.setattr(processes, "POLL_SECONDS", 0.01)
    child = await asyncio.create_subprocess_exec("sleep", "100", start_new_session=True)
    ended = asyncio.Event()
    process = Process(child.pid, ended.set)
    await asyncio.sleep(0.05)
    assert process.alive
    process.kill()
    async with asyncio.timeout(10):
        await ended.wait()
    assert not process.alive
    await child.wait()
