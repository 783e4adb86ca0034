"""The tunnel's program on this machine instead of in a sandbox: the same lines through a pipe."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

from sandyard.platform.domain.models.tunnel import RequestMemory, Serve, Tunnel
from sandyard.platform.domain.sandboxes.e2b import guest

PROGRAM = Path(guest.__file__).with_name("tunnel.py")


class LocalLines:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def read_lines(self) -> AsyncIterator[str]:
        assert self.process.stdout is not None
        marked = False
        while line := (await self.process.stdout.readline()).decode().strip("\n"):
            if marked:
                yield line
            marked = marked or line == ":: mark"

    def send_line(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    async def drain(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.drain()


class TunnelDaemon:
    """A daemon that outlives the bridges attached to it."""

    def __init__(self, folder: Path, port: int, python: str = sys.executable) -> None:
        self.folder = folder
        self.wanted_port = port
        self.python = python
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def bridge(self, limit: int = 1 << 20) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            self.python, "-I", "-S", str(PROGRAM), "mark", str(self.wanted_port), str(self.folder),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=limit,
        )  # fmt: skip
        assert process.stdout is not None
        assert await process.stdout.readline() == b"\n"
        return process

    @contextlib.asynccontextmanager
    async def attach(self, serve: Serve) -> AsyncIterator[asyncio.Task[None]]:
        """Serve inside the block; then the platform's side is gone as after kill -9."""
        process = await self.bridge()
        ready = asyncio.Event()

        def set_port(port: int) -> None:
            self.port = port
            ready.set()

        running = asyncio.ensure_future(Tunnel(LocalLines(process), serve, RequestMemory(64 << 20), set_port).run())
        try:
            async with asyncio.timeout(30):
                await ready.wait()
            yield running
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            running.cancel()
            await asyncio.wait([running])
            await process.wait()

    def kill(self) -> None:
        """Kill the daemon and its bridges, and wait until they have ended: until then the socket accepts connections."""
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.folder).encode() in (process / "cmdline").read_bytes().split(b"\0"):
                    pidfd = os.pidfd_open(int(process.name))
                    try:
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                        select.select([pidfd], [], [], 30)
                    finally:
                        os.close(pidfd)
