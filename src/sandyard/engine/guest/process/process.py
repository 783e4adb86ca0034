"""One process that a client started: its pipes or terminal, its deadline and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import struct
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

from sandyard.engine.guest.loop import Loop, Timer
from sandyard.engine.guest.process.input import Input
from sandyard.engine.guest.process.output import Budget, End, Output

CHUNK = 64 << 10
_PIPE_CAPACITY = 64 << 10
# Children of an ended process may keep its output open. What they write shortly afterwards is part of the output; then
# the end is reported. Later writes are discarded, so that a closed pipe does not stop the children.
LINGER_QUIET = 0.25
LINGER_LONGEST = 2.0
SHORTEST_PART, LONGEST_PART, PARTS = 1.0, 15.0, 60  # parts of a deadline, in seconds
_DISCARD_PAUSE = 0.01


class Process:
    """A running process. `ended` is set, and `on_end` called, when it has exited and its output is complete."""

    def __init__(
        self,
        loop: Loop,
        pid: int,
        *,
        config: dict[str, Any],
        tag: str | None,
        budget: Budget,
        on_end: Callable[[Process], None],
    ) -> None:
        self.pid = pid
        self.config = config
        self.tag = tag
        self.output = Output(budget, self._resume)
        self.stdin: Input | None = None
        self.terminal: Input | None = None
        self.ended = asyncio.Event()
        self._loop = loop
        self._on_end = on_end
        self._output_fds: dict[int, str] = {}
        self._paused = False
        self._status: int | None = None
        self._read_since_exit = 0
        self._terminated = False
        self._deadline: Timer | None = None
        self._linger: Timer | None = None

    # for the launcher -------------------------------------------------------------------------------------

    def read_output(self, fd: int, kind: str) -> None:
        """Read the output of this kind from `fd` as it arrives. This object closes `fd`."""
        os.set_blocking(fd, False)
        self._output_fds[fd] = kind
        self._loop.add_reader(fd, partial(self._read, fd, kind))

    def expire_after(self, seconds: float) -> None:
        """Kill the process and its group if it is still running after that time, whether or not a client is attached.

        The time is counted in parts, each with its own timer, because the agent does not know how long the sandbox was
        paused: a pause then counts as one part at most.
        """
        part = min(seconds, max(SHORTEST_PART, min(LONGEST_PART, seconds / PARTS)))
        self._deadline = self._loop.call_later(part, self._count_down, seconds - part)

    # operations -------------------------------------------------------------------------------------------------------

    def send_signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to its group. Raises ProcessLookupError if the process has ended."""
        if self._status is not None:
            raise ProcessLookupError
        if group:
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._terminated = True

    def has_group(self) -> bool:
        """Return whether a process of its group still exists, even a zombie."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, 0)
            return True
        return False

    def resize(self, columns: int, rows: int) -> None:
        if self.terminal is not None:
            size = struct.pack("HHHH", rows & 0xFFFF, columns & 0xFFFF, 0, 0)
            fcntl.ioctl(self.terminal.fd, termios.TIOCSWINSZ, size)

    def set_exit_status(self, status: int) -> None:
        """Record the wait status of the ended process."""
        self._status = status
        if self._deadline is not None:
            self._deadline.cancel()
        self._finish_if_complete()

    # output -----------------------------------------------------------------------------------------------------------

    def _read(self, fd: int, kind: str) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # EIO: nobody has the terminal open
        if not data:
            self._close_output_fd(fd)
            self._finish_if_complete()
            return
        self._read_since_exit += len(data)
        self.output.feed(kind, data)
        if self.output.congested:
            self._pause()

    def _pause(self) -> None:
        self._paused = True
        for fd in self._output_fds:
            self._loop.remove_reader(fd)

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        for fd, kind in self._output_fds.items():
            self._loop.add_reader(fd, partial(self._read, fd, kind))
        self._finish_if_complete()

    def _close_output_fd(self, fd: int) -> None:
        self._loop.remove_reader(fd)
        del self._output_fds[fd]
        os.close(fd)

    def _count_down(self, left: float) -> None:
        if left > 0:
            self.expire_after(left)
            return
        with contextlib.suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL, group=True)

    # the end ----------------------------------------------------------------------------------------------------------

    def _finish_if_complete(self) -> None:
        """Finish if the process has ended and its output is complete. If its children keep the output open, finish later; if
        a client has terminated it, do not wait for them."""
        if self._status is None or self.output.end is not None or self._paused:
            return
        if not self._output_fds:
            self._finish(self._status)
        elif self._terminated:
            self._drain()
            self._finish(self._status)
        elif self._linger is None:
            self._read_since_exit = 0
            self._linger = self._loop.call_later(LINGER_QUIET, self._check_lingering, self._status, 0, LINGER_QUIET)

    def _check_lingering(self, status: int, seen: int, elapsed: float) -> None:
        """Finish if nothing was read since the last check, when `seen` bytes had been, or after LINGER_LONGEST."""
        # Read again: with very many descriptors the loop may not have come to these, and gVisor can lose their events.
        for fd, kind in list(self._output_fds.items()):
            if fd in self._output_fds and not self._paused:
                self._read(fd, kind)
        if self.output.end is not None:
            return
        quiet = self._read_since_exit == seen and not self._paused
        if quiet or (elapsed >= LINGER_LONGEST and not self._paused):
            self._finish(status)
            return
        args = (status, self._read_since_exit, elapsed + LINGER_QUIET)
        self._linger = self._loop.call_later(LINGER_QUIET, self._check_lingering, *args)

    def _drain(self) -> None:
        """Read what the ended process itself can have left: at most what a pipe holds."""
        for fd, kind in list(self._output_fds.items()):
            left = _PIPE_CAPACITY
            while left > 0:
                try:
                    data = os.read(fd, left)
                except OSError:
                    break
                if not data:
                    self._close_output_fd(fd)
                    break
                left -= len(data)
                self.output.feed(kind, data)

    def _finish(self, status: int) -> None:
        for fd in list(self._output_fds):
            self._loop.remove_reader(fd)
            if self.terminal is None:
                _Discarder(self._loop, fd)
            else:
                os.close(fd)
        self._output_fds.clear()
        for channel in (self.stdin, self.terminal):
            if channel is not None:
                channel.close()
        if self._linger is not None:
            self._linger.cancel()
        self.output.finish(describe_exit(status))
        self.ended.set()
        self._on_end(self)


class _Discarder:
    """Discards the output of an ended process's remaining children, so that they neither block nor fail."""

    def __init__(self, loop: Loop, fd: int) -> None:
        self._loop = loop
        self._fd = fd
        self._listen()

    def _listen(self) -> None:
        self._loop.add_reader(self._fd, self._read)

    def _read(self) -> None:
        self._loop.remove_reader(self._fd)
        with contextlib.suppress(BlockingIOError):
            try:
                open_end = bool(os.read(self._fd, CHUNK))
            except BlockingIOError:
                raise
            except OSError:
                open_end = False
            if not open_end:
                os.close(self._fd)
                return
        self._loop.call_later(_DISCARD_PAUSE, self._listen)


def describe_exit(status: int) -> End:
    """Describe a wait status in the words of Go's os.ProcessState."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        words = f"signal: {(signal.strsignal(number) or f'signal {number}').lower()}"
        if os.WCOREDUMP(status):
            words += " (core dumped)"
        return End(-1, False, words, words)
    code = os.WEXITSTATUS(status)
    words = f"exit status {code}"
    return End(code, True, words, words if code else None)
