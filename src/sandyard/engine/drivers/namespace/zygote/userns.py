"""User namespaces for sandboxes, made before they are needed and held by a descriptor alone."""

from __future__ import annotations

import contextlib
import os

from sandyard.engine.drivers.namespace import kernel

_NO_MORE = ("user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time")


def make(first: int, count: int) -> int:
    """A user namespace whose ids 0 to count-1 are first to first+count-1 of this one. In it, no further namespace of any kind
    can be made: the seccomp filter says so as well, this is the kernel's own counter."""
    gate, release = os.pipe2(os.O_CLOEXEC)
    pid, pidfd = kernel.clone(kernel.CLONE_NEWUSER)
    if pid == 0:  # it has a copy of everything, but only for a moment
        os.close(release)
        os.read(gate, 1)
        _forbid_more()
        os._exit(0)
    try:
        os.close(gate)
        for kind in ("uid", "gid"):
            _write(f"/proc/{pid}/{kind}_map", f"0 {first} {count}")
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(release)
        os.waitpid(pid, 0)
        os.close(pidfd)


def _forbid_more() -> None:
    for kind in _NO_MORE:
        with contextlib.suppress(OSError):  # a kernel without that kind; an outer container that hides the file
            _write(f"/proc/sys/user/max_{kind}_namespaces", "0")


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
