"""Kernel processes: started by the fork server or by their own command, watched, and ended."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
FORK_SERVER = "jupyter-server"
POLL_SECONDS = 0.2


class Process:
    """A kernel's process, the leader of its own process group. It need not be a child of this process."""

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        self.pid = pid
        self.alive = True
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._fd = -1
        try:
            self._fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._loop.call_soon(self._on_exit)
        except OSError as error:
            if error.errno != errno.ENOSYS:
                raise
            self._poll()  # gVisor has no pidfds
        else:
            self._loop.add_reader(self._fd, self._on_exit)

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def _poll(self) -> None:
        if is_running(self.pid):
            self._loop.call_later(POLL_SECONDS, self._poll)
        else:
            self._on_exit()

    def _signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _on_exit(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
        if self.alive:
            self._signal(signal.SIGKILL)  # also kills the processes that it started
            self.alive = False
            self._on_end()


def is_running(pid: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in "ZX"


async def spawn(argv: Sequence[str], cwd: str, env: Mapping[str, str]) -> int:
    """Start a process that ends with this one and return its pid. Raises OSError."""
    process = await asyncio.create_subprocess_exec(
        *argv,
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=None,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    return process.pid


class ForkServer:
    """A process with the libraries of kernels loaded, from which new kernels are forked. Started on first use, and again
    if it was killed."""

    def __init__(self, folder: Path) -> None:
        self._command = [sys.executable, "-P", str(folder / FORK_SERVER)]
        self.process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def start(self) -> None:
        async with self._lock:
            await self._ensure_running()

    async def fork(self, kernel: str, connection_file: Path, cwd: str, env: Mapping[str, str]) -> int:
        """Return the pid of a new kernel. Raises OSError if the fork server cannot be started. If the caller is
        cancelled, the kernel is ended."""
        request = {"kernel": kernel, "connection_file": str(connection_file), "cwd": cwd, "env": dict(env)}
        # runs to completion even if the caller is cancelled: an unread answer would be taken for that of the next request
        forking = asyncio.ensure_future(self._request_fork(json.dumps(request).encode() + b"\n"))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            forking.add_done_callback(_kill_forked)
            raise

    async def _request_fork(self, line: bytes) -> int:
        async with self._lock:
            for _ in range(2):  # it may just have been killed
                process = await self._ensure_running()
                with contextlib.suppress(ConnectionError, ValueError):
                    assert process.stdin is not None
                    assert process.stdout is not None
                    process.stdin.write(line)
                    await process.stdin.drain()
                    return int(json.loads(await process.stdout.readline())["pid"])
                self.process = None
        raise OSError("the fork server does not respond")

    async def _ensure_running(self) -> asyncio.subprocess.Process:
        if self.process is not None and self.process.returncode is None:
            return self.process
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, preexec_fn=_end_with_parent, start_new_session=True
        )
        assert self.process.stdout is not None
        if not await self.process.stdout.readline():
            await self.process.wait()
            raise OSError("the fork server did not start. Check that ipykernel is still installed in this sandbox")
        return self.process


def _kill_forked(forked: asyncio.Future[int]) -> None:
    """Kill a kernel whose requester was cancelled."""
    if not forked.cancelled() and forked.exception() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(forked.result(), signal.SIGKILL)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
