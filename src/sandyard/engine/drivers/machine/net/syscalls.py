"""System calls that Python 3.11 does not offer. Each acts on the calling thread and raises OSError."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNET = 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_PRIVATE = 2, 4, 8, 0x1000, 1 << 18
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_SYS_FSOPEN, _SYS_FSCONFIG, _SYS_FSMOUNT = 430, 431, 432  # the same on every architecture
_CLOEXEC, _FSCONFIG_CMD_CREATE = 1, 6


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def create_network_namespace() -> None:
    """Move the calling thread, and only it, into a new network namespace."""
    _check(_libc.unshare(_NEWNET), "unshare(CLONE_NEWNET)")


def enter_network_namespace(descriptor: int) -> None:
    """Move the calling thread, and only it, into that network namespace."""
    _check(_libc.setns(descriptor, _NEWNET), "setns(CLONE_NEWNET)")


def bind_mount(source: Path, target: Path) -> None:
    _check(_libc.mount(os.fsencode(source), os.fsencode(target), None, _MS_BIND, None), f"bind mount on {target}")


def mount_private_tmpfs(target: Path) -> None:
    """Mount an empty in-memory file system; mounts below it are not visible in other mount namespaces."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    options = b"mode=700,size=1m,nr_inodes=70k"
    _check(_libc.mount(b"sandyard", os.fsencode(target), b"tmpfs", flags, options), f"tmpfs on {target}")
    _check(_libc.mount(b"none", os.fsencode(target), None, _MS_PRIVATE, None), f"private mount {target}")


def unmount_lazily(target: Path) -> None:
    """Unmount immediately for new users, and completely when the last user is gone. EINVAL if nothing is mounted
    there."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH | _UMOUNT_NOFOLLOW), f"unmount {target}")


def open_detached_proc() -> int:
    """Return a descriptor of a separate proc file system that is mounted nowhere. It is freed when closed."""
    context = _libc.syscall(_SYS_FSOPEN, b"proc", _CLOEXEC)
    _check(min(context, 0), "fsopen")
    try:
        _check(_libc.syscall(_SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0), "fsconfig")
        mount = int(_libc.syscall(_SYS_FSMOUNT, context, _CLOEXEC, 0))
        _check(min(mount, 0), "fsmount")
        return mount
    finally:
        os.close(context)
