"""End a child process when its supervisor ends, for any reason: the supervisor holds a pipe, and the child notices when it closes.

A child also keeps the supervisor's lock open, so that a new supervisor on the same directory waits until the last child is gone. A child
that is started early, to load its code meanwhile, is told through the pipe when its turn has come.
"""

from __future__ import annotations

import os
import signal
import threading
import time

STANDBY = "Standing by:"
"""Prefix of the line of a healthy process that waits, without time limit, until another one ends."""
VARIABLE = "SANDYARD_LIFELINE"
STOP_SECONDS = 20.0
"""How long a process may take to stop before it is killed."""


_turn = threading.Event()


def format_value(pipe: int, lock: int, *, early: bool = False) -> str:
    """Return the value of `VARIABLE` for a child. Both descriptors are inherited by the child. With `early`, the child waits for its
    turn, which is a byte in the pipe."""
    return f"{pipe},{lock},{int(early)}"


def watch_supervisor() -> None:
    """Start watching the supervisor. A child calls this first of all. Does nothing in a process without a supervisor.

    When the supervisor is gone, this process gets SIGTERM, and SIGKILL if it has not ended after 20 s. Its own
    children inherit none of this.
    """
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        _turn.set()
        return
    pipe, lock, early = (int(part) for part in text.split(","))
    if not early:
        _turn.set()
    for descriptor in (pipe, lock):
        os.set_inheritable(descriptor, False)
    threading.Thread(target=_watch_pipe, args=(pipe,), name="lifeline", daemon=True).start()


def wait_for_turn() -> None:
    """Wait for this child's turn. Called after `watch_supervisor`, once its code is loaded. Returns immediately if it was not
    started early."""
    _turn.wait()


def _watch_pipe(pipe: int) -> None:
    while os.read(pipe, 1):
        _turn.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
