"""The duties of pid 1: every child that ends is waited for, whoever started it, and only the outside can end the
agent.

Signals are read from a signalfd, not handled: a record says who sent it, so that a SIGTERM from a process of the
sandbox is told from one of the engine (whose pid this namespace cannot see, and reads as 0).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Protocol

from sandyard.engine.guest import kernel
from sandyard.engine.guest.loop import Loop

# Everything that can be sent, but for what the kernel sends about a fault (which blocked would be fatal anyway) and two
# signals of the C library. What is not waited for here is read and forgotten: no handler of a parent must ever run.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_CATCHABLE = [int(n) for n in range(1, 65) if n not in {signal.SIGKILL, signal.SIGSTOP, 32, 33} | _FAULTS]

ExitHandler = Callable[[int], None]


class Waiter(Protocol):
    """Someone who waits for children."""

    def expect(self, pid: int, on_exit: ExitHandler) -> None: ...


class Reaper:
    def __init__(self, loop: Loop, on_terminate: Callable[[], None]) -> None:
        self._waiting: dict[int, ExitHandler] = {}
        self._on_terminate = on_terminate
        self._is_init = os.getpid() == 1
        signal.pthread_sigmask(signal.SIG_BLOCK, _CATCHABLE)
        self._fd = kernel.signalfd(_CATCHABLE)
        loop.add_reader(self._fd, self._read)

    def expect(self, pid: int, on_exit: ExitHandler) -> None:
        """Call `on_exit` with the wait status when this child has ended. To be called right after it was started."""
        self._waiting[pid] = on_exit

    def _read(self) -> None:
        try:
            records = os.read(self._fd, kernel.SIGINFO_SIZE * 8)
        except BlockingIOError:
            return
        for start in range(0, len(records), kernel.SIGINFO_SIZE):
            number, sender = kernel.siginfo(records[start:])
            ends = number == signal.SIGTERM or (number == signal.SIGINT and not self._is_init)
            if ends and not (self._is_init and sender):
                self._on_terminate()
        self.reap()

    def reap(self) -> None:
        """Wait for everything that has ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                on_exit = self._waiting.pop(pid, None)
                if on_exit is not None:
                    on_exit(status)
