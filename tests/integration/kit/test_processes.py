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

from sandyard.kit.processes import PipeReader, Process, start

ENV = {"PATH": os.environ["PATH"], "WORD": "value"}
Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_in_loop(what: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(what)

    return run_in_loop


def shell(script: str, folder: Path, **options: Any) -> Process:
    return start(["/bin/sh", "-c", script], cwd=folder, env=ENV, **options)


async def read_all(output: PipeReader) -> bytes:
    read = b""
    while piece := await output.read(1 << 16):
        read += piece
    return read


def test_output_and_exit_code_are_returned(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        process = shell("pwd; echo $WORD >&2; head -c 1000000 /dev/zero; exit 7", tmp_path)
        assert process.returncode is None
        written, errors = await asyncio.gather(read_all(process.stdout), read_all(process.stderr))
        assert written == str(tmp_path).encode() + b"\n" + bytes(1_000_000)
        assert errors == b"value\n"
        assert (await process.wait(), await process.wait(), process.returncode) == (7, 7, 7)
        process.close()
        process.close()

    run(scenario())


def test_standard_input_and_passed_descriptors_are_readable(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        file = tmp_path / "given"
        file.write_text("given\n")
        reading, other = os.pipe()
        os.write(other, b"passed\n")
        os.close(other)
        with file.open("rb") as opened:
            process = shell(f"cat; cat /dev/fd/{reading}", tmp_path, stdin=opened, pass_fds=[reading])
        os.close(reading)
        assert await read_all(process.stdout) == b"given\npassed\n"
        assert await process.wait() == 0

    run(scenario())


def test_a_missing_program_or_directory_raises(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(FileNotFoundError):
            start(["/no/such/program"], cwd=tmp_path, env=ENV)
        with pytest.raises(FileNotFoundError):
            shell("true", tmp_path / "nowhere")

    run(scenario())


def test_a_signal_reaches_all_child_processes(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        process = shell("sleep 1000 & sleep 1000 & echo ready; wait", tmp_path)
        assert await process.stdout.read(100) == b"ready\n"
        process.signal_all(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        assert await read_all(process.stdout) == b"", "no process has the pipe open"
        process.signal_all(signal.SIGKILL)

    run(scenario())


def test_no_file_descriptor_is_leaked(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        async def once() -> None:
            process = shell("echo hi", tmp_path)
            await process.wait()
            process.close()
            await asyncio.sleep(0)

        await once()
        before = _count_descriptors()
        for _ in range(20):
            await once()
        async with asyncio.timeout(30):
            while _count_descriptors() > before:
                await asyncio.sleep(0.02)

    run(scenario())


def test_close_wakes_a_waiting_reader(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        process = shell("sleep 1000", tmp_path)
        reading = asyncio.ensure_future(process.stdout.read(100))
        await asyncio.sleep(0)
        process.close()
        assert await reading == b""
        process.signal_all(signal.SIGKILL)
        await process.wait()

    run(scenario())


def test_a_cancelled_read_loses_no_data(run: Run, tmp_path: Path) -> None:
    async def scenario() -> None:
        process = shell("sleep 0.1; echo late", tmp_path)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await process.stdout.read(100)
        assert await read_all(process.stdout) == b"late\n"
        assert await process.wait() == 0

    run(scenario())


def _count_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
