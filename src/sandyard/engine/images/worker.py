"""Common code of the processes that unpack images: read the request, set limits, report the outcome. The image data is
read only by confined workers (`confinement.py`).

Standard library only, because one is started for every layer.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

from sandyard.engine.images.confinement import ConfinementError
from sandyard.engine.images.stream import LayerError, NoRoomError

_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_MAX_ERROR_CHARACTERS = 2000
_libc = ctypes.CDLL(None, use_errno=True)


def initialize_process(memory: int) -> dict[str, Any]:
    """Read the request from the descriptor in the first argument, arrange to end with the parent, and limit resource
    usage. The umask is cleared, because the engine's must not affect an image."""
    fd = int(sys.argv[1])
    request: dict[str, Any] = json.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    os.close(fd)
    _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
    if os.getppid() != request.pop("parent"):
        os._exit(1)
    os.umask(0)
    with contextlib.suppress(OSError):
        os.nice(5)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return request


def report_outcome(work: Callable[[], Mapping[str, Any]], written_path: str | None = None) -> None:
    """Report the outcome. The file system of `written_path` is synced to disk by then."""
    try:
        outcome = dict(work())
        if written_path is not None:
            _sync(written_path)
    except LayerError as error:
        outcome = _failure(error)
    except ConfinementError as error:
        outcome = {"error": str(error), "kind": "unconfined"}
    sys.stdout.write(json.dumps(outcome))


def collect_outcome(work: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return a worker's report: what it found, or `error` and its `kind`."""
    try:
        return dict(work())
    except LayerError as error:
        return _failure(error)


def check_outcome(outcome: Mapping[str, Any]) -> None:
    """Raise the LayerError that a worker reported."""
    if "error" in outcome:
        kind = NoRoomError if outcome.get("kind") == "full" else LayerError
        raise kind(str(outcome["error"])[:_MAX_ERROR_CHARACTERS])


def _failure(error: LayerError) -> dict[str, Any]:
    return {"error": str(error), "kind": "full" if isinstance(error, NoRoomError) else "layer"}


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if _libc.syncfs(fd) < 0:
            raise NoRoomError(f"could not be written to disk: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(fd)
