"""System calls that Python 3.11 does not offer: openat2, inotify, signalfd, statfs, prctl, seccomp; and a cgroup limit. Each
raises OSError like `os` does.

libc is loaded at import, in the process that agents are forked from, and not again in each agent.
"""

from __future__ import annotations

import contextlib
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
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_PR_SET_NO_NEW_PRIVS = 38

_CLONE_NEWUSER = 0x1000_0000
_SYS_CLONE3 = 435
_NAMESPACE_CALLS = {  # AUDIT_ARCH_*, clone, unshare
    "x86_64": (0xC000_003E, 56, 272),
    "aarch64": (0xC000_00B7, 220, 97),
}
_BPF_INSTRUCTION = struct.Struct("HBBI")  # code, jump if true, jump if false, operand
_BPF_LOAD, _BPF_IF_EQUAL, _BPF_IF_ANY_BIT, _BPF_RETURN = 0x20, 0x15, 0x45, 0x06
_AT_NUMBER, _AT_ARCH, _AT_FIRST_ARGUMENT = 0, 4, 16  # in struct seccomp_data
_ALLOW, _FAIL = 0x7FFF_0000, 0x0005_0000

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


def parse_siginfo(record: bytes) -> tuple[int, int]:
    """Parse a signalfd record: (signal number, sender's pid in this pid namespace, 0 if it is outside)."""
    number, _errno, _code, sender = struct.unpack_from("IiiI", record)
    return number, sender


def inotify_init() -> int:
    return _check_result(_libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC))


def inotify_add_watch(fd: int, path: str, mask: int) -> int:
    return _check_result(_libc.inotify_add_watch(fd, os.fsencode(path), ctypes.c_uint32(mask)), path)


def inotify_rm_watch(fd: int, watch: int) -> None:
    _check_result(_libc.inotify_rm_watch(fd, watch))


def is_on_network_filesystem(path: str) -> bool:
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


def forbid_user_namespaces() -> None:
    """Prevent this process and its descendants from creating user namespaces."""
    arch, clone, unshare = _NAMESPACE_CALLS[os.uname().machine]
    program = b"".join(
        _BPF_INSTRUCTION.pack(*instruction)
        for instruction in (
            (_BPF_LOAD, 0, 0, _AT_ARCH),
            (_BPF_IF_EQUAL, 0, 3, arch),  # another ABI: like clone3
            (_BPF_LOAD, 0, 0, _AT_NUMBER),
            # Its flags are in memory, which a filter can't read. Programs fall back to clone.
            (_BPF_IF_EQUAL, 1, 0, _SYS_CLONE3),
            (_BPF_IF_EQUAL, 2, 1, clone),
            (_BPF_RETURN, 0, 0, _FAIL | errno.ENOSYS),
            (_BPF_IF_EQUAL, 0, 3, unshare),
            (_BPF_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
            (_BPF_IF_ANY_BIT, 0, 1, _CLONE_NEWUSER),
            (_BPF_RETURN, 0, 0, _FAIL | errno.EPERM),
            (_BPF_RETURN, 0, 0, _ALLOW),
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("@HP", len(program) // _BPF_INSTRUCTION.size, ctypes.addressof(code))
    _check_result(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))  # required without CAP_SYS_ADMIN
    _check_result(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, descriptor, 0, 0))


def limit_processes(count: int) -> None:
    """Limit the number of processes and threads with the root cgroup of gVisor's kernel."""
    fd = os.open("/sys/fs/cgroup/pids/pids.max", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, str(count).encode())
    finally:
        os.close(fd)


def signal_session(session: int, number: int) -> None:
    """Send a signal to every process of a session."""
    for name in os.listdir("/proc"):
        if name.isdecimal():
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(int(name)) == session:
                    os.kill(int(name), number)
