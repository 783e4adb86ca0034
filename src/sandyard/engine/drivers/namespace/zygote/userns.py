"""User namespaces for sandboxes, created in advance and held only by a descriptor."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from typing import NoReturn

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.namespace.zygote import protocol

_NAMESPACE_KINDS = ("user", "pid", "uts", "ipc", "net", "mnt", "cgroup", "time")
# In sandboxes with containers. A container has one of each, Docker a few more; a network namespace takes a few hundred
# kilobytes of kernel memory.
_MAX_NAMESPACES = {"user": 64, "net": 128, "time": 0}
_MAX_OTHER_NAMESPACES = 256


def create(first: int, count: int, *, containers: bool = False) -> int:
    """Return a user namespace whose ids 0 to count-1 are first to first+count-1 of this one. Without
    `containers` no further namespaces can be created in it: the seccomp filter prevents that too, this is the kernel's
    own limit.

    Its owner is `first`. What the kernel counts per user and namespace (inotify instances and watches, queued signals,
    bytes of message queues, locked memory, processes) it counts for all ids inside together against the owner outside,
    up to this process's resource limits and the machine's limits for a user. If the owner were root, sandboxes would
    use up root's limits.
    """
    own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with own_end, child_end:
        pid, pidfd = kernel.clone(0)
        if pid == 0:  # it has a copy of everything, but only for a moment
            own_end.close()
            _create_and_wait(child_end, first, containers=containers)
        try:
            child_end.close()
            answer, fds = protocol.receive(own_end)
            if not fds:
                failure = answer or {"errno": errno.ECHILD, "error": "make a user namespace: the process was killed"}
                raise OSError(failure["errno"], failure["error"])
            try:
                for kind in ("uid", "gid"):
                    _write(f"/proc/{pid}/{kind}_map", f"0 {first} {count}")
            except BaseException:
                os.close(fds[0])
                raise
            return fds[0]
        finally:
            own_end.close()
            os.waitpid(pid, 0)
            os.close(pidfd)


def _create_and_wait(control: socket.socket, owner: int, *, containers: bool) -> NoReturn:
    """Create a user namespace that belongs to `owner`, pass it to the other side, and wait until its ids are mapped."""
    try:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # the owner may not look it up in our root
        capabilities = kernel.make_capset_arguments(kernel.get_effective_capabilities())
        os.seteuid(owner)
        # The change of id removed them, and some machines let nobody else create user namespaces.
        kernel.libc.capset(*capabilities)
        kernel.unshare(kernel.CLONE_NEWUSER)
        # Opened here, because another process would need CAP_SYS_PTRACE to open a namespace that it does not own.
        fd = os.open("self/ns/user", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        protocol.send(control, {}, [fd])
        control.recv(1)
        _limit_namespaces(proc, containers=containers)
    except OSError as error:
        with contextlib.suppress(OSError):
            protocol.send(control, {"errno": error.errno, "error": error.strerror or str(error)})
    finally:
        os._exit(0)


def _limit_namespaces(proc: int, *, containers: bool) -> None:
    for kind in _NAMESPACE_KINDS:
        limit = _MAX_NAMESPACES.get(kind, _MAX_OTHER_NAMESPACES) if containers else 0
        with contextlib.suppress(OSError):  # a kernel without that type; an outer container that hides the file
            _write(f"sys/user/max_{kind}_namespaces", str(limit), proc)


def _write(path: str, text: str, folder: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
