"""Processes of the host, found through /proc: agents by the socket on their command line, others by descent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from sandyard.kit.python import make_python_environment

_STOPPED, _DEAD = {"T", "t"}, {"Z", "X", "x"}
_UNINTERRUPTIBLE = "D"
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_STAT_BYTES = 4096
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Process:
    pid: int
    parent: int
    state: str
    cpu_seconds: float
    memory: int

    @property
    def stopped(self) -> bool:
        return self.state in _STOPPED

    @property
    def alive(self) -> bool:
        return self.state not in _DEAD


def read_process(pid: int) -> Process | None:
    """Return the process, or None if it does not exist."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:  # noqa: PTH123 - called for every process, repeatedly
            text = file.read(_MAX_STAT_BYTES)
    except OSError:
        return None
    fields = text[text.rindex(b")") + 2 :].decode().split()  # the name before it may contain anything
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return Process(pid, int(fields[1]), fields[0], cpu, int(fields[21]) * _PAGE_BYTES)


def list_processes() -> Iterator[Process]:
    for name in os.listdir("/proc"):  # noqa: PTH208 - as above
        if name.isdigit():
            process = read_process(int(name))
            if process is not None:
                yield process


def list_process_tree(pid: int) -> list[Process]:
    """Return a process and its running descendants, parents first."""
    children: dict[int, list[Process]] = {}
    for process in list_processes():
        if process.alive:
            children.setdefault(process.parent, []).append(process)
    top = read_process(pid)
    found = [] if top is None or not top.alive else [top]
    for process in found:
        found.extend(children.get(process.pid, ()))
    return found


def read_command_line(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def start_detached(command: list[str], log: Path) -> int:
    """Start a program in a new session, so that it outlives the engine. Return its pid."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return os.posix_spawn(command[0], command, make_python_environment(), file_actions=actions, setsid=True)


async def freeze_tree(pid: int) -> None:
    """Freeze a process and its descendants. The agent comes first, so that it starts nothing while the others are
    found."""
    while True:
        members = list_process_tree(pid)
        # A process that waits in vfork() for a child that was stopped before its exec cannot be stopped, but does
        # nothing either.
        waited_for = {process.parent for process in members if process.stopped}
        running = [
            process
            for process in members
            if not process.stopped and not (process.state == _UNINTERRUPTIBLE and process.pid in waited_for)
        ]
        if not running:
            return
        send_signal(signal.SIGSTOP, (process.pid for process in running))
        await asyncio.sleep(0.001)


async def thaw_tree(pid: int) -> None:
    """Thaw a process and its descendants; the agent last, so that it finds its children unchanged."""
    while True:
        stopped = [process for process in list_process_tree(pid) if process.stopped]
        if not stopped:
            return
        send_signal(signal.SIGCONT, (process.pid for process in reversed(stopped)))
        await asyncio.sleep(0.001)


async def kill_tree(pid: int) -> None:
    """Kill a process and its descendants and wait until they are gone."""
    while True:
        members = list_process_tree(pid)
        send_signal(signal.SIGSTOP, (process.pid for process in members[:1]))
        send_signal(signal.SIGKILL, (process.pid for process in reversed(members[1:])))
        if len(members) <= 1:
            send_signal(signal.SIGKILL, (process.pid for process in members))
        reap(pid)
        if not members:
            return
        await asyncio.sleep(0.001)


def send_signal(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def reap(pid: int) -> int | None:
    """Return the exit status of an ended child, or None if it is running or not a child of this process (but of an
    earlier engine)."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


async def wait_for_exit(pid: int) -> int | None:
    """Wait until a process has ended. Return its exit code if it was a child of this process, otherwise None."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return reap(pid)
    loop = asyncio.get_running_loop()
    exited: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, lambda: exited.set_result(None) if not exited.done() else None)
    try:
        await exited
    finally:
        loop.remove_reader(fd)
        os.close(fd)
    return reap(pid)
