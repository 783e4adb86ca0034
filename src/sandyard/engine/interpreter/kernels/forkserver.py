"""Creates kernels by forking a process that has everything imported: a kernel takes milliseconds and shares its memory.

The server sends one JSON object per line on standard input and gets one back on standard output. The fork server ends
with the server, and its kernels end with it.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
from typing import Any, NoReturn

from sandyard.engine.interpreter.kernels import launch


def serve() -> None:
    """Serve until the server ends."""
    launch.prepare()
    gc.collect()
    gc.freeze()  # so that garbage collections in a kernel do not touch the shared pages
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the server watches kernels by itself
    kernels: set[int] = set()
    with os.fdopen(os.dup(0), "rb") as requests, os.fdopen(os.dup(1), "wb", buffering=0) as answers:
        answers.write(b"{}\n")
        for line in requests:
            pid = os.fork()
            if pid == 0:
                _become_kernel(json.loads(line))
            kernels.add(pid)
            answers.write(json.dumps({"pid": pid}).encode() + b"\n")
    for pid in kernels:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == pid:
                os.killpg(pid, signal.SIGKILL)


def _become_kernel(request: dict[str, Any]) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)  # a kernel sends its output as messages
        os.closerange(3, 256)
        os.environ.clear()
        os.environ.update(request["env"])
        with contextlib.suppress(OSError):
            os.chdir(request["cwd"])
        launch.run(request["kernel"], request["connection_file"])
    except BaseException:  # in any case, this process must not continue as the fork server
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)
