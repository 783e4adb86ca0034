"""System calls written down before they are made.

In a process that was just forked every page of the interpreter that is touched is copied, for some microseconds each, and plain Python
code touches hundreds. So the zygote prepares what a new process has to do as a list of calls with their arguments, most of it once for
all sandboxes, and the process does nothing but run through it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Any

Step = tuple[Callable[..., int], tuple[Any, ...], str]  # what is called, with what, and in words what that is for


def run(steps: Iterable[Step]) -> None:
    """Call after call; a negative result ends it with an OSError that says what it was for."""
    for function, arguments, doing in steps:
        if function(*arguments) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{doing}: {os.strerror(code)}")
