"""Child processes in asyncio's own loop and in uvloop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from sandyard.kit.processes import Process, start

ENV = {"PATH": os.environ["PATH"], "WORD": "told"}
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def inside(what: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(what)

    return inside


async def shell(script: str, folder: Path, **options: Any) -> Process:
    return await start(["/bin/sh", "-c", script], cwd=folder, env=ENV, **options)


def test_what_it_writes_and_how_it_ends(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = await shell("pwd; echo $WORD >&2; head -c 1000000 /dev/zero; exit 7", tmp_path)
        assert process.returncode is None
        written, said = await asyncio.gather(process.stdout.read(), process.stderr.read())
        assert written == str(tmp_path).encode() + b"\n" + bytes(1_000_000)
        assert said == b"told\n"
        assert (await process.wait(), await process.wait(), process.returncode) == (7, 7, 7)
        process.close()
        process.close()

    run(story())


def test_it_reads_what_it_is_given(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        file = tmp_path / "given"
        file.write_text("given\n")
        reading, other = os.pipe()
        os.write(other, b"passed\n")
        os.close(other)
        with file.open("rb") as opened:
            process = await shell(f"cat; cat /dev/fd/{reading}", tmp_path, stdin=opened, pass_fds=[reading])
        os.close(reading)
        assert await process.stdout.read() == b"given\npassed\n"
        assert await process.wait() == 0

    run(story())


def test_what_is_not_there(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(FileNotFoundError):
            await start(["/no/such/program"], cwd=tmp_path, env=ENV)
        with pytest.raises(FileNotFoundError):
            await shell("true", tmp_path / "nowhere")

    run(story())


def test_a_signal_reaches_all_it_has_started(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = await shell("sleep 1000 & sleep 1000 & echo ready; wait", tmp_path)
        assert await process.stdout.readline() == b"ready\n"
        process.signal_all(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        assert await process.stdout.read() == b"", "nobody has it open any more"
        process.signal_all(signal.SIGKILL)

    run(story())


def test_no_descriptor_is_left(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async def once() -> None:
            process = await shell("echo hi", tmp_path)
            await process.wait()
            process.close()
            await asyncio.sleep(0)

        await once()
        before = _descriptors()
        for _ in range(20):
            await once()
        async with asyncio.timeout(30):
            while _descriptors() > before:
                await asyncio.sleep(0.02)

    run(story())


def test_a_start_that_is_cancelled_leaves_nothing_running(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        starting = asyncio.ensure_future(shell("sleep 1000; echo never", tmp_path))
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        async with asyncio.timeout(30):
            while any(_working_in(tmp_path)):
                await asyncio.sleep(0.02)

    run(story())


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def _working_in(folder: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink() == folder:
                found.append(process.name)
        except OSError:
            continue
    return found
