"""What is read of kernel memory that no cgroup counts, and when somebody is ended for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from sandyard.engine.drivers.namespace import kernel_memory
from sandyard.engine.drivers.namespace.kernel_memory import Ancestors, Bounds, Excess, Growth, KernelMemory

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


def test_memory_is_read_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       24643328 kB\nHugePages_Total:       0\nSUnreclaim:       660544 kB\n")
    assert kernel_memory.read_meminfo(file) == (24643328 << 10, 660544 << 10)


def test_netlink_buffers_are_added_up() -> None:
    assert kernel_memory.netlink_bytes(NETLINK.splitlines()) == 8388352 + 768
    assert kernel_memory.netlink_bytes([]) == 0


def test_locks_are_counted_by_file_system_and_process() -> None:
    found, complete = kernel_memory.count_locks(LOCKS.splitlines(), NEVER)
    assert complete
    assert found == {((0xFE, 0), 4767): 2, ((0xFE, 0), 4800): 1, ((0, 0x3F), -1): 1, ((0, 0x1A), 20): 1}


def test_counting_locks_ends_at_its_deadline() -> None:
    found, complete = kernel_memory.count_locks(LOCKS.splitlines(), 0.0)
    assert (found.total(), complete) == (1, False)


def test_locks_belong_to_who_alone_has_the_file_system_or_else_to_the_process() -> None:
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
    found = kernel_memory.by_sandbox(locks, {own: "two"}, ancestors)
    assert found == Counter(two=5 + 1 + 2, one=7)


def test_a_circle_of_parents_has_an_end() -> None:
    """Pids that are used anew while they are read."""
    assert Ancestors({"one": 10}, {30: 20, 20: 30}.get).sandbox(30) is None


def test_devices_of_mounts_are_decimal() -> None:
    mountinfo = "22 1 0:63 / / rw - overlay overlay rw\n23 22 254:0 /a /b rw shared:1 - ext4 /dev/vda rw\n"
    assert kernel_memory.mounted_devices(mountinfo) == {(0, 63), (254, 0)}


def test_the_first_figure_and_every_growth_by_the_bound_are_looked_at() -> None:
    growth = Growth()
    assert growth.is_due(1000, 100)
    growth.accept(1000)
    assert not growth.is_due(1100, 100)
    assert not growth.is_due(500, 100)
    assert growth.is_due(601, 100), "above the lowest"
    assert growth.is_due(601, 100), "as long as somebody is found"
    growth.accept(601)
    assert not growth.is_due(700, 100)
    assert growth.is_due(702, 100), "a slow growth is one too"


@pytest.mark.parametrize("kind", ["netlink", "locks"])
async def test_processes_are_ended_and_the_sandbox_only_where_that_fails(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    running = {"calm": 10, "greedy": 20, "stubborn": 30, "gone": 40}
    asked: list[int] = []
    ended: list[str] = []

    def find(sandboxes: Mapping[str, int], share: int) -> list[Excess]:
        assert share == getattr(bounds, kind)
        running.pop("gone", None)  # while it was looked at
        return [Excess(sandbox, kind, share + 1) for sandbox in sandboxes if sandbox != "calm"]

    def end_descendants(root: int) -> bool:
        asked.append(root)
        return root != running["stubborn"]

    bounds = Bounds(netlink=5, locks=7)
    monkeypatch.setattr(kernel_memory, "find_netlink", lambda _sandboxes, _share: [])
    monkeypatch.setattr(kernel_memory, "find_locks", lambda _sandboxes, _share: [])
    monkeypatch.setattr(kernel_memory, "end_descendants", end_descendants)
    guard = KernelMemory(bounds, lambda: running, ended.append)
    assert not await guard._look(1), "nobody holds too much"
    monkeypatch.setattr(kernel_memory, f"find_{kind}", find)
    assert await guard._look(1)
    assert sorted(asked) == [20, 30]
    assert ended == ["stubborn"]
