"""Limit kernel memory that no cgroup limits: netlink sockets, buffers of other sockets (`socket_memory`), file locks,
TCP orphans.

The kernel charges none of it to the process that causes it, and its only limit is a size per socket. So the engine
watches the machine's kernel memory, one small file twice a second. Only when that has grown does it check what each
sandbox holds, and ends the processes of those that hold more than their share. A sandbox that takes it slowly is found
as well: every growth by the limit is followed by a check of all sandboxes.

TCP has its own figures for the machine's buffers and orphans, in one more small file: sandboxes are checked while these
exceed what one sandbox may hold.

Sandboxes with containers can create network namespaces (`nested_networks`). What these hold is counted as well, except
packets in queues, which the kernel does not report: if memory grows fast and nothing explains it, these sandboxes are
ended one after the other, the most likely first. Packets that circulate in them use processors without any process, so
the time that the machine spends on network interrupts is watched too.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine import processes
from sandyard.engine.drivers.machine.cgroups import MIN_SOCKET_MEMORY, SocketMemory
from sandyard.engine.drivers.namespace import nested_networks, socket_memory
from sandyard.engine.drivers.namespace.nested_networks import NestedNetworks
from sandyard.kit.logging import get_logger

log = get_logger(__name__)

_INTERVAL_S = 0.5  # a process can take some hundred megabytes per second
_MIN_GROWTH = 256 << 20
_MEMORY_DIVISOR = 50
_ORPHANS_DIVISOR = 8  # the kernel resets some connections from a quarter of its limit on
_CHUNK_BYTES = 1 << 16
_MAX_TABLE_BYTES = 16 << 20  # netlink sockets, in bytes: some 150,000 of them
_NON_KERNEL_MEMORY = ("MemFree", "Buffers", "Cached", "SwapCached", "AnonPages", "SReclaimable", "Hugetlb")
_FAST_S, _SLOW_S = 2.0, 600.0
_SLOW_GROWTHS = 4
_NESTED_SECONDS = 1.0  # of processor time, to find nested networks, and to measure each of them
_QUEUES_FACTOR = 4  # the queues of a tunnel device of a container runtime can hold half a share
_MAX_MEASURED = 256  # nested networks of one sandbox
_SOFTIRQ_SHARE = 0.25  # of the processors
_MAX_SOFTIRQ_PROCESSORS = 1.0
_PACKETS_SECONDS = 0.25
_TRAFFIC_PAUSE_S = 5.0  # between checks that find nothing
_SOCKETS_SECONDS = 2.0
_LOCKS_SECONDS = 3.0  # for every page of locks the kernel counts from the first lock again: 100,000 take a second
_INCOMPLETE_DIVISOR = 10  # if the list of locks was not read completely, the share is divided by this
_KILL_ROUNDS = 100
_ROUND_PAUSE_S = 0.02

Device = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KernelMemoryLimits:
    """The limits. `growth`: bytes by which the machine's kernel memory grows before sandboxes are checked; 0 means 2 %
    of the machine's memory, at least 256 MB. `netlink` and `sockets` (bytes) and `locks` are what each sandbox may then
    hold, for sockets in addition to what its cgroup is charged for and allowed. `orphans`: TCP connections per sandbox
    that are closed with undelivered data; 0 means an eighth of the machine's limit. `nested`: bytes in tables and
    buffers of the network namespaces that a sandbox has created. `packets`: how many of them per second may be received
    there while the machine is busy with packets."""

    growth: int = 0
    netlink: int = 64 << 20
    locks: int = 100_000
    sockets: int = 64 << 20
    orphans: int = 0
    nested: int = 64 << 20
    packets: int = 200_000


@dataclass(frozen=True, slots=True)
class Excess:
    """Use of a kernel resource beyond the sandbox's share.

    `amount` is in bytes (netlink, sockets, nested), a number (locks, orphans), packets per second, or, of the kind
    "unexplained", the number of the sandbox's network namespaces.
    """

    sandbox: str
    kind: str
    amount: int


class GrowthDetector:
    """Decides when to check: when memory has grown by the limit above the lowest value since the last check that found
    nothing."""

    def __init__(self) -> None:
        self._lowest: int | None = None  # the first value triggers a check too, because sandboxes outlive the engine

    def is_due(self, current: int, limit: int) -> bool:
        if self._lowest is None:
            return True
        self._lowest = min(self._lowest, current)
        return current - self._lowest > limit

    def accept(self, current: int) -> None:
        """Record that no sandbox holds too much: the next check is after another growth from here."""
        self._lowest = current


class GrowthHistory:
    """Decides whether memory has grown so much that sandboxes which may be the cause are ended without a proof."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, int]] = deque()

    def add(self, now: float, value: int) -> None:
        self._values.append((now, value))
        while self._values[0][0] < now - _SLOW_S:
            self._values.popleft()

    def is_excessive(self, limit: int) -> bool:
        """Return whether memory has grown by the limit in two seconds, or by several times as much in ten minutes."""
        now, current = self._values[-1]
        recent = min(value for at, value in self._values if at >= now - _FAST_S)
        return current - recent > limit or current - min(value for _, value in self._values) > _SLOW_GROWTHS * limit


class SoftirqMeter:
    """Measures how many processors the machine uses for packets."""

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._last: tuple[int, int] | None = None
        self._was_busy = False

    def is_busy(self) -> bool:
        """Return whether it has been too many between the last three calls."""
        fields = [int(word) for word in self._stat.read_text().partition("\n")[0].split()[1:9]]
        softirq, total = fields[6], sum(fields)
        last, self._last = self._last, (softirq, total)
        if last is None or total <= last[1]:
            return False
        share = (softirq - last[0]) / (total - last[1])
        limit = min(_SOFTIRQ_SHARE, _MAX_SOFTIRQ_PROCESSORS / (os.cpu_count() or 1))
        was_busy, self._was_busy = self._was_busy, share > limit
        return was_busy and self._was_busy


@dataclass(frozen=True, slots=True)
class ContainerSandboxes:
    """Sandboxes that may run containers, by id with the pids of their first processes."""

    running: Mapping[str, int]
    paused: Mapping[str, int]


class KernelMemoryWatcher:
    """Ends processes of sandboxes that hold too much kernel memory. `list_sandboxes` returns the running ones with the
    pid of their first process, which is never ended here: `end_sandbox` is called for a sandbox whose other processes
    multiply faster than they can be ended. `read_charged` returns the socket buffers that a sandbox's cgroup is charged
    for, or None; `read_all_charged` the kernel memory that all cgroups are charged for."""

    def __init__(
        self,
        limits: KernelMemoryLimits,
        list_sandboxes: Callable[[], Mapping[str, int]],
        read_charged: Callable[[str], SocketMemory | None],
        end_sandbox: Callable[[str], None],
        *,
        list_with_containers: Callable[[], ContainerSandboxes] = lambda: ContainerSandboxes({}, {}),
        read_all_charged: Callable[[], int] = lambda: 0,
    ) -> None:
        self._limits = limits
        self._list_sandboxes = list_sandboxes
        self._read_charged = read_charged
        self._end_sandbox = end_sandbox
        self._list_with_containers = list_with_containers
        self._read_all_charged = read_all_charged
        self._traffic_checked_at = float("-inf")
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
        growth, history, softirq = GrowthDetector(), GrowthHistory(), SoftirqMeter()

        async def watch_traffic() -> None:
            if softirq.is_busy():
                await self.check_traffic()

        async def watch_tcp() -> None:
            await self.check_tcp(socket_memory.read_tcp())

        async def watch_growth() -> None:
            await self._watch_growth(growth, history)

        checks = {"traffic": watch_traffic, "tcp": watch_tcp, "memory": watch_growth}
        failed: dict[str, str] = {}
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for name, check in checks.items():
                try:
                    await check()
                    failed.pop(name, None)
                except Exception as error:  # nothing that a sandbox does may end the watch or the other checks
                    if failed.get(name) != str(error):
                        failed[name] = str(error)
                        log.warning("kernel_memory_check_failed", check=name, reason=str(error))

    async def _watch_growth(self, growth: GrowthDetector, history: GrowthHistory) -> None:
        tcp = socket_memory.read_tcp()
        total, current = read_memory()
        growth_limit = self._limits.growth or max(_MIN_GROWTH, total // _MEMORY_DIVISOR)
        history.add(time.monotonic(), current - tcp.memory - self._read_all_charged())
        unexplained = history.is_excessive(max(growth_limit, _MIN_GROWTH))
        if (unexplained or growth.is_due(current, growth_limit)) and not await self.check_memory(
            current, excessive=unexplained
        ):
            growth.accept(current)

    async def check_memory(self, kernel_memory: int, *, excessive: bool = False) -> bool:
        """End the processes of sandboxes that hold too much. Return whether there were any. `excessive`: if there are
        none, end those of the sandbox with containers that most likely causes the growth."""
        sandboxes = dict(self._list_sandboxes())
        if not sandboxes:
            return False
        found = await asyncio.to_thread(find_netlink_excess, sandboxes, self._limits.netlink)
        with_containers = self._list_with_containers().running
        networks: dict[str, NestedNetworks] = {}
        if not found and with_containers:
            networks = await asyncio.to_thread(nested_networks.find_nested_networks, with_containers, _NESTED_SECONDS)
            found = await asyncio.to_thread(find_nested_excess, networks, self._limits.nested)
        if not found:
            found = await asyncio.to_thread(find_sockets_excess, sandboxes, self._limits.sockets, self._read_charged)
        if not found and excessive:  # locks never grow that fast, and reading them takes longer
            found = find_suspect(networks)
        if not found:  # reading locks takes longer, so not while a known sandbox keeps taking memory
            found = await asyncio.to_thread(find_locks_excess, sandboxes, self._limits.locks)
        if not found:
            log.info("kernel_memory_checked", sandboxes=len(sandboxes), machine_kernel_memory=kernel_memory)
        await self._end_processes_of_all(found, sandboxes, machine_kernel_memory=kernel_memory)
        return bool(found)

    async def check_traffic(self) -> None:
        """Stop the networks of sandboxes in which too many packets circulate, also of paused sandboxes, and end the
        processes of those that are running."""
        if time.monotonic() - self._traffic_checked_at < _TRAFFIC_PAUSE_S:
            return
        sandboxes = self._list_with_containers()
        networks = await asyncio.to_thread(
            nested_networks.find_nested_networks, {**sandboxes.paused, **sandboxes.running}, _NESTED_SECONDS
        )
        found = await asyncio.to_thread(find_traffic_excess, networks, self._limits.packets)
        if not found:
            self._traffic_checked_at = time.monotonic()
        for excess in found:
            await asyncio.to_thread(_stop_traffic, networks[excess.sandbox])
        await self._end_processes_of_all(found, {**sandboxes.paused, **sandboxes.running})

    async def check_tcp(self, tcp: socket_memory.TcpUsage) -> None:
        """End the processes of sandboxes that hold too much TCP memory or too many orphans."""
        found: list[Excess] = []
        sandboxes = dict(self._list_sandboxes())
        if tcp.memory > MIN_SOCKET_MEMORY + self._limits.sockets:
            found += await asyncio.to_thread(find_charged_excess, sandboxes, self._limits.sockets, self._read_charged)
        orphans = self._limits.orphans or socket_memory.read_max_orphans() // _ORPHANS_DIVISOR
        if tcp.orphans > orphans:
            found += await asyncio.to_thread(find_orphans_excess, sandboxes, orphans)
        await self._end_processes_of_all(
            found, sandboxes, machine_tcp_memory=tcp.memory, machine_tcp_orphans=tcp.orphans
        )

    async def _end_processes_of_all(
        self, found: Iterable[Excess], sandboxes: Mapping[str, int], **machine: int
    ) -> None:
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
        if self._list_sandboxes().get(sandbox) != pid:
            return  # it has ended in the meantime, and its pid may be reused
        if not await asyncio.to_thread(end_descendants, pid):
            self._end_sandbox(sandbox)
        elif "orphans" in kinds:  # orphans whose other side is outside of the sandbox are still there
            with contextlib.suppress(OSError):
                await asyncio.to_thread(socket_memory.end_orphans, pid)


def _stop_traffic(networks: NestedNetworks) -> None:
    for path in networks.namespaces.values():
        with contextlib.suppress(OSError):
            nested_networks.stop_traffic(path)


def read_memory(proc: Path = Path("/proc")) -> tuple[int, int]:
    """Return the machine's total memory, and the unreclaimable kernel memory, in bytes: everything that is neither free
    nor used by programs or files. `SUnreclaim` alone would miss what is not in slabs, such as most socket buffers."""
    lines = (proc / "meminfo").read_text().splitlines()
    table = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines}
    pages = re.findall(r"^ +count: +(\d+)$", (proc / "zoneinfo").read_text(), re.MULTILINE)
    # Hundreds of megabytes that `MemFree` does not include.
    per_cpu_free = sum(map(int, pages)) * resource.getpagesize()
    other_memory = sum(table.get(name, 0) for name in _NON_KERNEL_MEMORY)
    return table["MemTotal"], max(table["MemTotal"] - other_memory - per_cpu_free, 0)


def find_netlink_excess(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes (id → pid of their first process) whose netlink sockets hold more bytes than their share.
    Blocks briefly."""
    found = []
    for sandbox, pid in sandboxes.items():
        with contextlib.suppress(OSError):  # it has just ended
            used = nested_networks.sum_netlink_bytes(_read_lines(Path(f"/proc/{pid}/net/netlink"), _MAX_TABLE_BYTES))
            if used > share:
                found.append(Excess(sandbox, "netlink", used))
    return found


def find_nested_excess(networks: Mapping[str, NestedNetworks], share: int) -> list[Excess]:
    """Return the sandboxes whose nested networks hold more bytes than their share. Blocks for those that hold much."""
    found = []
    for sandbox, nested in networks.items():
        used = queues = 0
        for path in list(nested.namespaces.values())[:_MAX_MEASURED]:
            with contextlib.suppress(OSError):  # it has just ended
                used += nested_networks.measure_tables(path, share, _NESTED_SECONDS)
                queues += nested_networks.measure_queues(path)
            if used > share or queues > _QUEUES_FACTOR * share:
                found.append(Excess(sandbox, "nested", max(used, queues)))
                break
    return found


def find_suspect(networks: Mapping[str, NestedNetworks]) -> list[Excess]:
    """Return the sandbox that most likely causes a growth of memory which nothing explains, if there is any."""
    if not networks:
        return []
    sandbox = max(networks, key=lambda name: networks[name].suspicion)
    return [Excess(sandbox, "unexplained", len(networks[sandbox].namespaces))]


def find_traffic_excess(networks: Mapping[str, NestedNetworks], share: int) -> list[Excess]:
    """Return the sandboxes in whose nested networks more packets per second are received than their share. Blocks for
    the time of the measurement."""
    before, started = _count_packets(networks), time.monotonic()
    time.sleep(_PACKETS_SECONDS)
    after, seconds = _count_packets(networks), time.monotonic() - started
    rates = {sandbox: int((after[sandbox] - before[sandbox]) / seconds) for sandbox in networks}
    return [Excess(sandbox, "packets", rate) for sandbox, rate in rates.items() if rate > share]


def _count_packets(networks: Mapping[str, NestedNetworks]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sandbox, nested in networks.items():
        for path in nested.namespaces.values():
            with contextlib.suppress(OSError):
                found[sandbox] += nested_networks.count_packets(path)
    return found


def find_charged_excess(
    sandboxes: Mapping[str, int], share: int, read_charged: Callable[[str], SocketMemory | None]
) -> list[Excess]:
    """Return the sandboxes whose cgroup is charged for more socket buffers than its limit plus their share. Blocks
    briefly."""
    found = []
    for sandbox in sandboxes:
        charged = read_charged(sandbox)
        if charged is not None and charged.used - charged.limit > share:
            found.append(Excess(sandbox, "sockets", charged.used - charged.limit))
    return found


def find_orphans_excess(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes that have more orphans than their share. Blocks for each one with many sockets."""
    found = []
    for sandbox, pid in sandboxes.items():
        with contextlib.suppress(OSError):  # it has just ended
            count = _sum_until(time.monotonic() + _SOCKETS_SECONDS, (1 for _ in socket_memory.list_orphans(pid, share)))
            if count > share:
                found.append(Excess(sandbox, "orphans", count))
    return found


def find_sockets_excess(
    sandboxes: Mapping[str, int], share: int, read_charged: Callable[[str], SocketMemory | None]
) -> list[Excess]:
    """Return the sandboxes whose sockets hold more bytes than their share plus what their cgroup is charged for and
    allowed. Blocks for each one with many sockets."""
    found = []
    for sandbox, pid in sandboxes.items():
        charged = read_charged(sandbox)
        if charged is None:
            continue  # its memory is unlimited, so nothing is an excess
        with contextlib.suppress(OSError):  # it has just ended
            used = _sum_until(time.monotonic() + _SOCKETS_SECONDS, socket_memory.measure_sockets(pid, share))
            after = read_charged(sandbox) or charged  # buffers change while they are added up
            excess = used - min(max(charged.used, after.used), charged.limit)
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


def find_locks_excess(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
    """Return the sandboxes that hold more locks than their share. Blocks for up to `_LOCKS_SECONDS`."""
    locks, complete = count_locks(_read_lines(Path("/proc/locks")), time.monotonic() + _LOCKS_SECONDS)
    if not complete:
        share //= _INCOMPLETE_DIVISOR
    if locks.total() <= share:
        return []
    used = count_by_sandbox(locks, find_exclusive_devices(sandboxes), Ancestors(sandboxes))
    return [Excess(sandbox, "locks", count) for sandbox, count in used.items() if count > share]


def _read_lines(path: Path, limit: int | None = None) -> Iterator[bytes]:
    """Yield the lines of a file in /proc while reading: such a file may be large, and each piece costs more than the
    one before."""
    rest, size = b"", 0
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while (limit is None or size < limit) and (piece := os.read(fd, _CHUNK_BYTES)):
            size += len(piece)
            *lines, rest = (rest + piece).split(b"\n")
            yield from lines
    finally:
        os.close(fd)


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


def count_by_sandbox(
    locks: Mapping[tuple[Device, int], int], devices: Mapping[Device, str], ancestors: Ancestors
) -> Counter[str]:
    """Attribute locks to sandboxes: by the file system if only one sandbox has it, because the process may have ended
    or be unknown (open file description locks); otherwise by the process."""
    found: Counter[str] = Counter()
    for (device, pid), count in locks.items():
        sandbox = devices.get(device) or ancestors.find_sandbox(pid)
        if sandbox is not None:
            found[sandbox] += count
    return found


def find_exclusive_devices(sandboxes: Mapping[str, int]) -> dict[Device, str]:
    """Return file systems that are mounted in exactly one sandbox: its root, its shared memory."""
    owners: dict[Device, set[str]] = {}
    for sandbox, process in [("", "self"), *((sandbox, str(pid)) for sandbox, pid in sandboxes.items())]:
        with contextlib.suppress(OSError):
            for device in list_mounted_devices(processes.read_mountinfo(process)):
                owners.setdefault(device, set()).add(sandbox)
    return {device: next(iter(names)) for device, names in owners.items() if len(names) == 1 and "" not in names}


def list_mounted_devices(mountinfo: Iterable[Sequence[str]]) -> set[Device]:
    numbers = (fields[2].split(":") for fields in mountinfo)
    return {(int(major), int(minor)) for major, minor in numbers}


class Ancestors:
    """Finds the sandbox that a process descends from. Caches results, because a chain of processes may be long."""

    def __init__(self, sandboxes: Mapping[str, int], parent: Callable[[int], int | None] | None = None) -> None:
        self._known: dict[int, str | None] = {pid: sandbox for sandbox, pid in sandboxes.items()}
        self._parent = parent or _read_parent

    def find_sandbox(self, pid: int) -> str | None:
        chain = []
        current: int | None = pid
        while current is not None and current > 1 and current not in self._known:
            chain.append(current)
            self._known[current] = None
            current = self._parent(current)
        found = self._known.get(current) if current is not None else None
        self._known.update(dict.fromkeys(chain, found))
        return found


def _read_parent(pid: int) -> int | None:
    found = processes.read_stat(pid)
    return None if found is None else found.parent


def end_descendants(root: int) -> bool:
    """Kill all descendants of a process, and wait until they are gone. Return False if they do not end. Blocks."""
    for _ in range(_KILL_ROUNDS):
        remaining = [
            pid for pid, state in processes.list_process_tree(root).items() if pid != root and state not in {"Z", "X"}
        ]
        if not remaining:
            return True
        for pid in remaining:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_PAUSE_S)
    return False
