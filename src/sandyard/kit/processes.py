"""Child processes, started by vfork.

uvloop starts them by fork, which copies the page tables of all memory the parent has while its loop stands still: for the
platform 5 ms each, and ten times as long on a busy machine. `subprocess` of the standard library copies nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO


class Process:
    """The leader of a session of its own. `stdout` and `stderr` are there to be read; `returncode` is None while it runs."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self._popen = popen
        self._transports: list[asyncio.BaseTransport] = []
        self._ended = asyncio.Event()
        self.stdout, self.stderr = asyncio.StreamReader(), asyncio.StreamReader()

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
        for transport in self._transports:
            transport.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        descriptor = os.pidfd_open(self.pid)
        loop.add_reader(descriptor, self._end, loop, descriptor)
        for reader, pipe in ((self.stdout, self._popen.stdout), (self.stderr, self._popen.stderr)):
            assert pipe is not None
            transport, _ = await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
            self._transports.append(transport)

    def _end(self, loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        self._popen.wait()
        self._ended.set()


async def start(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: int | IO[bytes] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> Process:
    """FileNotFoundError when there is no such program, or no such folder."""
    popen = subprocess.Popen(  # noqa: ASYNC220 - waits for the child's exec alone
        command,
        cwd=cwd,
        env=env,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
        start_new_session=True,
    )
    process = Process(popen)
    try:
        await process._open()
    except BaseException:
        process.signal_all(signal.SIGKILL)
        process.close()
        raise
    return process
