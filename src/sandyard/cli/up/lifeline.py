"""How a child ends with its supervisor, however that ends: a pipe, whose end is heard at once.

A child also keeps the supervisor's lock open: whoever starts anew on that directory waits until the last one is gone. One that is started
before its turn, to load its code meanwhile, is told through the pipe when that has come.
"""

from __future__ import annotations

import os
import signal
import threading
import time

STANDBY = "Standing by:"
"""Begins a line of a process that is well and waits until another one ends: for that no time is too long."""
VARIABLE = "SANDYARD_LIFELINE"
STOP_SECONDS = 20.0
"""How long a process may take to stop before it is killed."""


_turn = threading.Event()


def spell(pipe: int, lock: int, *, early: bool = False) -> str:
    """What the supervisor sets `VARIABLE` to. Both descriptors are handed over to the child as they are. `early`: it has to wait for
    its turn, a byte in the pipe."""
    return f"{pipe},{lock},{int(early)}"


def hold() -> None:
    """Called by a child as its first deed. Does nothing in a process that has no supervisor.

    When the supervisor is gone, this process is asked to stop (SIGTERM), and killed when it has not after 20 s. Its own
    children inherit nothing of this.
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
    threading.Thread(target=_listen, args=(pipe,), name="lifeline", daemon=True).start()


def wait_for_turn() -> None:
    """Called by a child that has loaded its code, after `hold`. Returns at once in one that was not started early."""
    _turn.wait()


def _listen(pipe: int) -> None:
    while os.read(pipe, 1):
        _turn.set()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
