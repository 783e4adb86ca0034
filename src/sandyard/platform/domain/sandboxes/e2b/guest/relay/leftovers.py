"""End the processes that a command has left behind."""

import os
import time

from sandyard.platform.domain.sandboxes.e2b.guest.relay.signals import signal

GRACE_S = 2.0  # between SIGTERM and SIGKILL
TIMEOUT_S = 10.0


def end_orphans(marker: str, root: int) -> int:
    """End the orphans that `find_orphans` finds, and return how many there were.

    Starts no process, because that may be impossible.
    """
    found = find_orphans(marker, root)
    count = len(found)
    began = time.monotonic()
    while found and time.monotonic() - began < TIMEOUT_S:
        end_signal = signal.SIGTERM if time.monotonic() - began < GRACE_S else signal.SIGKILL
        for pid in found:
            for signal_number in (end_signal, signal.SIGCONT):  # a stopped process handles SIGTERM only after SIGCONT
                try:
                    os.kill(pid, signal_number)
                except OSError:
                    pass
        time.sleep(0.1)
        found = find_orphans(marker, root)
    return count


def find_orphans(marker: str, root: int) -> "list[int]":
    """Return the processes with this marker in their environment, that are neither kept nor descend from a kept one.

    Kept are `root`, this process, and servers with their ancestors. A server is a process with a listening socket.
    """
    parents, marked = {}, []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open("/proc/%s/stat" % entry, "rb") as file:
                state, parent = file.read().rpartition(b")")[2].split()[:2]
            parents[int(entry)] = int(parent)
            with open("/proc/%s/environ" % entry, "rb") as file:
                environment = file.read()
        except (OSError, ValueError):
            continue  # it has ended, or belongs to another user
        if state not in (b"Z", b"X") and marker.encode() in environment.split(b"\0"):
            marked.append(int(entry))
    sockets = find_listening_sockets()
    kept = {root, os.getpid()}
    for pid in marked:
        if is_server(pid, sockets):
            kept.update(list_ancestors(pid, parents, root))
    return [pid for pid in marked if pid not in kept and not kept.intersection(list_ancestors(pid, parents, root))]


def list_ancestors(pid: int, parents: "dict[int, int]", root: int) -> "list[int]":
    """Return the process and its ancestors up to `root`, without the first process of the sandbox."""
    found = []
    while pid > 1 and pid not in found:
        found.append(pid)
        if pid == root:
            break
        pid = parents.get(pid, 0)
    return found


def find_listening_sockets() -> "set[bytes]":
    """Return the listening sockets, as the links in /proc/PID/fd name them."""
    found = set()
    for name, column, inode in (("tcp", 3, 9), ("tcp6", 3, 9), ("udp", 3, 9), ("udp6", 3, 9), ("unix", 3, 6)):
        try:
            with open("/proc/net/" + name, "rb") as file:
                lines = file.read().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            listening = {"tcp": b"0A", "udp": b"07", "unix": b"00010000"}[name.rstrip("6")]
            if len(fields) > inode and fields[column] == listening:
                found.add(b"socket:[" + fields[inode] + b"]")
    return found


def is_server(pid: int, sockets: "set[bytes]") -> bool:
    folder = b"/proc/%d/fd" % pid
    try:
        return any(os.readlink(os.path.join(folder, name)) in sockets for name in os.listdir(folder))
    except OSError:
        return False
