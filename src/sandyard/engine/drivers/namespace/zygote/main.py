"""The zygote's loop: handle requests one after the other, in a forked process if they take long. Started by the driver,
ends with it.

Standard input is the socket to the engine. It ends as soon as the engine's end is closed, even if requests are still
queued.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import gc
import importlib
import os
import select
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.store import trees
from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.drivers.namespace.zygote import confine, protocol, userns, zygote_root
from sandyard.engine.drivers.namespace.zygote.child import FIRST_FREE_FD, ChildFactory
from sandyard.engine.drivers.namespace.zygote.probe import find_working_root
from sandyard.engine.drivers.namespace.zygote.rootfs import MAX_LAYERS

# OpenSSL, which asyncio and hashlib load if available: megabytes that every fork would copy.
_NOT_NEEDED = ("ssl", "_ssl", "_hashlib")
_NAMESPACES = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS


def main(guest_module: str, title: str) -> None:
    """Serve until the engine is gone. `title` is shown in process lists, also for the sandboxes' agents."""
    control = _detach_stdio()
    for name in _NOT_NEEDED:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        guest = importlib.import_module(guest_module)
        guest.prepare()
        _disable_file_imports()
        _set_title(title)
        kernel.set_process_name("sandyard")
        Zygote(control, guest).serve()
    except BaseException:
        with contextlib.suppress(OSError):
            protocol.send(control, {"fatal": traceback.format_exc()[-8000:]})
        os._exit(1)
    os._exit(0)


def _detach_stdio() -> socket.socket:
    """Return the control socket from standard input, put /dev/null on all three descriptors, and keep those that
    children use free."""
    control = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD + MAX_LAYERS)
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    for fd in range(FIRST_FREE_FD + MAX_LAYERS):
        if fd != null:
            os.dup2(null, fd, inheritable=fd < 3)
    return socket.socket(fileno=control)


def _disable_file_imports() -> None:
    """Disable imports from files, which in a sandbox would be the tenant's. Freeze all loaded objects, so that garbage
    collections do not write to memory that sandboxes share."""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    builtin = [
        finder for finder in sys.meta_path if getattr(finder, "__name__", "") in {"BuiltinImporter", "FrozenImporter"}
    ]
    sys.meta_path[:] = builtin
    gc.collect()
    gc.freeze()
    gc.disable()


def _set_title(title: str) -> None:
    """Overwrite the command line, because the real one contains the data directory, which sandboxes must not see."""
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start, arg_end: fields 48 and 49
    if end > start:
        ctypes.memmove(start, title.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


class Zygote:
    """Handles the requests on `control`. `guest` is the agent's package, loaded once for all sandboxes."""

    def __init__(self, control: socket.socket, guest: Any) -> None:
        self._control = control
        self._guest = guest
        self._child_factory: ChildFactory | None = None
        self._userns: dict[tuple[int, bool], int] = {}  # slot, and whether it allows containers → descriptor
        self._children: dict[int, int] = {}  # pidfd → pid
        self._helpers: dict[int, int] = {}  # pid → number of the request it has to answer
        self._epoll = select.epoll()
        self._operations: dict[str, Callable[[protocol.Message, list[int]], protocol.Message | None]] = {
            "unshare": self._unshare,
            "home": self._enter_root,
            "userns": self._make_userns,
            "start": self._start,
            "copy": self._copy,
            "remove": self._remove,
        }

    def serve(self) -> None:
        self._epoll.register(self._control.fileno(), select.EPOLLIN | select.EPOLLHUP)
        while True:
            for fd, events in self._epoll.poll():
                if fd != self._control.fileno():
                    self._reap(fd)
                elif events & select.EPOLLHUP or not self._handle_request():
                    return

    def _handle_request(self) -> bool:
        """Handle one request. Return False if there will be no more."""
        request, fds = protocol.receive(self._control)
        if request is None:
            return False
        answer: protocol.Message | None
        try:
            answer = self._operations[request["op"]](request, fds)
        except OSError as error:
            answer = {"error": error.strerror or str(error), "errno": error.errno}
        finally:
            for fd in fds:
                os.close(fd)
        if answer is not None:
            protocol.send(self._control, {"n": request["n"], **answer})
        return True

    def _reap(self, pidfd: int) -> None:
        pid = self._children.pop(pidfd)
        self._epoll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        number = self._helpers.pop(pid, None)
        if number is None:
            protocol.send(self._control, {"gone": pid, "status": status})
        elif status:
            protocol.send(self._control, {"n": number, "error": "its helper process was killed", "errno": None})

    # Operations. They return the response, or None if they have sent it or a helper process will.

    def _unshare(self, _request: protocol.Message, _fds: list[int]) -> protocol.Message:
        """Become root of a new user namespace (rootless mode). The engine maps its ids before the next request."""
        kernel.unshare(kernel.CLONE_NEWUSER)
        return {}

    def _enter_root(self, request: protocol.Message, _fds: list[int]) -> protocol.Message:
        """Enter the zygote's own root file system. The answer's `problem` says why this kernel cannot mount the root
        of a sandbox there, or is None."""
        if request["rootless"]:
            os.setresgid(0, 0, 0)
            os.setresuid(0, 0, 0)
        confine.limit_self()
        root, problem = find_working_root(zygote_root.enter_root(request))
        if root is not None:
            self._child_factory = ChildFactory(
                root,
                kernel.SeccompProgram(seccomp.make_program()),
                kernel.SeccompProgram(seccomp.make_program(containers=True)),
            )
        return {"problem": problem}

    def _make_userns(self, request: protocol.Message, _fds: list[int]) -> protocol.Message:
        """Create a slot's user namespace in advance. Idempotent."""
        self._get_or_create_userns(request)
        return {}

    def _get_or_create_userns(self, request: protocol.Message) -> int:
        key = (request["slot"], request["containers"])
        if key not in self._userns:
            self._userns[key] = userns.create(request["uid"], request["ids"], containers=request["containers"])
        return self._userns[key]

    def _start(self, request: protocol.Message, fds: list[int]) -> None:
        assert self._child_factory is not None
        named: dict[str, list[int]] = {}
        for name, fd in zip(request["fds"], fds, strict=True):
            named.setdefault(name, []).append(fd)
        child = self._child_factory.make_child(request, named, self._get_or_create_userns(request))
        pid, pidfd = kernel.clone(_NAMESPACES, *named.get("cgroup", ()))
        if pid == 0:
            child.run(self._control, self._guest)
        self._watch(pid, pidfd)
        protocol.send(self._control, {"n": request["n"], "pid": pid}, [pidfd])

    def _watch(self, pid: int, pidfd: int) -> None:
        self._children[pidfd] = pid
        self._epoll.register(pidfd, select.EPOLLIN)

    def _copy(self, request: protocol.Message, _fds: list[int]) -> None:
        self._run_in_helper(request, lambda: trees.copy_tree(request["source"], request["target"]))

    def _remove(self, request: protocol.Message, _fds: list[int]) -> None:
        self._run_in_helper(request, lambda: trees.remove_tree(request["path"]))

    def _run_in_helper(self, request: protocol.Message, work: Callable[[], None]) -> None:
        """Run slow work in a separate process, which sends the answer itself."""
        pid, pidfd = kernel.clone(0)
        if pid:
            self._helpers[pid] = request["n"]
            self._watch(pid, pidfd)
            return
        answer: protocol.Message = {"n": request["n"]}
        try:
            work()
        except OSError as error:
            answer |= {"error": f"{error.strerror or error}: {error.filename}", "errno": error.errno}
        except BaseException as error:
            answer |= {"error": f"{type(error).__name__}: {error}", "errno": None}
        with contextlib.suppress(OSError):
            protocol.send(self._control, answer)
        os._exit(0)
