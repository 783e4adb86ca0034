"""A sandbox's first process, from the clone until it is the agent.

It is created in new mount, pid, ipc and uts namespaces and does the rest itself while it has the zygote's privileges.
It enters its user namespace **last**: all other namespaces then belong to the zygote's user, and root in the sandbox
has no power over them. Because it never execs, its memory belongs to the outer user namespace too, and nobody inside
may trace it.
"""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import random
import signal
import socket
import struct
from typing import Any, NoReturn

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.kernel import libc
from sandyard.engine.drivers.namespace.zygote import confine, protocol, rootfs, script, volumes

LISTEN_FD, STDERR_FD = 3, 2
FIRST_FREE_FD = 4
_MAX_CACHED = 2048
_BACKLOG = 1024
_ADDRESS = struct.pack("H", socket.AF_UNIX) + b"agent.sock\0"
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


class ChildFactory:
    """Prepares the steps of each sandbox's first process. One instance serves all sandboxes."""

    def __init__(
        self, root: rootfs.RootFs, program: kernel.SeccompProgram, containers_program: kernel.SeccompProgram
    ) -> None:
        self.root = root
        # Kept, because the arguments of `_confine_steps` point into them.
        self._programs = (program, containers_program)
        self._enter_steps = rootfs.make_enter_steps()
        self._confine_steps = [confine.make_drop_steps(program) for program in self._programs]
        self._cached_steps: dict[tuple[Any, ...], list[script.Step]] = {}

    def make_child(self, request: dict[str, Any], fds: dict[str, list[int]], userns_fd: int) -> Child:
        """Prepare a start. `fds` are the descriptors that came with the request, by purpose."""
        if "netns" in fds:
            network: script.Step = (libc.setns, (fds["netns"][0], kernel.CLONE_NEWNET), "join its network")
        else:
            network = (_create_network, (), "make its network")
        rootfs.write_boot_id(request["slot"])
        steps: list[script.Step] = [
            (libc.setsid, (), "begin a session"),
            *((libc.write, (fd, b"0", 1), "join its cgroups") for fd in fds.get("join", ())),
            network,
            (libc.dup3, (fds["stderr"][0], STDERR_FD, os.O_CLOEXEC), "take its descriptors"),
            *_make_listen_steps(fds["run"][0]),
            *self.root.make_open_steps(request["writable"]),
            *self._make_common_steps(userns_fd, request),
        ]
        return Child(steps, request)

    def _make_common_steps(self, userns_fd: int, request: dict[str, Any]) -> list[script.Step]:
        """Return the steps that are the same for all sandboxes that use this user namespace one after the other, as
        long as they are alike."""
        hostname, processes, shows = request["hostname"], request["processes"], request["show_cgroup"]
        containers: bool = request["containers"]
        key = (
            userns_fd,
            containers,
            request["slot"],
            request["uid"],
            request["ids"],
            *request["layers"],
            request["shm"],
            hostname,
            processes,
            shows,
            *map(tuple, request["volumes"]),
        )
        steps = self._cached_steps.get(key)
        if steps is None:
            if len(self._cached_steps) >= _MAX_CACHED:
                self._cached_steps.clear()
            name = hostname.encode()
            steps = self._cached_steps[key] = [
                *self.root.make_steps(request["layers"], request["uid"], userns_fd, request["shm"]),
                *(rootfs.make_container_steps() if containers else []),
                *rootfs.make_boot_id_steps(request["slot"]),
                (libc.unshare, (kernel.CLONE_NEWCGROUP,), "hide its place in the cgroups"),
                *([rootfs.make_cgroup_step()] if shows else []),
                *volumes.make_open_steps(request["volumes"], userns_fd, rootless=self.root.rootless),
                *self._enter_steps,
                *volumes.make_attach_steps(
                    request["volumes"], request["uid"], self.root.capabilities, rootless=self.root.rootless
                ),
                (libc.sethostname, (name, len(name)), "set its host name"),
                *([confine.make_process_limit_step(processes)] if processes else []),
                *confine.make_userns_steps(userns_fd, request["ids"]),
                *self._confine_steps[containers],
            ]
        return steps


class Child:
    """One prepared start. `run` never returns; failures before the agent serves are reported to the engine as a
    message."""

    def __init__(self, steps: list[script.Step], request: dict[str, Any]) -> None:
        self._steps = steps
        self._request = request
        self._ready = protocol.encode({"n": request["n"], "ready": True})

    def run(self, control: socket.socket, guest: Any) -> NoReturn:
        try:
            script.run(self._steps)
            if os.statvfs("/").f_flag & os.ST_RDONLY:  # overlay does not report an error if it cannot write
                raise OSError(errno.EROFS, "its root file system can't be written to")  # noqa: TRY301
            control.send(self._ready)
        except BaseException as error:
            detail = error.strerror if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            answer = {"n": self._request["n"], "error": f"could not {detail}", "errno": getattr(error, "errno", None)}
            protocol.send(control, answer)
            os._exit(1)
        control.detach()
        kernel.close_range(FIRST_FREE_FD, 0x7FFF_FFFF)
        while self._request["hold"]:  # another process will be the first one in these namespaces
            signal.pause()
        gc.freeze()  # first, because a collection would write to everything the zygote has created since it froze its own
        gc.enable()
        random.seed()  # otherwise all sandboxes would share the zygote's state
        guest.serve(socket.socket(fileno=LISTEN_FD), guest.GuestConfig(**self._request["guest"]))
        os._exit(70)  # it never returns


def _make_listen_steps(folder: int) -> list[script.Step]:
    """Listen on `agent.sock` in that directory of the host. Done here, because a socket belongs to the network
    namespace it was created in, and a foreign one could not be moved to disk with the sandbox."""
    purpose, fd = "listen", rootfs.FIRST_LAYER_FD  # the lowest free one
    return [
        rootfs.CLOSE_LAYERS,
        (libc.fchdir, (folder,), purpose),
        (libc.socket, (socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC, 0), purpose),
        (libc.bind, (fd, _ADDRESS, len(_ADDRESS)), purpose),
        (libc.listen, (fd, _BACKLOG), purpose),
        (libc.dup3, (fd, LISTEN_FD, os.O_CLOEXEC), purpose),
    ]


def _create_network() -> int:
    """Create a network namespace with only a loopback."""
    kernel.unshare(kernel.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP | _IFF_RUNNING))
    # Root in the sandbox has no power over its network, so privileged ports must not require any.
    fd = os.open("/proc/sys/net/ipv4/ip_unprivileged_port_start", os.O_WRONLY | os.O_CLOEXEC)
    try:
        return os.write(fd, b"0")
    finally:
        os.close(fd)
