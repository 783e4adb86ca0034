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

from sandyard.kit.processes import Output, Process, start

ENV = {"PATH": os.environ["PATH"], "WORD": "told"}
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def inside(what: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(what)

    return inside


def shell(script: str, folder: Path, **options: Any) -> Process:
    return start(["/bin/sh", "-c", script], cwd=folder, env=ENV, **options)


async def whole(output: Output) -> bytes:
    read = b""
    while piece := await output.read(1 << 16):
        read += piece
    return read


def test_what_it_writes_and_how_it_ends(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = shell("pwd; echo $WORD >&2; head -c 1000000 /dev/zero; exit 7", tmp_path)
        assert process.returncode is None
        written, said = await asyncio.gather(whole(process.stdout), whole(process.stderr))
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
            process = shell(f"cat; cat /dev/fd/{reading}", tmp_path, stdin=opened, pass_fds=[reading])
        os.close(reading)
        assert await whole(process.stdout) == b"given\npassed\n"
        assert await process.wait() == 0

    run(story())


def test_what_is_not_there(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(FileNotFoundError):
            start(["/no/such/program"], cwd=tmp_path, env=ENV)
        with pytest.raises(FileNotFoundError):
            shell("true", tmp_path / "nowhere")

    run(story())


def test_a_signal_reaches_all_it_has_started(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = shell("sleep 1000 & sleep 1000 & echo ready; wait", tmp_path)
        assert await process.stdout.read(100) == b"ready\n"
        process.signal_all(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        assert await whole(process.stdout) == b"", "nobody has it open any more"
        process.signal_all(signal.SIGKILL)

    run(story())


def test_no_descriptor_is_left(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        async def once() -> None:
            process = shell("echo hi", tmp_path)
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


def test_a_reader_is_woken_by_the_end_of_reading(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = shell("sleep 1000", tmp_path)
        reading = asyncio.ensure_future(process.stdout.read(100))
        await asyncio.sleep(0)
        process.close()
        assert await reading == b""
        process.signal_all(signal.SIGKILL)
        await process.wait()

    run(story())


def test_a_reader_that_leaves_loses_nothing(run: Run, tmp_path: Path) -> None:
    async def story() -> None:
        process = shell("sleep 0.1; echo late", tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await process.stdout.read(100)
        assert await whole(process.stdout) == b"late\n"
        assert await process.wait() == 0

    run(story())


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
