"""System calls that Python 3.11 does not offer: openat2, inotify, signalfd, statfs, prctl. Each raises OSError like
`os` does.

libc is looked up once, at import in the zygote, so everything is already resolved in a forked agent.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Any

_libc = ctypes.CDLL(None, use_errno=True)

# The number is the same on every architecture, because the call is newer than the unified table.
_SYS_OPENAT2 = 437
_AT_FDCWD = -100
_RESOLVE_NO_MAGICLINKS = 0x02

_SFD_NONBLOCK = 0o4000
_SFD_CLOEXEC = 0o2000000
SIGINFO_SIZE = 128

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36

IN_MODIFY = 0x2
IN_ATTRIB = 0x4
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x1000000
IN_DONT_FOLLOW = 0x2000000
IN_ISDIR = 0x40000000
_IN_NONBLOCK = 0o4000
_IN_CLOEXEC = 0o2000000

INOTIFY_EVENT = struct.Struct("iIII")
_OPEN_HOW = struct.Struct("QQQ")

_NETWORK_FILESYSTEMS = frozenset({0x6969, 0xFF534D42, 0x517B, 0xFE534D42, 0x65735546})  # nfs, cifs, smb, smb2, fuse


def _check_result(result: int, path: str | None = None) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return result


def open_no_magic(path: str, flags: int, mode: int = 0) -> int:
    """Open like `os.open`, but never through a magic link of procfs (/proc/PID/{fd,root,cwd,exe}).

    The agent can follow its own magic links where nobody else may, so a path from a client must not use them.
    """
    how = _OPEN_HOW.pack(
        flags | os.O_CLOEXEC, mode if flags & (os.O_CREAT | os.O_TMPFILE) else 0, _RESOLVE_NO_MAGICLINKS
    )
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise OSError(errno.EINVAL, "the path contains a NUL byte", path)
    result = _libc.syscall(_SYS_OPENAT2, _AT_FDCWD, encoded, how, len(how))
    if result < 0 and ctypes.get_errno() == errno.ENOSYS:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    return _check_result(result, path)


def signalfd(signals: list[int]) -> int:
    """Return a non-blocking descriptor from which the given (blocked) signals are read as `SIGINFO_SIZE` records."""
    mask = 0
    for number in signals:
        mask |= 1 << (number - 1)
    # sigset_t is 128 bytes in glibc and musl; the kernel's part comes first.
    raw = mask.to_bytes(8, sys.byteorder) + bytes(120)
    return _check_result(_libc.signalfd(-1, raw, _SFD_NONBLOCK | _SFD_CLOEXEC))


def siginfo(record: bytes) -> tuple[int, int]:
    """Parse a signalfd record: (signal number, sender's pid in this pid namespace, 0 if it is outside)."""
    number, _errno, _code, sender = struct.unpack_from("IiiI", record)
    return number, sender


def inotify_init() -> int:
    return _check_result(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    return _check_result(_libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)), path)


def inotify_rm_watch(fd: int, watch: int) -> None:
    _check_result(_libc.inotify_rm_watch(fd, watch))


def on_network_filesystem(path: str) -> bool:
    raw = ctypes.create_string_buffer(256)
    _check_result(_libc.statfs(os.fsencode(path), raw), path)
    kind: Any = ctypes.c_long.from_buffer(raw).value
    return int(kind) & 0xFFFFFFFF in _NETWORK_FILESYSTEMS


def become_subreaper() -> None:
    """Make orphans below this process its children, as pid 1 does."""
    _check_result(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def set_undumpable() -> None:
    """Prevent processes without capabilities from tracing this process or reading its /proc directory."""
    _check_result(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def limit_processes(count: int) -> None:
    """Limit the number of processes and threads of this kernel."""
    fd = os.open("/sys/fs/cgroup/pids/pids.max", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(count).encode())
    finally:
        os.close(fd)
