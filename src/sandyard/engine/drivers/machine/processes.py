"""Processes of the host: identify them, check whether they are still the same, and stop them with signals if there is
no freezer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

_NOT_RUNNING = frozenset({"T", "t", "Z", "X"})
_MAX_ROUNDS = 200


@cache
def read_boot_id() -> str:
    """Return an id that changes with every boot of the machine: pids of another boot are meaningless."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def read_text(path: Path | str) -> str:
    """Return the text of a file in /proc. Programs choose parts of it, such as names of processes and files, so it may be
    invalid UTF-8. Raises OSError."""
    return Path(path).read_text(errors="surrogateescape")


def read_mountinfo(process: int | str) -> list[list[str]]:
    """Return the mounts of a process, as the fields of each line. Names of directories in them may contain any other
    white space. Raises OSError."""
    return parse_mountinfo(Path(f"/proc/{process}/mountinfo").read_bytes())


def parse_mountinfo(content: bytes) -> list[list[str]]:
    """Return the fields of each line. Only a space separates fields, and only a newline ends a line."""
    return [line.split(" ") for line in os.fsdecode(content).split("\n") if line]


class ProcessStat(NamedTuple):
    """What /proc/PID/stat says about a process. `state` is a letter, such as T for stopped and Z for a zombie."""

    state: str
    parent: int
    start_time: int  # in clock ticks since the boot


def read_stat(pid: int) -> ProcessStat | None:
    """Return the state of a process, or None if it does not exist."""
    try:
        fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessStat(fields[0], int(fields[1]), int(fields[19]))


def read_start_time(pid: int) -> int | None:
    """Return the start time, which together with the pid identifies a process until the next boot. None for a
    zombie."""
    found = read_stat(pid)
    return None if found is None or found.state in {"Z", "X"} else found.start_time


def open_pidfd(pid: int, start: int) -> int | None:
    """Return a pidfd of exactly this process, or None if it has ended."""
    try:
        fd = os.pidfd_open(pid)
    except OSError:
        return None
    if read_start_time(pid) == start:
        return fd
    os.close(fd)
    return None


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def find_by_title(title: str) -> Iterator[int]:
    """Yield the pids of all processes whose whole command line is this: a zygote and its agents."""
    command_line = title.encode()
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if Path(entry.path, "cmdline").read_bytes().rstrip(b"\0") == command_line:
                    yield int(entry.name)


def list_process_tree(root: int) -> dict[int, str]:
    """Return a process and all its descendants, with their states. For the first process of a pid namespace, these are
    all processes in it."""
    children: dict[int, list[int]] = {}
    states: dict[int, str] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (found := read_stat(int(entry.name))) is not None:
            states[int(entry.name)] = found.state
            children.setdefault(found.parent, []).append(int(entry.name))
    result: dict[int, str] = {}
    queue = [root] if root in states else []
    while queue:
        pid = queue.pop()
        result[pid] = states[pid]
        queue += children.get(pid, [])
    return result


def measure_usage(root: int) -> tuple[float, int]:
    """Return CPU seconds and bytes of memory of a process and its descendants, as far as they are running or were
    waited for. Shared memory is counted for each of them."""
    ticks = pages = 0
    for pid in list_process_tree(root):
        with contextlib.suppress(OSError):
            fields = read_text(f"/proc/{pid}/stat").rpartition(")")[2].split()
            # User and system time, its own and of its dead children.
            ticks += sum(int(field) for field in fields[11:15])
            pages += int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")


async def stop_all(root: int) -> None:
    """Stop a sandbox with signals: its first process, then the others until none is running. Raises TimeoutError after
    continuing all of them. A process that its own user had stopped before is later continued with the others, because
    signals cannot distinguish that."""
    for _ in range(_MAX_ROUNDS):
        members = list_process_tree(root)
        # A process that waits in vfork() for a child that was stopped before its exec cannot be stopped, but does
        # nothing either.
        waited_for = {found.parent for pid, state in members.items() if state == "T" and (found := read_stat(pid))}
        running = [
            pid
            for pid, state in members.items()
            if state not in _NOT_RUNNING and not (state == "D" and pid in waited_for)
        ]
        if not running:
            return
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(0.001)
    continue_all(root)
    raise TimeoutError


def continue_all(root: int) -> None:
    """Continue all processes; the first one last, so that it sees its children running."""
    for pid in reversed(list_process_tree(root)):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def is_stopped(pid: int) -> bool:
    found = read_stat(pid)
    return found is not None and found.state == "T"
