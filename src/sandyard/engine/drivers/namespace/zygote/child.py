"""A sandbox's first process, from the clone to the moment it is the agent.

It is born in new mount, pid, ipc and uts namespaces and makes the rest itself while it has the zygote's privileges. It enters its
user namespace **last**: all others then belong to whoever the zygote is, and root in the sandbox has no power over any of them.
Because it never execs, its memory belongs to the outer user namespace too, and nobody inside may trace it.
"""

# ruff: noqa: PTH (plain os calls: this runs in every create)

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import random
import socket
import struct
from typing import Any, NoReturn

from sandyard.engine.drivers.namespace import kernel
from sandyard.engine.drivers.namespace.zygote import confine, protocol, rootfs

LISTEN_FD = 3  # kept free by the zygote
FIRST_FREE_FD = 4
STDERR_FD = 2
_BACKLOG = 1024
_PROTECTED = "-900"  # of -1000: when nothing else is left to kill, the agent is
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


class Child:
    """One start. `run` never returns; what fails before the agent serves is told to the engine as a sentence."""

    def __init__(
        self, system: rootfs.System, request: dict[str, Any], fds: list[int], userns_fd: int, filter_program: bytes
    ) -> None:
        self._system = system
        self._request = request
        self._netns_fd = fds[0] if fds else -1
        self._userns_fd = userns_fd
        self._filter = filter_program
        self._doing = "begin"

    def run(self, control: socket.socket, guest: Any, *, attach: bool) -> NoReturn:
        number = self._request["n"]
        try:
            self._prepare(attach=attach)
        except BaseException as error:
            detail = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            answer = {
                "n": number,
                "error": f"could not {self._doing}: {detail}",
                "errno": getattr(error, "errno", None),
            }
            protocol.send(control, answer)
            os._exit(1)
        try:
            protocol.send(control, {"n": number, "ready": True})
        except OSError:  # the engine is gone: nobody knows of this sandbox
            os._exit(1)
        control.detach()
        kernel.close_range(FIRST_FREE_FD, 0x7FFF_FFFF)
        gc.enable()
        random.seed()  # the zygote's would be everybody's
        guest.serve(socket.socket(fileno=LISTEN_FD), guest.GuestConfig(**self._request["guest"]))
        os._exit(70)  # it never returns

    def _prepare(self, *, attach: bool) -> None:
        request = self._request
        os.umask(0o022)
        os.setsid()
        self._doing = "join its cgroups"
        self._join_cgroups()
        self._doing = "join its network"
        self._join_network()
        self._doing = "listen"
        self._listen(request["id"])
        self._doing = "make its root file system"
        writable = f"/store/sandboxes/{request['id']}"
        # What the agent says when it crashes goes where the sandbox's disk limit holds.
        self._reserve(
            os.open(f"{writable}/stderr", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), STDERR_FD
        )
        mapped = -1 if self._system.rootless else self._userns_fd
        rootfs.mount_overlay(request["layers"], writable, request["uid"], mapped, attach=attach)
        kernel.unshare(kernel.CLONE_NEWCGROUP)
        self._system.mount(request["id"], request["uid"], request["shm"], cgroup2=request["show_cgroup"])
        kernel.pivot_into(rootfs.ROOT)
        self._doing = "give up its privileges"
        kernel.sethostname(request["hostname"])
        kernel.set_name("sandyard-agent")
        confine.limit(request["processes"])
        with contextlib.suppress(
            OSError
        ):  # without CAP_SYS_RESOURCE it is as likely to be killed as anybody of its size
            _write("/proc/self/oom_score_adj", _PROTECTED)
        confine.enter_userns(self._userns_fd)
        confine.drop_privileges(self._filter)

    def _join_cgroups(self) -> None:
        """Each place: a directory to make, files to write in it, and whether this process has yet to move there."""
        for place in self._request["cgroups"]:
            folder = f"/cgroup/{place['hierarchy']}/{self._request['id']}"
            if place["join"]:
                os.mkdir(folder, 0o755)
            for name, value, optional in place["files"]:
                try:
                    _write(f"{folder}/{name}", value)
                except OSError:
                    if not optional:
                        raise
            if place["join"]:
                _write(f"{folder}/cgroup.procs", "0")

    def _join_network(self) -> None:
        if self._netns_fd >= 0:
            kernel.setns(self._netns_fd, kernel.CLONE_NEWNET)
            return
        kernel.unshare(kernel.CLONE_NEWNET)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))
        _write(
            "/proc/sys/net/ipv4/ip_unprivileged_port_start", "0"
        )  # root in the sandbox has no power over its network

    def _listen(self, sandbox: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        listener.bind(f"/run/{sandbox}/agent.sock")
        listener.listen(_BACKLOG)
        self._reserve(listener.detach(), LISTEN_FD)

    @staticmethod
    def _reserve(fd: int, place: int) -> None:
        os.dup2(fd, place, inheritable=False)
        os.close(fd)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
