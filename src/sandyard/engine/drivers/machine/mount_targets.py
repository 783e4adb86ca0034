"""Mount points for volumes in the root file system of a sandbox.

What a template or a snapshot put there is not trusted, especially symbolic links: a path may only lead to a directory in
that file system. Standard library only, because the processes that start sandboxes load it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

from sandyard.engine.drivers.machine.kernel import libc

_SYS_OPENAT2 = 437
_NO_XDEV, _NO_MAGICLINKS, _IN_ROOT = 0x01, 0x02, 0x10
OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
# No other mount on the way: not /proc or /dev through a link, and not another volume, which would hide one below the other.
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _IN_ROOT
_OPEN_HOW = struct.pack("3Q", OPEN_DIRECTORY, 0, _RESOLVE)
_OPEN_FILE_HOW = struct.pack("3Q", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE)


def open_path(root: int, path: str) -> int:
    """Return a descriptor of a file or directory in the file system `root`, or -1."""
    descriptor: int = libc.syscall(_SYS_OPENAT2, root, os.fsencode(path), _OPEN_FILE_HOW, len(_OPEN_FILE_HOW))
    return descriptor


def open_target(root: int, target: str) -> int:
    """Return a descriptor of the directory `target` in the file system `root`, created with its parents if it is
    missing. Returns -1 and sets the C library's errno if that fails."""
    parts = target.strip("/").split("/")
    parent = os.dup(root)
    try:
        for number, part in enumerate(parts, 1):
            path = os.fsencode("/".join(parts[:number]))
            inner = libc.syscall(_SYS_OPENAT2, root, path, _OPEN_HOW, len(_OPEN_HOW))
            if inner < 0 and ctypes.get_errno() == errno.ENOENT:
                if libc.mkdirat(parent, os.fsencode(part), 0o755) < 0 and ctypes.get_errno() != errno.EEXIST:
                    return -1
                inner = libc.syscall(_SYS_OPENAT2, root, path, _OPEN_HOW, len(_OPEN_HOW))
            if inner < 0:
                return -1
            os.close(parent)
            parent = inner
        return os.dup(parent)
    finally:
        os.close(parent)
