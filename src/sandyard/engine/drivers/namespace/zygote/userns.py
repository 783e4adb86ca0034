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


def create(first: int, count: int) -> int:
    """Return a user namespace whose ids 0 to count-1 are first to first+count-1 of this one. No further namespaces can
    be created in it: the seccomp filter prevents that too, this is the kernel's own limit.

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
            _create_and_wait(child_end, first)
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


def _create_and_wait(control: socket.socket, owner: int) -> NoReturn:
    """Create a user namespace that belongs to `owner`, pass it to the other side, and wait until its ids are mapped."""
    try:
        proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # the owner may not look it up in our root
        capabilities = kernel.make_capset_arguments(kernel.get_effective_capabilities())
        os.seteuid(owner)
        kernel.libc.capset(
            *capabilities
        )  # removed by the change of id; some machines let nobody else create user namespaces
        kernel.unshare(kernel.CLONE_NEWUSER)
        # Opened here, because another process would need CAP_SYS_PTRACE to open a namespace that it does not own.
        fd = os.open("self/ns/user", os.O_RDONLY | os.O_CLOEXEC, dir_fd=proc)
        protocol.send(control, {}, [fd])
        control.recv(1)
        _forbid_namespaces(proc)
    except OSError as error:
        with contextlib.suppress(OSError):
            protocol.send(control, {"errno": error.errno, "error": error.strerror or str(error)})
    finally:
        os._exit(0)


def _forbid_namespaces(proc: int) -> None:
    for kind in _NAMESPACE_KINDS:
        with contextlib.suppress(OSError):  # a kernel without that type; an outer container that hides the file
            _write(f"sys/user/max_{kind}_namespaces", "0", proc)


def _write(path: str, text: str, folder: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
