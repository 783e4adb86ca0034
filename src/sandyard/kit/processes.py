"""Child processes, started with vfork.

uvloop uses fork, which copies the page tables of all the parent's memory while its loop is blocked: 5 ms each for the platform, and
ten times as long on a busy machine. The standard library's `subprocess` copies nothing.

uvloop's pipes are not used either: it closes a descriptor and then the file object it came from, whose number may by then belong to a
file that another thread has opened.
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


class PipeReader:
    """The read end of a pipe, for one reader at a time. Owns its descriptor and closes it at end of file."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._readable: asyncio.Future[None] | None = None

    async def read(self, max_bytes: int) -> bytes:
        """Return up to `max_bytes` bytes as soon as some are available, or nothing at end of file.
        Always yields to other tasks first, because a
        process may write as fast as it is read."""
        await asyncio.sleep(0)
        while self._descriptor is not None:
            try:
                data = os.read(self._descriptor, max_bytes)
            except BlockingIOError:
                await self._wait(self._descriptor)
                continue
            if not data:
                self.close()
            return data
        return b""

    async def _wait(self, descriptor: int) -> None:
        assert self._readable is None, "another task is already reading"
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
        """Close the pipe. A waiting reader gets end of file. Idempotent."""
        if self._descriptor is not None:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = None
            self._wake()


class Process:
    """A child process that leads its own session. Read `stdout` and `stderr`; `returncode` is None while it runs."""

    def __init__(self, popen: subprocess.Popen[bytes], stdout: PipeReader, stderr: PipeReader) -> None:
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
        """Send a signal to the process group: the process and the children that stayed in its group, even if the process itself has
        ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def close(self) -> None:
        """Stop reading its output. Idempotent."""
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
    """Start a process and wait for its exec, about a millisecond. Raises FileNotFoundError if the program or directory does not exist."""
    with contextlib.ExitStack() as undo, contextlib.ExitStack() as cleanup:
        outputs, write_ends = [], []
        for _ in range(2):
            read_end, write_end = os.pipe()
            cleanup.callback(os.close, write_end)
            write_ends.append(write_end)
            outputs.append(PipeReader(read_end))
            undo.callback(outputs[-1].close)
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env=env,
            stdin=stdin,
            stdout=write_ends[0],
            stderr=write_ends[1],
            pass_fds=pass_fds,
            start_new_session=True,
        )
        try:
            process = Process(popen, *outputs)
        except BaseException:
            popen.kill()
            popen.wait()
            raise
        undo.pop_all()
        return process
