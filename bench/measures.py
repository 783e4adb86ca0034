"""The measurements, which run unchanged against the engine and against the floor."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from e2b import AsyncSandbox, Sandbox

from bench.processes import Endpoint, available_bytes, descendants, private_bytes

MB = 1 << 20


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def spawn(count: int) -> list[float]:
    """Measure a bare spawn of `echo` on the host, without reading its output."""
    sink = os.open(os.devnull, os.O_WRONLY)
    actions = [(os.POSIX_SPAWN_DUP2, sink, 1)]

    def once() -> None:
        os.waitpid(os.posix_spawn("/bin/echo", ["echo", "hi"], os.environ, file_actions=actions), 0)

    try:
        return [timed(once) for _ in range(count)]
    finally:
        os.close(sink)


def create_to_output(count: int, template: str | None = None) -> list[float]:
    """Sequential: create, run a command, have its output. The sandbox is killed outside the clock."""
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        sandbox = Sandbox.create(template, timeout=60)
        assert sandbox.commands.run("echo hi").stdout == "hi\n"
        samples.append((time.perf_counter() - start) * 1000)
        sandbox.kill()
    return samples


async def burst(count: int) -> list[float]:
    """`count` at once from one client: the time of each from the common start to its first output."""

    async def create() -> tuple[float, AsyncSandbox]:
        sandbox = await AsyncSandbox.create(timeout=120)
        assert (await sandbox.commands.run("echo hi")).stdout == "hi\n"
        return (time.perf_counter() - start) * 1000, sandbox

    start = time.perf_counter()
    results = await asyncio.gather(*(create() for _ in range(count)))
    for _, sandbox in results:
        await sandbox.kill()
    return [elapsed for elapsed, _ in results]


def execs(sandbox: Sandbox, count: int) -> list[float]:
    return [timed(lambda: sandbox.commands.run("true")) for _ in range(count)]


def pause_resume(sandbox: Sandbox, count: int) -> tuple[list[float], list[float]]:
    pauses, resumes = [], []
    for _ in range(count):
        pauses.append(timed(sandbox.pause))
        resumes.append(timed(lambda: sandbox.connect(timeout=120)))
    return pauses, resumes


def fork_to_output(sandbox: Sandbox, count: int) -> list[float]:
    samples = []
    for _ in range(count):
        start = time.perf_counter()
        (copy,) = sandbox.fork()
        if isinstance(copy, Exception):
            raise copy
        assert copy.commands.run("echo hi").stdout == "hi\n"
        samples.append((time.perf_counter() - start) * 1000)
        copy.kill()
    return samples


def fork_many_to_output(sandbox: Sandbox, count: int) -> float:
    """Return the milliseconds until all of these forks, made by one request, have run a command."""
    start = time.perf_counter()
    copies = sandbox.fork(timeout=120, count=count)
    for copy in copies:
        if isinstance(copy, Exception):
            raise copy
        assert copy.commands.run("echo hi").stdout == "hi\n"
    passed = (time.perf_counter() - start) * 1000
    for copy in copies:
        if not isinstance(copy, Exception):
            copy.kill()
    return passed


def hold_200_mb(sandbox: Sandbox) -> None:
    """Start a process with 200 MB of memory that cannot be compressed."""
    program = "import os, time; data = os.urandom(200 << 20); open('ready', 'w').close(); time.sleep(3600)"
    sandbox.commands.run(f'python3 -c "{program}"', background=True)
    sandbox.commands.run("until [ -e ready ]; do sleep 0.1; done", timeout=60)


def change_200_mb(sandbox: Sandbox) -> None:
    """200 MB in 200 files, as a build or an install would leave behind."""
    sandbox.commands.run(
        "mkdir -p ~/changed && cd ~/changed && for i in $(seq 200); do head -c 1048576 /dev/urandom > f$i; done; sync",
        timeout=120,
    )


def transfer(sandbox: Sandbox, count: int) -> tuple[list[float], list[float]]:
    """Return the MB/s of uploading and downloading 100 MB."""
    body = os.urandom(MB) * 100
    up, down = [], []
    for _ in range(count):
        up.append(100_000 / timed(lambda: sandbox.files.write("/home/user/big", body)))
        down.append(100_000 / timed(lambda: sandbox.files.read("/home/user/big", format="bytes")))
    return up, down


def idle(endpoint: Endpoint, count: int) -> tuple[float, float, float]:
    """`count` idle sandboxes: seconds to make them all, private MB of one (median), MB of the machine's memory each."""
    before_all = available_bytes()
    start = time.perf_counter()
    known = descendants(endpoint.pid)
    sandboxes = asyncio.run(make_idle(count))
    seconds = time.perf_counter() - start
    time.sleep(2)
    private = sorted(private_bytes(pid) / MB for pid in descendants(endpoint.pid) - known)
    each = (before_all - available_bytes()) / MB / count
    asyncio.run(kill_all(sandboxes))
    return seconds, private[len(private) // 2], each


async def make_idle(count: int) -> list[str]:
    gate = asyncio.Semaphore(16)

    async def create() -> str:
        async with gate:
            return (await AsyncSandbox.create(timeout=600)).sandbox_id

    return list(await asyncio.gather(*(create() for _ in range(count))))


async def kill_all(ids: list[str]) -> None:
    gate = asyncio.Semaphore(16)

    async def kill(sandbox_id: str) -> None:
        async with gate:
            await AsyncSandbox.kill(sandbox_id)

    await asyncio.gather(*(kill(sandbox_id) for sandbox_id in ids))
