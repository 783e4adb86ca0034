"""Confined processes that read untrusted data and can do nothing else.

Everything that unpacks an image (decompression, tar, the image's own files) runs in a worker that `Confinement.start`
forks. An attacker who takes over a worker through a bug in a parser has:

- **no privilege on the host.** The worker is root of a user namespace whose ids are unused outside. It sees the layer's
  directory through an idmapped mount, like sandboxes see layers: ids 0 to 65535 on disk are those of its namespace, so
  it can give a file to any of them and owns nothing else. No sandbox uses the same range (`FIRST_ID`).
- **no files** except the directory it fills, which is the root of its mount namespace. Not even Python's: everything it
  needs was loaded before the fork, and nothing can be imported afterwards, because it would come from the layer. A
  decompressor has an empty root.
- **no network, no processes, no signals to others**: separate network, pid, ipc, uts and cgroup namespaces, all owned
  by the host's user namespace, because its own is entered last (decision 2).
- **few capabilities, few system calls**: only those to own and change files, in its own namespace; no_new_privs; a
  seccomp filter, which for parsers allows only file operations; only the descriptors it is given; limited memory and
  file size.

Whatever needs more is done by the parent, which does not trust the worker: digests are computed over the bytes that
pass between workers, the mark of an opaque directory (`trusted.overlay.opaque`, which requires the host's root) is set
on descriptors that the worker hands over, and its reports are bounded and checked.

The worker that adapts an image works on an overlay, which cannot be idmapped: it has the host's plain ids
(`Rules.plain_ids`) in a user namespace that has no power outside of it, and sees only the image.

Without root there is only one id, the engine user's. A worker then runs in a user namespace with only that id and
without any capability; the rest is the same. If namespaces cannot be created, nothing is read and ConfinementError is
raised. Images are never processed unconfined.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.namespace.zygote import confine, script, userns

FIRST_ID = 0x7F00_0000
"""The first host id, after the ids of the last sandbox that any engine of the machine may have
(drivers/machine/instance.py)."""
IDS = 65_536

NO_CAPABILITY = 0
CHANGE_FILES = sum(1 << confine.CAPABILITIES[name] for name in ("chown", "dac_override", "fowner", "fsetid"))
MAKE_FILES = CHANGE_FILES | 1 << confine.CAPABILITIES["setfcap"]

_NAMESPACES = (
    kernel.CLONE_NEWNS
    | kernel.CLONE_NEWPID
    | kernel.CLONE_NEWNET
    | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUTS
    | kernel.CLONE_NEWCGROUP
)
_MOUNT_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_MOUNT_POINT = "/proc"  # always exists, to mount something on
_MAX_OPEN_FILES = 256
_MAX_REPORT_BYTES = 64 << 20
_MAX_ERROR_CHARACTERS = 500
_CHUNK = 1 << 16
_TICK_S = 0.5


class ConfinementError(Exception):
    """The reason why a worker cannot be confined on this machine, as the second half of a sentence."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The permissions and limits of one worker. `root`: the only directory it sees, None for an empty one; `attributes` of that
    mount. `plain_ids`: it sees ids as the host does, instead of through an idmapped mount (which overlayfs does not
    support)."""

    seccomp_filter: bytes
    memory_bytes: int
    file_bytes: int = 0
    capabilities: int = NO_CAPABILITY
    root: str | None = None
    attributes: int = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV | kernel.MOUNT_ATTR_NOEXEC
    plain_ids: bool = False


@dataclass(frozen=True, slots=True)
class Worker:
    """A running worker. It writes its outcome to `report`."""

    pid: int
    pidfd: int
    report: int

    def end(self) -> int:
        """Kill the worker if it runs, and wait for it. Return its exit code, negative for a signal."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        return self.wait()

    def wait(self) -> int:
        """Wait until the worker has ended. Return its exit code, negative for a signal."""
        _, status = os.waitpid(self.pid, 0)
        os.close(self.pidfd)
        return os.waitstatus_to_exitcode(status)


class Confinement:
    """Starts workers. Use it in a process with one thread that has already loaded everything its workers need.
    `privileged`: whether it runs as the host's root; detected if not given."""

    def __init__(self, *, privileged: bool | None = None) -> None:
        self.privileged = kernel.is_root() if privileged is None else privileged
        self._ids = os.geteuid(), os.getegid()
        self._own_pidfd = os.pidfd_open(os.getpid())

    def start(self, work: Callable[[], Mapping[str, Any]], rules: Rules, keep: Collection[int] = ()) -> Worker:
        """Fork a worker that has only the descriptors `keep` and reports what `work` returns. Raises
        ConfinementError."""
        read, write = os.pipe()
        try:
            userns_fd = userns.create(0 if rules.plain_ids else FIRST_ID, IDS) if self.privileged else -1
            pid, pidfd = kernel.clone(_NAMESPACES | (0 if self.privileged else kernel.CLONE_NEWUSER))
        except OSError as error:
            raise ConfinementError(_describe_refusal(error)) from None
        if pid == 0:
            self._run_worker(work, rules, userns_fd, write, keep)
        os.close(write)
        if userns_fd >= 0:
            os.close(userns_fd)
        return Worker(pid, pidfd, read)

    def _run_worker(
        self, work: Callable[[], Mapping[str, Any]], rules: Rules, userns_fd: int, report: int, keep: Collection[int]
    ) -> NoReturn:
        code = 1
        try:
            try:
                self._confine(rules, userns_fd, {report, *keep})
            except OSError as error:
                _write_report(report, {"unconfined": _describe_refusal(error)})
            else:
                _write_report(report, work())
                code = 0
        except BaseException as error:
            with contextlib.suppress(BaseException):
                _write_report(report, {"crash": f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]})
        finally:
            os._exit(code)

    def _confine(self, rules: Rules, userns_fd: int, keep: set[int]) -> None:
        _disable_imports()
        if userns_fd < 0:  # the clone has created one, with only the id of the engine's user
            for name, text in zip(("setgroups", "uid_map", "gid_map"), ("deny", *self._make_id_maps()), strict=True):
                _write(f"/proc/self/{name}", text)
        last_capability = _read_number("/proc/sys/kernel/cap_last_cap")
        null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        _enter_root(rules, userns_fd)
        _set_limits(rules)
        if userns_fd >= 0:
            script.run(confine.make_userns_steps(userns_fd, IDS))
        os.umask(0)
        kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL)  # not earlier: a change of ids resets it
        if select.select([self._own_pidfd], [], [], 0)[0]:  # the parent has ended before that
            os._exit(1)
        for fd in {0, 1, 2} - keep:
            os.dup2(null, fd)
        _close_all_except({0, 1, 2} | keep)
        for number in range(last_capability + 1):
            if not rules.capabilities >> number & 1:
                kernel.prctl(kernel.PR_CAPBSET_DROP, number)
        kernel.capset(rules.capabilities)
        kernel.prctl(kernel.PR_SET_DUMPABLE, 0)
        kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
        kernel.load_seccomp(rules.seccomp_filter)

    def _make_id_maps(self) -> tuple[str, ...]:
        return tuple(f"0 {own_id} 1" for own_id in self._ids)


def wait_for_outcomes(
    workers: Sequence[Worker], serve: Mapping[int, Callable[[], bool]], tick: Callable[[], None]
) -> list[dict[str, Any]]:
    """Return the outcomes of all workers when all have ended. Calls the function in `serve` for a descriptor whenever
    it is readable, until the function returns False, and `tick` about twice a second; either may raise, which ends the
    workers.

    Raises ConfinementError, and RuntimeError for a worker that ended without an outcome.
    """
    reports = {worker.report: bytearray() for worker in workers}
    poll, waiting = select.poll(), set(reports)
    for fd in (*reports, *serve):
        poll.register(fd, select.POLLIN)
    running = list(workers)
    try:
        next_tick = time.monotonic()
        while waiting:
            for fd, _ in poll.poll(_TICK_S * 1000):
                if fd in reports:
                    chunk = os.read(fd, _CHUNK)
                    reports[fd] += chunk
                    if len(reports[fd]) > _MAX_REPORT_BYTES:
                        raise RuntimeError("the worker process sent too much output")
                    at_end = not chunk
                else:
                    at_end = not serve[fd]()
                if at_end:
                    poll.unregister(fd)
                    waiting.discard(fd)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + _TICK_S
                tick()
        codes = [running.pop(0).wait() for _ in workers]
    finally:
        for worker in running:
            worker.end()
    return [_parse_outcome(bytes(reports[worker.report]), code) for worker, code in zip(workers, codes, strict=True)]


def _parse_outcome(report: bytes, code: int) -> dict[str, Any]:
    try:
        outcome = json.loads(report)
    except (ValueError, RecursionError):
        outcome = None
    if not isinstance(outcome, dict):
        raise RuntimeError(f"the worker process ended with {code} and no outcome")  # noqa: TRY004 - of the other process
    if "unconfined" in outcome:
        raise ConfinementError(str(outcome["unconfined"])[:_MAX_ERROR_CHARACTERS])
    if "crash" in outcome or code:
        raise RuntimeError(str(outcome.get("crash", f"the worker process ended with {code}"))[:_MAX_ERROR_CHARACTERS])
    return outcome


def _describe_refusal(error: OSError) -> str:
    return (
        f"cannot be read: this machine cannot confine the process that would read it ({error.strerror}). "
        "Run `sandyard doctor` to see what is missing"
    )


# In the worker ----------------------------------------------------------------------------------------------------------------


def _disable_imports() -> None:
    """Disable imports, because the paths of Python's modules will be paths in the layer."""
    sys.path.clear()
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    builtin = {"BuiltinImporter", "FrozenImporter"}
    sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") in builtin]
    gc.freeze()


def _enter_root(rules: Rules, userns_fd: int) -> None:
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    if rules.root is None:
        kernel.mount("none", _MOUNT_POINT, "tmpfs", kernel.MS_RDONLY | _MOUNT_FLAGS, "size=4k,nr_inodes=1,mode=555")
        kernel.pivot_into(_MOUNT_POINT)
        return
    mount = kernel.clone_mount(rules.root)
    kernel.change_mount(mount, rules.attributes, userns_fd=-1 if rules.plain_ids else userns_fd)
    kernel.attach_mount(mount, rules.root)
    kernel.pivot_into(rules.root)


def _set_limits(rules: Rules) -> None:
    for kind, limit in (
        (resource.RLIMIT_AS, rules.memory_bytes),
        (resource.RLIMIT_FSIZE, rules.file_bytes),
        (resource.RLIMIT_NOFILE, _MAX_OPEN_FILES),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        _, hard = resource.getrlimit(kind)
        allowed = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (allowed, allowed))


def _close_all_except(keep: Collection[int]) -> None:
    first = 0
    for fd in sorted(keep):
        kernel.close_range(first, fd - 1)
        first = fd + 1
    kernel.close_range(first, 0x7FFF_FFFF)


def _write_report(report: int, outcome: Mapping[str, Any]) -> None:
    left = memoryview(json.dumps(outcome).encode())
    while left:
        left = left[os.write(report, left) :]


def _read_number(path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return int(os.read(fd, 64))
    finally:
        os.close(fd)


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
