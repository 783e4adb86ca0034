"""Child processes, started by vfork.

uvloop starts them by fork, which copies the page tables of all memory the parent has while its loop stands still: for the
platform 5 ms each, and ten times as long on a busy machine. `subprocess` of the standard library copies nothing.

Nor are uvloop's pipes used: it closes a descriptor and then the file object it came in, whose number may by then be that of
a file which another thread has opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO


class Output:
    """The end of a pipe that is read, by one reader at a time. Owns its descriptor, and gives it up at the end of what is written."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._readable: asyncio.Future[None] | None = None

    async def read(self, most: int) -> bytes:
        """What is there, no more than `most` bytes, as soon as there is some; nothing when everybody has closed it. Others always have a
        turn first: a process may write as fast as it is read."""
        await asyncio.sleep(0)
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, most)
            except BlockingIOError:
                await self._wait(self._descriptor)
                continue
            if not data:
                self.close()
            return data
        return b""

    async def _wait(self, descriptor: int) -> None:
        assert self._readable is None, "somebody reads it already"
        loop = asyncio.get_running_loop()
        self._readable = loop.create_future()
        loop.add_reader(descriptor, self._wake)
        try:
            await self._readable
        finally:
            self._readable = None
            if self._descriptor is not None:
                loop.remove_reader(descriptor)

    def _wake(self) -> None:
        if self._readable is not None and not self._readable.done():
            self._readable.set_result(None)

    def close(self) -> None:
        """Whoever reads it has come to the end. Idempotent."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._wake()


class Process:
    """The leader of a session of its own. `stdout` and `stderr` are there to be read; `returncode` is None while it runs."""

    def __init__(self, popen: subprocess.Popen[bytes], stdout: Output, stderr: Output) -> None:
        self._popen = popen
        self.stdout, self.stderr = stdout, stderr
        self._ended = asyncio.Event()
        pidfd = os.pidfd_open(popen.pid)
        asyncio.get_running_loop().add_reader(pidfd, self._end, pidfd)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    async def wait(self) -> int:
        await self._ended.wait()
        assert self._popen.returncode is not None
        return self._popen.returncode

    def signal_all(self, number: signal.Signals) -> None:
        """To it and all it has started that stayed in its group, also when it has ended itself."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Stops reading. Idempotent."""
        self.stdout.close()
        self.stderr.close()

    def _end(self, pidfd: int) -> None:
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)
        self._popen.wait()
        self._ended.set()


def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> Process:
    """Waits for the child's exec, which takes a millisecond. FileNotFoundError when there is no such program, or folder."""
    with contextlib.ExitStack() as read, contextlib.ExitStack() as written:
        outputs, ends = [], []
        for _ in range(2):
            reading, writing = os.pipe()
            written.callback(os.close, writing)
            ends.append(writing)
            outputs.append(Output(reading))
            read.callback(outputs[-1].close)
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=ends[0],
            stderr=ends[1],
            pass_fds=pass_fds,
            start_new_session=True,
        )
        try:
            process = Process(popen, *outputs)
        except BaseException:
            popen.kill()
            popen.wait()
            raise
        read.pop_all()
        return process
