"""Prepared lists of system calls.

In a process that was just forked every page of the interpreter that is touched is copied, which takes some microseconds
each, and plain Python code touches hundreds. So the zygote prepares what a new process has to do as a list of calls
with their arguments, most of it once for all sandboxes, and the process only runs through it.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable
from typing import Any

Step = tuple[Callable[..., int], tuple[Any, ...], str]  # the function, its arguments, and a description of the purpose


def run(steps: Iterable[Step]) -> None:
    """Run the calls in order; a negative result raises an OSError with the step's purpose."""
    for function, arguments, purpose in steps:
        if function(*arguments) < 0:
            code = ctypes.get_errno()
            raise OSError(code, f"{purpose}: {os.strerror(code)}")
