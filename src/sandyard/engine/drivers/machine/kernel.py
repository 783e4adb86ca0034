"""System calls that Python 3.11 does not offer: namespaces, mounts, capabilities, clone3. Each raises OSError with what
failed.

Standard library only, because everything the zygote loads is in the memory of every sandbox.
"""

from __future__ import annotations

import ctypes
import os
import struct

CLONE_NEWNS = 0x0002_0000
CLONE_NEWCGROUP = 0x0200_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000
_CLONE_PIDFD = 0x1000
_CLONE_INTO_CGROUP = 0x2_0000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 1, 2, 4, 8
MS_REMOUNT, MS_NOATIME, MS_BIND, MS_REC = 32, 1024, 4096, 16384
MS_PRIVATE, MS_SLAVE = 1 << 18, 1 << 19
MNT_DETACH = 2

MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_NOEXEC = 1, 2, 4, 8
MOUNT_ATTR_IDMAP = 0x0010_0000

# These system calls have the same numbers on every architecture, unlike older ones.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, _SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT, _SYS_FSPICK = 428, 429, 430, 431, 432, 433
_SYS_CLONE3, SYS_CLOSE_RANGE, SYS_MOUNT_SETATTR = 435, 436, 442
SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}.get(os.uname().machine, -1)

AT_FDCWD = -100
AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
_FSCONFIG_SET_FLAG, _FSCONFIG_CMD_CREATE, _FSCONFIG_CMD_RECONFIGURE, _FSPICK_CLOEXEC = 0, 6, 7, 1
_FSOPEN_CLOEXEC = _FSMOUNT_CLOEXEC = 1

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_CAPBSET_READ, PR_CAPBSET_DROP = 1, 4, 15, 23, 24
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, PR_SET_THP_DISABLE = 22, 38, 41
SECCOMP_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)
libc = ctypes.PyDLL(None, use_errno=True)  # calls without releasing the interpreter lock, which a clone must not do
_libc.syscall.restype = libc.syscall.restype = ctypes.c_long

_CAPABILITY_VERSION_3 = 0x2008_0522
_CAP_SYS_ADMIN = 1 << 21


def _check(result: int, what: str) -> int:
    """Return the result of a system call, or raise the OSError that it reported."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


# Namespaces and processes ------------------------------------------------------------------------------------------------


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), f"join a namespace ({kind:#x})")


def clone(flags: int, cgroup_fd: int = -1) -> tuple[int, int]:
    """Fork into new namespaces and, if given, directly into a cgroup2 directory: a later move would wait for an RCU
    grace period, which takes milliseconds. Return (pid, pidfd) in the parent and (0, -1) in the child.

    Only for a process with one thread that holds no lock of Python or the C library: what their own fork does in
    addition to the clone (recreating locks that other threads may hold, cached thread ids, module hooks) is left out.
    In a fresh copy of an interpreter those hooks cost a millisecond of copied pages. Seed `random` in the child before
    using it.
    """
    pidfd = ctypes.c_int(-1)
    sigchld = 17
    full = flags | _CLONE_PIDFD | (_CLONE_INTO_CGROUP if cgroup_fd >= 0 else 0)
    # flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup
    args = struct.pack("11Q", full, ctypes.addressof(pidfd), 0, 0, sigchld, 0, 0, 0, 0, 0, max(cgroup_fd, 0))
    pid = libc.syscall(_SYS_CLONE3, args, ctypes.c_size_t(len(args)))
    if pid == 0:
        return 0, -1
    return _check(pid, "clone"), pidfd.value


def close_range(first: int, last: int) -> None:
    """Close every descriptor from first to last, inclusive."""
    if last >= first and _libc.syscall(SYS_CLOSE_RANGE, ctypes.c_uint(first), ctypes.c_uint(last), 0) < 0:
        os.closerange(first, min(last, os.sysconf("SC_OPEN_MAX")) + 1)


def prctl(option: int, arg: int = 0) -> int:
    return _check(_libc.prctl(option, arg, 0, 0, 0), f"prctl({option}, {arg})")


def set_process_name(name: str) -> None:
    _check(_libc.prctl(PR_SET_NAME, name.encode()[:15] + b"\0", 0, 0, 0), "set the process name")


def sethostname(name: str) -> None:
    raw = name.encode()
    _check(_libc.sethostname(raw, ctypes.c_size_t(len(raw))), "set the host name")


def make_capset_arguments(keep: int) -> tuple[bytes, bytes]:
    """Return the arguments of capset(2): permitted and effective capabilities become `keep`, inheritable ones none."""
    low, high = keep & 0xFFFF_FFFF, keep >> 32
    return struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("6I", low, low, 0, high, high, 0)


def capset(keep: int) -> None:
    _check(_libc.capset(*make_capset_arguments(keep)), "give up capabilities")


def get_effective_capabilities() -> int:
    header, data = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _check(_libc.capget(header, data), "read the capabilities")
    low, _, _, high, _, _ = struct.unpack("6I", data.raw)
    return int(low | high << 32)


def is_root() -> bool:
    """Return whether this process may create namespaces and mounts on the host itself."""
    return os.geteuid() == 0 and bool(get_effective_capabilities() & _CAP_SYS_ADMIN)


class SeccompProgram:
    """A filter of `sock_filter` records that can be loaded repeatedly."""

    def __init__(self, program: bytes) -> None:
        self._code = ctypes.create_string_buffer(program, len(program))
        fprog = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(self._code))
        self.arguments = (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog, 0, 0)  # for prctl(2)


def load_seccomp(program: bytes) -> None:
    """Install a filter for this thread and all its descendants, permanently."""
    loaded = SeccompProgram(program)  # its arguments point into it
    _check(_libc.prctl(*loaded.arguments), "load the seccomp filter")


# Mounts ------------------------------------------------------------------------------------------------------------------


def mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    raw = (os.fsencode(source), os.fsencode(target), kind.encode() if kind else None, ctypes.c_ulong(flags))
    _check(_libc.mount(*raw, os.fsencode(data) if data else None), f"mount {kind or source} on {target}")


def bind(source: str, target: str, *, recursive: bool = False) -> None:
    mount(source, target, None, MS_BIND | (MS_REC if recursive else 0))


def unmount(target: str, flags: int = 0) -> None:
    _check(_libc.umount2(os.fsencode(target), flags), f"unmount {target}")


def clone_mount(path: str, *, recursive: bool = False) -> int:
    """Return a descriptor of a detached copy of the mount that contains `path`, with `path` as its root."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC | (_AT_RECURSIVE if recursive else 0)
    return _check(_libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(path), flags), f"copy the mount of {path}")


def attach_mount(fd: int, target: str) -> None:
    args = (fd, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    _check(_libc.syscall(SYS_MOVE_MOUNT, *args), f"attach a mount on {target}")


def change_mount(fd: int, attributes: int, *, recursive: bool = False, userns_fd: int = -1) -> None:
    """Change a mount. With `userns_fd`, ids are mapped through that user namespace; the mount must not be attached
    yet."""
    attr = make_mount_attributes(attributes, userns_fd)
    flags = AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _check(_libc.syscall(SYS_MOUNT_SETATTR, fd, b"", flags, attr, ctypes.c_size_t(len(attr))), "change a mount")


def make_mount_attributes(attributes: int, userns_fd: int = -1) -> bytes:
    """Return the argument of mount_setattr(2); with `userns_fd`, ids on the mount are mapped through that user
    namespace."""
    if userns_fd >= 0:
        attributes |= MOUNT_ATTR_IDMAP
    return struct.pack("4Q", attributes, 0, 0, max(userns_fd, 0))


def open_filesystem(kind: str) -> int:
    """Return a descriptor of the root of a new mount, which is attached nowhere and ends with the descriptor."""
    context = _check(_libc.syscall(_SYS_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC), f"open the file system {kind}")
    try:
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), f"create {kind}")
        mount_fd = _check(_libc.syscall(_SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0), f"mount {kind}")
    finally:
        os.close(context)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)
    finally:
        os.close(mount_fd)


def set_filesystem_options(path: str, flags: list[str]) -> None:
    """Set options of the file system mounted at `path`; those of the mount stay."""
    context = _check(
        _libc.syscall(_SYS_FSPICK, AT_FDCWD, os.fsencode(path), _FSPICK_CLOEXEC), f"open the options of {path}"
    )
    try:
        for flag in flags:
            _check(
                _libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_SET_FLAG, flag.encode(), None, 0),
                f"set {flag} on {path}",
            )
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_RECONFIGURE, None, None, 0), f"reconfigure {path}")
    finally:
        os.close(context)


def syncfs(path: str) -> None:
    """Write all dirty data of a file system to disk. Blocks."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _check(_libc.syncfs(fd), f"sync {path}")
    finally:
        os.close(fd)


def fallocate(fd: int, offset: int, length: int) -> None:
    """Allocate the blocks of this part of a file; existing data stays. Unlike `os.posix_fallocate`, never falls back to
    writing, but raises EOPNOTSUPP: another process may be writing to the file."""
    raw = (ctypes.c_int(fd), 0, ctypes.c_int64(offset), ctypes.c_int64(length))
    _check(_libc.fallocate(*raw), "reserve disk space")


def get_filesystem_type(path: str) -> int:
    """Return the magic number from statfs."""
    raw = ctypes.create_string_buffer(256)
    _check(_libc.statfs(os.fsencode(path), raw), f"statfs {path}")
    return int(ctypes.c_long.from_buffer(raw).value) & 0xFFFF_FFFF


def pivot_into(root: str) -> None:
    """Make `root`, a mount point, the root of this mount namespace, and detach everything that was there before."""
    os.chdir(root)
    _check(_libc.syscall(SYS_PIVOT_ROOT, b".", b"."), "pivot_root")
    unmount(".", MNT_DETACH)
    os.chdir("/")
