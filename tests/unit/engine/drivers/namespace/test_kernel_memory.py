"""Measuring kernel memory that no cgroup counts, and ending sandboxes that hold too much of it."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from sandyard.engine.drivers.machine.cgroups import MIN_SOCKET_MEMORY, SocketMemory
from sandyard.engine.drivers.machine.processes import parse_mountinfo
from sandyard.engine.drivers.namespace import kernel_memory, nested_networks, socket_memory
from sandyard.engine.drivers.namespace.kernel_memory import (
    Ancestors,
    ContainerSandboxes,
    Excess,
    GrowthDetector,
    GrowthHistory,
    KernelMemoryLimits,
    KernelMemoryWatcher,
    SoftirqMeter,
)
from sandyard.engine.drivers.namespace.nested_networks import NestedNetworks
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
    assert nested_networks.sum_netlink_bytes(NETLINK.splitlines()) == 8388352 + 768 + 3 * 2048
    assert nested_networks.sum_netlink_bytes([]) == 0


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
    mountinfo = b"22 1 0:63 / / rw - overlay overlay rw\n23 22 254:0 /a /b rw shared:1 - ext4 /dev/vda rw\n"
    assert kernel_memory.list_mounted_devices(parse_mountinfo(mountinfo)) == {(0, 63), (254, 0)}


def test_the_name_of_a_directory_does_not_change_the_devices_of_mounts() -> None:
    """A sandbox may rename the directory that contains the mount point of its volume."""
    named = b"/\xff\x0b\x1cx\xc2\x857:7\xe2\x80\xa8/volume"
    mountinfo = b"36 25 0:63 / / rw - overlay o rw\n37 36 0:64 /v " + named + b" rw shared:1 - btrfs /dev/x rw\n"
    assert kernel_memory.list_mounted_devices(parse_mountinfo(mountinfo)) == {(0, 63), (0, 64)}
    assert os.fsencode(parse_mountinfo(mountinfo)[1][4]) == named


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


def test_only_fast_growth_or_a_lot_of_it_is_excessive() -> None:
    history = GrowthHistory()
    for second, value in enumerate([1000, 1090, 1180, 1270, 1360]):
        history.add(second, value)
        assert not history.is_excessive(200), "90 per second"
    history.add(5, 1410)
    assert history.is_excessive(100), "four times the limit since the first value"
    history.add(700, 1450)
    assert not history.is_excessive(100), "ten minutes later"
    history.add(701, 1551)
    assert history.is_excessive(100)


def test_a_machine_that_is_busy_with_packets_twice_in_a_row_is_busy(tmp_path: Path) -> None:
    stat = tmp_path / "stat"
    meter = SoftirqMeter(stat)
    readings = []
    for idle, softirq in [(0, 0), (100, 0), (110, 90), (120, 180), (220, 180)]:
        stat.write_text(f"cpu  0 0 0 {idle} 0 0 {softirq} 0 0 0\ncpu0 1 2 3\n")
        readings.append(meter.is_busy())
    assert readings == [False, False, False, True, False]


def test_nested_networks_that_hold_more_than_a_share_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"a": 60, "b": 60, "c": 10, "d": 90}
    queues = {"c": 401}

    def measure(path: str, *_: object) -> int:
        if path == "gone":
            raise FileNotFoundError
        return tables[path]

    monkeypatch.setattr(nested_networks, "measure_tables", measure)
    monkeypatch.setattr(nested_networks, "measure_queues", lambda path: queues.get(path, 0))
    networks = {
        "together": NestedNetworks({1: "a", 2: "gone", 3: "b"}),
        "queues": NestedNetworks({4: "c"}),
        "within": NestedNetworks({5: "d"}),
    }
    assert kernel_memory.find_nested_excess(networks, 100) == [
        Excess("together", "nested", 120),
        Excess("queues", "nested", 401),
    ]


def test_a_sandbox_with_a_tunnel_and_then_one_with_many_networks_is_suspected_first() -> None:
    networks = {"many": NestedNetworks({1: "a", 2: "b"}), "none": NestedNetworks({})}
    assert kernel_memory.find_suspect(networks) == [Excess("many", "unexplained", 2)]
    networks["tunnel"] = NestedNetworks({3: "c"}, has_tunnel=True)
    assert kernel_memory.find_suspect(networks) == [Excess("tunnel", "unexplained", 1)]
    assert kernel_memory.find_suspect({}) == []


@pytest.mark.parametrize("excessive", [False, True])
async def test_without_an_explanation_a_sandbox_with_containers_is_ended_only_if_growth_is_excessive(
    monkeypatch: pytest.MonkeyPatch, excessive: bool
) -> None:
    ended: list[int] = []
    for name in ("find_netlink_excess", "find_sockets_excess", "find_locks_excess", "find_nested_excess"):
        monkeypatch.setattr(kernel_memory, name, lambda *_: [])
    monkeypatch.setattr(kernel_memory, "end_descendants", lambda pid: ended.append(pid) or True)
    monkeypatch.setattr(
        nested_networks, "find_nested_networks", lambda found, _: dict.fromkeys(found, NestedNetworks({}))
    )
    watcher = KernelMemoryWatcher(
        KernelMemoryLimits(),
        lambda: {"plain": 10, "with containers": 20},
        lambda _: None,
        lambda _: None,
        list_with_containers=lambda: ContainerSandboxes({"with containers": 20}, {}),
    )
    assert await watcher.check_memory(1, excessive=excessive) is excessive
    assert ended == ([20] if excessive else [])


async def test_traffic_of_paused_sandboxes_is_stopped_and_processes_of_running_ones_are_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []
    stopped: list[str] = []
    received = {"running": iter([0, 10_000_000]), "paused": iter([5, 10_000_000]), "calm": iter([7, 8])}
    monkeypatch.setattr(kernel_memory, "end_descendants", lambda pid: ended.append(pid) or True)
    monkeypatch.setattr(kernel_memory, "_PACKETS_SECONDS", 0.001)
    monkeypatch.setattr(
        nested_networks, "find_nested_networks", lambda found, _: {name: NestedNetworks({1: name}) for name in found}
    )
    monkeypatch.setattr(nested_networks, "count_packets", lambda path: next(received[path]))
    monkeypatch.setattr(nested_networks, "stop_traffic", stopped.append)
    running = {"running": 20, "calm": 30}
    watcher = KernelMemoryWatcher(
        KernelMemoryLimits(),
        lambda: running,
        lambda _: None,
        lambda _: None,
        list_with_containers=lambda: ContainerSandboxes(running, {"paused": 40}),
    )
    await watcher.check_traffic()
    assert sorted(stopped) == ["paused", "running"]
    assert ended == [20]


async def test_a_check_that_fails_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    both_twice = asyncio.Event()

    def fail() -> list[str]:
        raise OSError("not readable")

    async def check_tcp(_: TcpUsage) -> None:
        done.append("tcp")
        if done.count("tcp") > 1 and done.count("memory") > 1:
            both_twice.set()

    async def check_memory(_: int, *, excessive: bool) -> bool:
        done.append("memory")
        return True

    watcher = KernelMemoryWatcher(KernelMemoryLimits(), dict, lambda _: None, print)
    monkeypatch.setattr(kernel_memory, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(kernel_memory.SoftirqMeter, "is_busy", lambda _: fail())
    monkeypatch.setattr(kernel_memory.GrowthHistory, "is_excessive", lambda *_: True)
    monkeypatch.setattr(watcher, "check_tcp", check_tcp)
    monkeypatch.setattr(watcher, "check_memory", check_memory)
    watcher.start()
    await asyncio.wait_for(both_twice.wait(), 30)
    await watcher.stop()
