"""openat2: opening a path that somebody else chose, without being led to where they want."""

from __future__ import annotations

import ctypes
import enum
import errno
import os
import struct

_SYS_OPENAT2 = 437  # the same number on every architecture
_HOW = struct.Struct("3Q")
_TRIES = 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class Resolve(enum.IntFlag):
    """How the kernel looks a path up; its own numbers."""

    NO_XDEV = 0x01  # no other mount on the way
    NO_MAGICLINKS = 0x02  # no link of procfs
    NO_SYMLINKS = 0x04
    BENEATH = 0x08  # what leads out of the directory is an error (EXDEV)
    IN_ROOT = 0x10  # as if the directory were `/`: links and `..` stay within


def open_within(root: int, path: str, flags: int, mode: int = 0, *, resolve: Resolve) -> int:
    """A descriptor of what is at `path` below the open directory `root`. Blocks. Raises OSError, ValueError for a null
    byte."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError("embedded null byte")
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(_TRIES):
        fd = int(_libc.syscall(_SYS_OPENAT2, root, raw or b".", how, ctypes.c_size_t(len(how))))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in {errno.EAGAIN, errno.EINTR}:  # EAGAIN: something was moved while the kernel looked
            break
    raise OSError(code, os.strerror(code), path)
