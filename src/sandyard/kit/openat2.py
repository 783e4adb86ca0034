"""openat2: open an untrusted path without following it outside a directory."""

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
    """Flags for path resolution, with the kernel's values."""

    NO_XDEV = 0x01  # do not cross mount points
    NO_MAGICLINKS = 0x02  # do not follow procfs links
    NO_SYMLINKS = 0x04
    BENEATH = 0x08  # leaving the directory is an error (EXDEV)
    IN_ROOT = 0x10  # treat the directory as `/`: links and `..` stay inside


def open_within(root: int, path: str, flags: int, mode: int = 0, *, resolve: Resolve) -> int:
    """Return a descriptor for `path` below the open directory `root`. Blocks. Raises OSError, or ValueError for a null byte."""
    raw = os.fsencode(path)
    if b"\0" in raw:
        raise ValueError("embedded null byte")
    how = _HOW.pack(flags | os.O_CLOEXEC, mode, resolve)
    for _ in range(_TRIES):
        fd = int(_libc.syscall(_SYS_OPENAT2, root, raw or b".", how, ctypes.c_size_t(len(how))))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in {errno.EAGAIN, errno.EINTR}:  # EAGAIN: something was renamed during the lookup
            break
    raise OSError(code, os.strerror(code), path)


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path as a process whose `/` is the directory `root` would: links and `..` stay inside it. Raises OSError."""
    return open_within(root, path, flags, mode, resolve=Resolve.IN_ROOT | Resolve.NO_MAGICLINKS)


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open a path; links that lead out of the directory `root` are an error (EXDEV), as are those of procfs."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_MAGICLINKS)


def open_without_links(root: int, path: str, flags: int) -> int:
    """Open a path; any link on the way is an error (ELOOP)."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_SYMLINKS)
