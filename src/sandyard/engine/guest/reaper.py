"""The duties of pid 1: wait for every child that ends, including orphans, and stop only on a signal from outside.

Signals are read from a signalfd instead of being handled, because a record names the sender: a SIGTERM of a process in
the sandbox is ignored, one of the engine is not (its pid is not visible in this namespace and reads as 0).
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from typing import Protocol

from sandyard.engine.guest import kernel
from sandyard.engine.guest.loop import Loop

# All signals except those that the kernel sends for a fault (which would be fatal if blocked) and two of the C library.
# Signals that are not used here are read and ignored, so that no handler inherited from the parent runs.
_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
_CATCHABLE = [int(n) for n in range(1, 65) if n not in {signal.SIGKILL, signal.SIGSTOP, 32, 33} | _FAULTS]

ExitHandler = Callable[[int], None]


class Waiter(Protocol):
    """Waits for children of this process."""

    def expect(self, pid: int, on_exit: ExitHandler) -> None:
        """Call `on_exit` with the wait status when this child has ended. Call it right after the child was started."""
        ...


class Reaper:
    def __init__(self, loop: Loop, on_terminate: Callable[[], None]) -> None:
        self._waiting: dict[int, ExitHandler] = {}
        self._on_terminate = on_terminate
        self._is_init = os.getpid() == 1
        signal.pthread_sigmask(signal.SIG_BLOCK, _CATCHABLE)
        self._fd = kernel.signalfd(_CATCHABLE)
        loop.add_reader(self._fd, self._read)

    def expect(self, pid: int, on_exit: ExitHandler) -> None:
        """Call `on_exit` with the wait status when this child has ended. Call it right after the child was started."""
        self._waiting[pid] = on_exit

    def _read(self) -> None:
        try:
            record = os.read(self._fd, kernel.SIGINFO_SIZE)  # gVisor pads a record if the buffer is larger
        except BlockingIOError:
            return
        number, sender = kernel.parse_siginfo(record)
        asks_to_stop = number == signal.SIGTERM or (number == signal.SIGINT and not self._is_init)
        is_from_sandbox = self._is_init and sender != 0
        if asks_to_stop and not is_from_sandbox:
            self._on_terminate()
        self.reap()

    def reap(self) -> None:
        """Wait for all children that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                on_exit = self._waiting.pop(pid, None)
                if on_exit is not None:
                    on_exit(status)
