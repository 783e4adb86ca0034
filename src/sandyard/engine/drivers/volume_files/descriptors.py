"""Open files in a volume, and never outside of it: the kernel resolves every path as if the volume were the root.

A sandbox may replace a directory with a link between any two system calls. So a path is resolved once, to a descriptor,
and all further work uses the descriptor. All functions block and raise OSError.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator

from sandyard.kit.openat2 import Resolve, open_within

_RESOLVE = Resolve.NO_XDEV | Resolve.NO_MAGICLINKS | Resolve.IN_ROOT

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextlib.contextmanager
def open_path(root: int, parts: tuple[str, ...], flags: int = os.O_PATH) -> Iterator[int]:
    """Open the file at this path while the block runs. Without `O_NOFOLLOW`, a link at its end is followed inside the volume.

    If the file may be of any type, use `O_PATH`: opening a pipe or a device could block or have side effects.
    """
    fd = open_fd(root, parts, flags)
    try:
        yield fd
    finally:
        os.close(fd)


def open_fd(root: int, parts: tuple[str, ...], flags: int) -> int:
    """Like `open_path`, but the caller closes the descriptor."""
    return open_within(root, "/".join(parts), flags, resolve=_RESOLVE)


@contextlib.contextmanager
def reopen(fd: int, flags: int) -> Iterator[int]:
    """Open the file of an `O_PATH` descriptor with other flags."""
    reopened = reopen_fd(fd, flags)
    try:
        yield reopened
    finally:
        os.close(reopened)


def reopen_fd(fd: int, flags: int) -> int:
    """Like `reopen`, but the caller closes the descriptor."""
    return os.open(get_proc_path(fd), flags | os.O_CLOEXEC)


def get_proc_path(fd: int) -> str:
    """Return a path for a descriptor, for calls that only accept paths."""
    return f"/proc/self/fd/{fd}"


def is_folder(fd: int) -> bool:
    return stat.S_ISDIR(os.fstat(fd).st_mode)


def is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
