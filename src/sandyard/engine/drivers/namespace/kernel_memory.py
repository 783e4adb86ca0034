"""Limits kernel memory that no cgroup limits: netlink sockets, buffers of other sockets (`socket_memory`), file locks,
TCP orphans.

The kernel charges none of it to the process that causes it, and its only limit is a size per socket. So the engine
watches the machine's kernel memory, one small file twice a second. Only when that has grown does it check what each
sandbox holds, and ends the processes of those that hold more than their share. A sandbox that takes it slowly is found
as well: every growth by the limit is followed by a check of all sandboxes.

TCP has its own figures for the machine's buffers and orphans, in one more small file: sandboxes are checked while these
exceed what one sandbox may hold.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.namespace import processes, socket_memory
from sandyard.engine.drivers.namespace.cgroups import MIN_SOCKET_MEMORY, SocketMemory
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_INTERVAL = 0.5  # a process can take some hundred megabytes per second
_LEAST_GROWTH = 256 << 20
_PART_OF_MEMORY = 50
_PART_OF_ORPHANS = 8  # the kernel resets some connections from a quarter of its limit on
_CHUNK = 1 << 16
_LARGEST_TABLE = 16 << 20  # netlink sockets, in bytes: some 150,000 of them
_NOT_THE_KERNELS = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable", "Hugetlb")
_NETLINK_SOCKET = 2048  # bytes per socket, in addition to its buffer
_SOCKETS_SECONDS = 2.0
_LOCKS_SECONDS = 3.0  # for every page of locks the kernel counts from the first lock again: 100,000 take a second
_CERTAIN = 10  # for a list of locks that was not read completely, this fraction of the share is too much
_ROUNDS = 100
_ROUND_PAUSE = 0.02

Device = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Bounds:
    """`growth`: bytes by which the machine's kernel memory grows before sandboxes are checked; 0 means 2 % of the
    machine's memory, at least 256 MB. `netlink` and `sockets` (bytes) and `locks` are what each sandbox may then hold,
    for sockets in addition to what its cgroup is charged for and allowed. `orphans`: TCP connections per sandbox that
    are closed with undelivered data; 0 means an eighth of the machine's limit."""

    growth: int = 0
    netlink: int = 64 << 20
    locks: int = 100_000
    sockets: int = 64 << 20
    orphans: int = 0


@dataclass(frozen=True, slots=True)
class Excess:
    """Kernel memory that a sandbox holds beyond its share. `amount` is in bytes (netlink, sockets) or a count (locks, orphans)."""

    sandbox: str
    kind: str
    amount: int


class Growth:
    """Decides when to check: when memory has grown by the limit above the lowest value since the last check that found
    nothing."""

    def __init__(self) -> None:
        self._lowest: int | None = None  # the first value triggers a check too, because sandboxes outlive the engine

    def is_due(self, current: int, bound: int) -> bool:
        if self._lowest is None:
            return True
        self._lowest = min(self._lowest, current)
        return current - self._lowest > bound

    def accept(self, current: int) -> None:
        """Record that no sandbox holds too much: the next check is after another growth from here."""
        self._lowest = current


class KernelMemory:
    """`sandboxes` returns the running ones with the pid of their first process, which is never ended here: `end` is
    called for a sandbox whose other processes multiply faster than they can be ended. `charged` returns the socket
    buffers that a sandbox's cgroup is charged for, or None."""

    def __init__(
        self,
        bounds: Bounds,
        sandboxes: Callable[[], Mapping[str, int]],
        charged: Callable[[str], SocketMemory | None],
        end: Callable[[str], None],
    ) -> None:
        self._bounds = bounds
        self._sandboxes = sandboxes
        self._charged = charged
        self._end = end
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start watching. Idempotent."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        growth = Growth()
        failed = None
        while True:
            await asyncio.sleep(_INTERVAL)
            try:
                await self._look_at_tcp(socket_memory.read_tcp())
                total, current = read_memory()
                bound = self._bounds.growth or max(_LEAST_GROWTH, total // _PART_OF_MEMORY)
                if growth.is_due(current, bound) and not await self._look(current):
                    growth.accept(current)
                failed = None
            except (OSError, ValueError, LookupError) as error:  # the next round may succeed
                if failed != str(error):
                    failed = str(error)
                    log.warning("kernel_memory_check_failed", reason=failed)

    async def _look(self, kernel_memory: int) -> bool:
        """End the processes of sandboxes that hold too much. Return whether there were any."""
        sandboxes = dict(self._sandboxes())
        if not sandboxes:
            return False
        found = await asyncio.to_thread(find_netlink, sandboxes, self._bounds.netlink)
        if not found:
            found = await asyncio.to_thread(find_sockets, sandboxes, self._bounds.sockets, self._charged)
        if not found:  # reading locks takes longer, so not while a known sandbox keeps taking memory
            found = await asyncio.to_thread(find_locks, sandboxes, self._bounds.locks)
        if not found:
            log.info("kernel_memory_checked", sandboxes=len(sandboxes), machine_kernel_memory=kernel_memory)
        await self._end_all(found, sandboxes, machine_kernel_memory=kernel_memory)
        return bool(found)

    async def _look_at_tcp(self, tcp: socket_memory.Tcp) -> None:
        """Do the same for sandboxes that hold too much TCP memory or too many orphans."""
        found: list[Excess] = []
        sandboxes = dict(self._sandboxes())
        if tcp.memory > MIN_SOCKET_MEMORY + self._bounds.sockets:
            found += await asyncio.to_thread(find_charged, sandboxes, self._bounds.sockets, self._charged)
        orphans = self._bounds.orphans or socket_memory.most_orphans() // _PART_OF_ORPHANS
        if tcp.orphans > orphans:
            found += await asyncio.to_thread(find_orphans, sandboxes, orphans)
        await self._end_all(found, sandboxes, machine_tcp_memory=tcp.memory, machine_tcp_orphans=tcp.orphans)

    async def _end_all(self, found: Iterable[Excess], sandboxes: Mapping[str, int], **machine: int) -> None:
        for excess in found:
            log.warning(
                "sandbox_kernel_memory_exceeded",
                sandbox=excess.sandbox,
                kind=excess.kind,
                amount=excess.amount,
                **machine,
            )
        kinds: dict[str, set[str]] = {}
        for excess in found:
            kinds.setdefault(excess.sandbox, set()).add(excess.kind)
        await asyncio.gather(*(self._end_processes(name, sandboxes[name], kinds[name]) for name in kinds))

    async def _end_processes(self, sandbox: str, pid: int, kinds: Collection[str]) -> None:
        if self._sandboxes().get(sandbox) != pid:
            return  # it has ended in the meantime, and its pid may be reused
        if not await asyncio.to_thread(end_descendants, pid):
            self._end(sandbox)
        elif "orphans" in kinds:  # orphans whose other side is outside of the sandbox are still there
            with contextlib.suppress(OSError):
                await asyncio.to_thread(socket_memory.end_orphans, pid)


def read_memory(proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the machine's total memory, and the unreclaimable kernel memory, in bytes: everything that is neither free
    nor used by programs or files. `SUnreclaim` alone would miss what is not in slabs, such as most socket buffers."""
    lines = (proc / "meminfo").read_text().splitlines()
    table = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines}
    pages = re.findall(r"^ +count: +(\d+)$", (proc / "zoneinfo").read_text(), re.MULTILINE)
    free_at_processors = (
        sum(map(int, pages)) * resource.getpagesize()
    )  # hundreds of megabytes that `MemFree` does not include
    others = sum(table.get(name, 0) for name in _NOT_THE_KERNELS)
    return table["MemTotal"], max(table["MemTotal"] - others - free_at_processors, 0)


def find_netlink(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes (id → pid of their first process) whose netlink sockets hold more bytes than their share.
    Blocks briefly."""
    found = []
    for sandbox, pid in sandboxes.items():
        with contextlib.suppress(OSError):  # it has just ended
            held = netlink_bytes(_lines(Path(f"/proc/{pid}/net/netlink"), _LARGEST_TABLE))
            if held > share:
                found.append(Excess(sandbox, "netlink", held))
    return found


def find_charged(
    sandboxes: Mapping[str, int], share: int, charged: Callable[[str], SocketMemory | None]
) -> list[Excess]:
    """Return the sandboxes whose cgroup is charged for more socket buffers than its limit plus their share. Blocks
    briefly."""
    found = []
    for sandbox in sandboxes:
        counted = charged(sandbox)
        if counted is not None and counted.used - counted.limit > share:
            found.append(Excess(sandbox, "sockets", counted.used - counted.limit))
    return found


def find_orphans(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes that have more orphans than their share. Blocks for each one with many sockets."""
    found = []
    for sandbox, pid in sandboxes.items():
        with contextlib.suppress(OSError):  # it has just ended
            count = _sum_until(time.monotonic() + _SOCKETS_SECONDS, (1 for _ in socket_memory.orphans(pid, share)))
            if count > share:
                found.append(Excess(sandbox, "orphans", count))
    return found


def find_sockets(
    sandboxes: Mapping[str, int], share: int, charged: Callable[[str], SocketMemory | None]
) -> list[Excess]:
    """Return the sandboxes whose sockets hold more bytes than their share plus what their cgroup is charged for and
    allowed. Blocks for each one with many sockets."""
    found = []
    for sandbox, pid in sandboxes.items():
        counted = charged(sandbox)
        if counted is None:
            continue  # its memory is unlimited, so nothing is an excess
        with contextlib.suppress(OSError):  # it has just ended
            held = _sum_until(time.monotonic() + _SOCKETS_SECONDS, socket_memory.measure_sockets(pid, share))
            after = charged(sandbox) or counted  # buffers change while they are added up
            excess = held - min(max(counted.used, after.used), counted.limit)
            if excess > share:
                found.append(Excess(sandbox, "sockets", excess))
    return found


def _sum_until(deadline: float, amounts: Iterable[int]) -> int:
    """Sum the amounts that arrive before the deadline."""
    total = 0
    for amount in amounts:
        total += amount
        if time.monotonic() > deadline:
            break
    return total


def find_locks(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes that hold more locks than their share. Blocks for up to `_LOCKS_SECONDS`."""
    locks, complete = count_locks(_lines(Path("/proc/locks")), time.monotonic() + _LOCKS_SECONDS)
    if not complete:
        share //= _CERTAIN
    if locks.total() <= share:
        return []
    held = by_sandbox(locks, exclusive_devices(sandboxes), Ancestors(sandboxes))
    return [Excess(sandbox, "locks", count) for sandbox, count in held.items() if count > share]


def _lines(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a file in /proc while reading: such a file may be large, and each piece costs more than the
    one before."""
    rest, size = b"", 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while (limit is None or size < limit) and (piece := os.read(fd, _CHUNK)):
            size += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    finally:
        os.close(fd)


def netlink_bytes(lines: Iterable[bytes]) -> int:
    """Return the bytes of the sockets in a `/proc/PID/net/netlink`, including their receive buffers."""
    table = iter(lines)
    column = next(table, b"Rmem").split().index(b"Rmem")
    return sum(int(line.split()[column]) + _NETLINK_SOCKET for line in table if line)


def count_locks(lines: Iterable[bytes], deadline: float) -> tuple[Counter[tuple[Device, int]], bool]:
    """Count the locks of a `/proc/locks` by device and pid. Also return whether the count is complete, because it stops
    at the deadline."""
    found: Counter[tuple[Device, int]] = Counter()
    for line in lines:
        words = line.replace(b"->", b"").split()
        if len(words) >= 6 and words[5].count(b":") == 2:
            major, minor, _ = words[5].split(b":")
            with contextlib.suppress(ValueError):  # the lock's file is just being removed
                found[(int(major, 16), int(minor, 16)), int(words[4])] += 1
        if time.monotonic() > deadline:
            return found, False
    return found, True


def by_sandbox(
    locks: Mapping[tuple[Device, int], int], devices: Mapping[Device, str], ancestors: Ancestors
) -> Counter[str]:
    """Attribute locks to sandboxes: by the file system if only one sandbox has it, because the process may have ended
    or be unknown (open file description locks); otherwise by the process."""
    found: Counter[str] = Counter()
    for (device, pid), count in locks.items():
        sandbox = devices.get(device) or ancestors.sandbox(pid)
        if sandbox is not None:
            found[sandbox] += count
    return found


def exclusive_devices(sandboxes: Mapping[str, int]) -> dict[Device, str]:
    """Return file systems that are mounted in exactly one sandbox: its root, its shared memory."""
    owners: dict[Device, set[str]] = {}
    for sandbox, place in [("", "self"), *((sandbox, str(pid)) for sandbox, pid in sandboxes.items())]:
        with contextlib.suppress(OSError):
            for device in mounted_devices(Path(f"/proc/{place}/mountinfo").read_text()):
                owners.setdefault(device, set()).add(sandbox)
    return {device: next(iter(names)) for device, names in owners.items() if len(names) == 1 and "" not in names}


def mounted_devices(mountinfo: str) -> set[Device]:
    numbers = (line.split()[2].split(":") for line in mountinfo.splitlines())
    return {(int(major), int(minor)) for major, minor in numbers}


class Ancestors:
    """Finds the sandbox that a process descends from. Caches results, because a chain of processes may be long."""

    def __init__(self, sandboxes: Mapping[str, int], parent: Callable[[int], int | None] | None = None) -> None:
        self._known: dict[int, str | None] = {pid: sandbox for sandbox, pid in sandboxes.items()}
        self._parent = parent or _parent

    def sandbox(self, pid: int) -> str | None:
        chain = []
        current: int | None = pid
        while current is not None and current > 1 and current not in self._known:
            chain.append(current)
            self._known[current] = None
            current = self._parent(current)
        found = self._known.get(current) if current is not None else None
        self._known.update(dict.fromkeys(chain, found))
        return found


def _parent(pid: int) -> int | None:
    found = processes.read_stat(pid)
    return None if found is None else found[1]


def end_descendants(root: int) -> bool:
    """Kill all descendants of a process, and wait until they are gone. Return False if they do not end. Blocks."""
    for _ in range(_ROUNDS):
        left = [
            pid for pid, state in processes.list_process_tree(root).items() if pid != root and state not in {"Z", "X"}
        ]
        if not left:
            return True
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_PAUSE)
    return False
