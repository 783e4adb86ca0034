"""Measuring kernel memory that no cgroup counts, and ending sandboxes that hold too much of it."""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.cgroups import MIN_SOCKET_MEMORY, SocketMemory
from sandyard.engine.drivers.namespace import kernel_memory, socket_memory
from sandyard.engine.drivers.namespace.kernel_memory import (
    Ancestors,
    Excess,
    GrowthDetector,
    KernelMemoryLimits,
    KernelMemoryWatcher,
)
from sandyard.engine.drivers.namespace.socket_memory import TcpUsage

NEVER = float("inf")
NETLINK = b"""\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  Locks    Drops    Inode
00000000c29d511e 0   2470566074 00000000 8388352  0        0     2        12       13527907
00000000a8cae949 0   9149       00000000 0        0        0     2        0        13650100
00000000e4ba329e 15  3260990002 00000010 768      0        0     2        0        13650417
"""
LOCKS = b"""\
1: POSIX  ADVISORY  WRITE 4767 fe:00:1934057 123 123
2: POSIX  ADVISORY  WRITE 4767 fe:00:1934057 121 121
2: -> POSIX  ADVISORY  WRITE 4800 fe:00:1934057 121 121
3: OFDLCK ADVISORY  READ -1 00:3f:7 0 EOF
4: FLOCK  ADVISORY  WRITE 20 00:1a:99 0 EOF
5: POSIX  *NOINODE* WRITE 20 <none>:0 0 EOF
"""


MEMINFO = """\
MemTotal:        1000000 kB
MemFree:          400000 kB
MemAvailable:     700000 kB
Buffers:           10000 kB
Cached:           200000 kB
AnonPages:        100000 kB
SReclaimable:      50000 kB
SUnreclaim:        30000 kB
HugePages_Total:       0
"""
ZONEINFO = """\
Node 0, zone   Normal
  pages free     123
  pagesets
    cpu: 0
              count:    2000
              high:     3000
    cpu: 1
              count:    500
"""


def test_memory_that_no_other_counter_claims_is_kernel_memory(tmp_path: Path) -> None:
    """This includes memory outside slabs, but not the free pages in per-CPU lists."""
    (tmp_path / "meminfo").write_text(MEMINFO)
    (tmp_path / "zoneinfo").write_text(ZONEINFO)
    total, kernel = kernel_memory.read_memory(tmp_path)
    assert (total, kernel) == (1_000_000 << 10, (240_000 << 10) - 2500 * resource.getpagesize())


def test_netlink_sockets_are_counted_with_their_buffers() -> None:
    assert kernel_memory.sum_netlink_bytes(NETLINK.splitlines()) == 8388352 + 768 + 3 * 2048
    assert kernel_memory.sum_netlink_bytes([]) == 0


def test_sockets_that_hold_more_than_is_charged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    amounts = {10: [50, 50], 20: [50, 60], 30: [1000], 40: [1000], 50: [110]}
    within = SocketMemory(90, 100)
    charged = {"within": within, "beyond": within, "uncounted": None, "over its limit": SocketMemory(110, 95)}

    def measure_sockets(pid: int, share: int) -> Iterator[int]:
        assert share == 10
        if pid == 40:
            raise ProcessLookupError
        yield from amounts[pid]

    monkeypatch.setattr(socket_memory, "measure_sockets", measure_sockets)
    sandboxes = {"within": 10, "beyond": 20, "uncounted": 30, "gone": 40, "over its limit": 50}
    excesses = kernel_memory.find_sockets_excess(sandboxes, 10, lambda sandbox: charged.get(sandbox, within))
    assert excesses == [Excess("beyond", "sockets", 20), Excess("over its limit", "sockets", 15)]


def test_sockets_charged_beyond_their_limit_are_found() -> None:
    charged = {"at": SocketMemory(110, 100), "beyond": SocketMemory(111, 100), "uncounted": None}
    excesses = kernel_memory.find_charged_excess(dict.fromkeys(charged, 1), 10, charged.get)
    assert excesses == [Excess("beyond", "sockets", 11)]


def test_sandboxes_with_too_many_orphans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def orphans(pid: int, share: int) -> Iterator[bytes]:
        assert share == 10
        if pid == 40:
            raise ProcessLookupError
        yield from [b""] * pid

    monkeypatch.setattr(socket_memory, "list_orphans", orphans)
    excesses = kernel_memory.find_orphans_excess({"within": 10, "beyond": 11, "gone": 40}, 10)
    assert excesses == [Excess("beyond", "orphans", 11)]


def test_buffers_charged_while_they_are_measured_are_not_an_excess(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([SocketMemory(0, 2000), SocketMemory(1000, 2000)])
    monkeypatch.setattr(socket_memory, "measure_sockets", lambda _pid, _share: iter([1000]))
    assert kernel_memory.find_sockets_excess({"busy": 10}, 10, lambda _: next(readings)) == []


def test_locks_are_counted_by_file_system_and_process() -> None:
    lock_counts, complete = kernel_memory.count_locks(LOCKS.splitlines(), NEVER)
    assert complete
    assert lock_counts == {((0xFE, 0), 4767): 2, ((0xFE, 0), 4800): 1, ((0, 0x3F), -1): 1, ((0, 0x1A), 20): 1}


def test_counting_locks_stops_at_the_deadline() -> None:
    lock_counts, complete = kernel_memory.count_locks(LOCKS.splitlines(), 0.0)
    assert (lock_counts.total(), complete) == (1, False)


def test_locks_belong_to_the_only_user_of_the_file_system_or_else_to_the_process() -> None:
    parents = {30: 20, 20: 10, 40: 1}
    ancestors = Ancestors({"one": 10, "two": 11}, parents.get)
    own, shared = (0, 63), (254, 0)
    locks = {
        (own, -1): 5,
        (own, 30): 1,
        (shared, 30): 7,
        (shared, 11): 2,
        (shared, 40): 9,
        (shared, -1): 9,
        (shared, 99): 9,
    }
    locks_by_sandbox = kernel_memory.count_by_sandbox(locks, {own: "two"}, ancestors)
    assert locks_by_sandbox == Counter(two=5 + 1 + 2, one=7)


def test_a_cycle_of_parent_pids_ends_the_search() -> None:
    """Pids can be reused while they are read."""
    assert Ancestors({"one": 10}, {30: 20, 20: 30}.get).find_sandbox(30) is None


def test_device_numbers_in_mountinfo_are_decimal() -> None:
    mountinfo = "22 1 0:63 / / rw - overlay overlay rw\n23 22 254:0 /a /b rw shared:1 - ext4 /dev/vda rw\n"
    assert kernel_memory.parse_mounted_devices(mountinfo) == {(0, 63), (254, 0)}


def test_the_first_reading_and_every_growth_beyond_the_bound_trigger_a_check() -> None:
    growth = GrowthDetector()
    assert growth.is_due(1000, 100)
    growth.accept(1000)
    assert not growth.is_due(1100, 100)
    assert not growth.is_due(500, 100)
    assert growth.is_due(601, 100), "growth counts from the lowest reading"
    assert growth.is_due(601, 100), "a check stays due until the reading is accepted"
    growth.accept(601)
    assert not growth.is_due(700, 100)
    assert growth.is_due(702, 100), "slow growth counts too"


@pytest.mark.parametrize("kind", ["netlink", "sockets", "locks"])
async def test_processes_are_ended_first_and_the_sandbox_only_if_that_fails(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    running = {"calm": 10, "greedy": 20, "stubborn": 30, "gone": 40}
    killed_roots: list[int] = []
    ended: list[str] = []

    def find(sandboxes: Mapping[str, int], share: int, *_: object) -> list[Excess]:
        assert share == getattr(bounds, kind)
        running.pop("gone", None)  # it ends during the check
        return [Excess(sandbox, kind, share + 1) for sandbox in sandboxes if sandbox != "calm"]

    def end_descendants(root: int) -> bool:
        killed_roots.append(root)
        return root != running["stubborn"]

    bounds = KernelMemoryLimits(netlink=5, locks=7, sockets=9)
    for name in ("find_netlink_excess", "find_sockets_excess", "find_locks_excess"):
        monkeypatch.setattr(kernel_memory, name, lambda *_: [])
    monkeypatch.setattr(kernel_memory, "end_descendants", end_descendants)
    guard = KernelMemoryWatcher(bounds, lambda: running, lambda _: None, ended.append)
    assert not await guard.check_memory(1), "no sandbox holds too much"
    monkeypatch.setattr(kernel_memory, f"find_{kind}_excess", find)
    assert await guard.check_memory(1)
    assert sorted(killed_roots) == [20, 30]
    assert ended == ["stubborn"]


@pytest.mark.parametrize(
    ("tcp", "orphans", "ended"),
    [
        (TcpUsage(100, MIN_SOCKET_MEMORY + 9), [], []),
        (TcpUsage(100, MIN_SOCKET_MEMORY + 10), [], [20, 30]),
        (TcpUsage(101, 0), [30, 40], [30, 40]),
        (TcpUsage(101, MIN_SOCKET_MEMORY + 10), [30, 40], [20, 30, 40]),
    ],
    ids=["ordinary", "memory", "orphans", "both"],
)
async def test_sandboxes_are_checked_when_the_machine_holds_more_tcp_memory_than_one_may(
    monkeypatch: pytest.MonkeyPatch, tcp: TcpUsage, orphans: list[int], ended: list[int]
) -> None:
    """Orphaned sockets outlive their processes, so they are ended after them."""
    running = {"calm": 10, "much memory": 20, "both": 30, "many orphans": 40}
    actions: list[tuple[str, int]] = []
    monkeypatch.setattr(socket_memory, "list_orphans", lambda pid, share: iter([b""] * (share + (pid in {30, 40}))))
    monkeypatch.setattr(socket_memory, "end_orphans", lambda pid: actions.append(("orphans", pid)))
    monkeypatch.setattr(kernel_memory, "end_descendants", lambda pid: actions.append(("end", pid)) or True)
    charged = {"much memory": SocketMemory(30, 10), "both": SocketMemory(30, 10)}
    bounds = KernelMemoryLimits(sockets=9, orphans=100)
    guard = KernelMemoryWatcher(bounds, lambda: running, lambda name: charged.get(name, SocketMemory(10, 10)), print)
    await guard.check_tcp(tcp)
    assert sorted(pid for action, pid in actions if action == "orphans") == orphans
    assert sorted(pid for action, pid in actions if action == "end") == ended
