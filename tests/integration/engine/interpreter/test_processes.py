"""The fork server's side of the talk is played by a short program."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from sandyard.engine.interpreter.kernel import Kernel, KernelError
from sandyard.engine.interpreter.processes import FORK_SERVER, ForkServer
from sandyard.engine.interpreter.specs import Spec

# greets when the file `greet` is there, and answers each request, with the pid of a new process, when `answer` is
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


async def _until(path: Path) -> str:
    async with asyncio.timeout(30):
        while not path.exists() or not path.read_text():
            await asyncio.sleep(0.01)
    return path.read_text()


@pytest.mark.parametrize("gone", ["while the server starts", "while it forks"])
async def test_a_client_that_leaves_takes_nobody_elses_kernel(tmp_path: Path, gone: str) -> None:
    (tmp_path / FORK_SERVER).write_text(PROGRAM)
    forks = ForkServer(tmp_path)
    first = asyncio.create_task(forks.fork("python", Path("first"), "/", {}))
    if gone == "while the server starts":
        async with asyncio.timeout(30):
            while forks._process is None:
                await asyncio.sleep(0.01)
    else:
        (tmp_path / "greet").touch()
        await _until(tmp_path / "first")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (tmp_path / "greet").touch()
    (tmp_path / "answer").touch()
    async with asyncio.timeout(30):
        second = await forks.fork("python", Path("second"), "/", {})
    assert second == int((tmp_path / "second").read_text())
    left = int(await _until(tmp_path / "first"))
    async with asyncio.timeout(30):
        while _state(left) not in "ZX":
            await asyncio.sleep(0.01)
    os.kill(second, 9)
    assert forks._process is not None
    forks._process.kill()
    await forks._process.wait()


async def test_a_kernel_that_ends_with_its_greeting_has_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would be told of its end any more, and its first execution would wait for ever."""
    kernel = Kernel(Spec("echo", "echo", ("sleep", "100")), tmp_path, lambda: None)

    async def nothing(channel: str) -> None:
        pass

    async def last_words() -> None:
        assert kernel._process is not None
        kernel.kill()
        async with asyncio.timeout(30):
            while kernel._process.alive:
                await asyncio.sleep(0.01)

    monkeypatch.setattr(kernel, "_connect", nothing)
    monkeypatch.setattr(kernel, "_greet", last_words)
    with pytest.raises(KernelError, match="ended while it was starting"):
        await kernel.start(ForkServer(tmp_path), "/", dict(os.environ))


def _state(pid: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "X"
