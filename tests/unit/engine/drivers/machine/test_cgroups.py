"""Discovering hierarchies and writing limits, on fake cgroup directories. The conformance tests cover freezing and
killing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandyard.engine.contract import Limits
from sandyard.engine.drivers.machine.cgroups import Cgroups, Hierarchy, IoLimits, SocketMemory, tree
from sandyard.engine.drivers.machine.cgroups.discovery import parse_mounts
from sandyard.engine.drivers.machine.cgroups.io import find_disk
from tests.harness.descriptors import list_open_files

HYBRID = """\
25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw
31 25 0:27 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:10 - cgroup2 cgroup2 rw,nsdelegate
33 31 0:29 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
34 31 0:32 / /sys/fs/cgroup/cpu,cpuacct rw shared:15 - cgroup cgroup rw,cpu,cpuacct
35 31 0:33 / /sys/fs/cgroup/memory rw shared:16 - cgroup cgroup rw,memory
36 31 0:34 / /sys/fs/cgroup/with\\040space rw - cgroup cgroup rw,pids
"""


def test_hierarchies_are_read_from_mountinfo() -> None:
    hierarchies_by_path = {str(mount.path): (mount.version, mount.controllers) for mount in parse_mounts(HYBRID)}
    assert hierarchies_by_path == {
        "/sys/fs/cgroup/unified": (2, frozenset()),
        "/sys/fs/cgroup/cpu,cpuacct": (1, frozenset({"cpu", "cpuacct"})),
        "/sys/fs/cgroup/memory": (1, frozenset({"memory"})),
        "/sys/fs/cgroup/with space": (1, frozenset({"pids"})),
    }
    assert parse_mounts(HYBRID)[0].options == ("rw", "nsdelegate")


class _FakeKernelFiles:
    """Create the files that the kernel puts into every new group."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        real = os.mkdir

        def mkdir(path: str, mode: int = 0o777) -> None:
            real(path, mode)
            for name in (*names, "cgroup.procs"):
                Path(path, name).touch()

        monkeypatch.setattr(os, "mkdir", mkdir)


def _read_files(folder: Path, *names: str) -> dict[str, str]:
    return {name: (folder / name).read_text() for name in names}


def test_limits_are_written_in_version_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
    _FakeKernelFiles(monkeypatch, *files)
    (tmp_path / "memory.swap.max").touch()
    groups = Cgroups([Hierarchy("unified", 2, tmp_path, frozenset({"memory", "cpu", "pids"}))])
    joins = groups.create("one", Limits(memory_mb=64, cpu_count=3, pids=7))
    assert [name for name, _ in joins] == ["cgroup"]
    os.close(joins[0][1])
    assert _read_files(tmp_path / "one", *files) == {
        "memory.max": str(64 << 20),
        "memory.swap.max": "0",
        "cpu.max": "300000 100000",
        "pids.max": "7",
    }
    assert groups.limits == {"memory", "cpu", "pids"}
    assert groups.shows_limits
    assert groups.can_freeze


DISKS = """\
20 1 254:1 / / rw - ext4 /dev/vda1 rw
21 20 7:3 / /data/with\\040space rw - ext4 /dev/loop3 rw
22 20 0:44 / /data/run rw - tmpfs tmpfs rw
"""


def test_the_disk_of_a_directory_is_found(tmp_path: Path) -> None:
    disk, part = tmp_path / "vda", tmp_path / "vda" / "vda1"
    part.mkdir(parents=True)
    (disk / "dev").write_text("254:0\n")
    (part / "partition").touch()
    (tmp_path / "254:1").symlink_to(part)
    (tmp_path / "7:3").mkdir()
    disks = {"/data": "254:0", "/data/with space/store": "7:3", "/data/run/store": None}
    assert {path: find_disk(Path(path), DISKS, tmp_path) for path in disks} == disks


@pytest.mark.parametrize(
    ("version", "controller", "weights", "limits"),
    [
        (2, "io", {"io.weight": "40", "io.bfq.weight": "40"}, {"io.max": "7:3 rbps=5000000 wbps=2000000"}),
        (
            1,
            "blkio",
            {"blkio.bfq.weight": "40"},
            {
                "blkio.throttle.read_bps_device": "7:3 5000000",
                "blkio.throttle.write_bps_device": "7:3 2000000",
            },
        ),
    ],
)
def test_io_weights_and_limits_are_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    version: int,
    controller: str,
    weights: dict[str, str],
    limits: dict[str, str],
) -> None:
    _FakeKernelFiles(monkeypatch, *limits)
    for name in weights:
        (tmp_path / name).touch()
    groups = Cgroups([Hierarchy("it", version, tmp_path, frozenset({controller}))])
    groups.limit_io(IoLimits(40, 5_000_000, 2_000_000), "7:3")
    for _, fd in groups.create("one", Limits()):
        os.close(fd)
    assert _read_files(tmp_path, *weights) == weights
    assert _read_files(tmp_path / "one", *limits) == limits
    groups.limit_io(IoLimits(), None)  # no limits and no device
    for _, fd in groups.create("two", Limits()):
        os.close(fd)
    assert set(_read_files(tmp_path / "two", *limits).values()) == {""}


def test_a_kernel_without_io_limits_is_not_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FakeKernelFiles(monkeypatch)
    groups = Cgroups([Hierarchy("blkio", 1, tmp_path, frozenset({"blkio"}))])
    groups.limit_io(IoLimits(40, 5_000_000, 2_000_000), "7:3")
    [(name, fd)] = groups.create("one", Limits())
    os.close(fd)
    assert name == "join"


def test_limits_are_written_in_version_1_beside_an_empty_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ("memory.limit_in_bytes", "cpu.cfs_quota_us", "pids.max")
    _FakeKernelFiles(monkeypatch, *files)
    hierarchies = []
    for name, version, controllers in (
        ("unified", 2, ()),
        ("memory", 1, ("memory",)),
        ("cpu+pids", 1, ("cpu", "pids")),
    ):
        (tmp_path / name).mkdir()
        hierarchies.append(Hierarchy(name, version, tmp_path / name, frozenset(controllers)))
    groups = Cgroups(hierarchies)
    joins = groups.create("one", Limits(memory_mb=64, cpu_count=2, pids=7))
    assert [name for name, _ in joins] == ["cgroup", "join", "join"]
    for _, fd in joins:
        os.close(fd)
    assert _read_files(tmp_path / "memory/one", "memory.limit_in_bytes") == {"memory.limit_in_bytes": str(64 << 20)}
    assert _read_files(tmp_path / "cpu+pids/one", "cpu.cfs_quota_us", "pids.max") == {
        "cpu.cfs_quota_us": "200000",
        "pids.max": "7",
    }
    assert not (tmp_path / "memory/one/memory.memsw.limit_in_bytes").exists()
    assert groups.list_names() == {"one"}
    assert not groups.shows_limits


def test_all_sandboxes_together_leave_processes_to_the_machine(tmp_path: Path) -> None:
    group, sysctl = tmp_path / "pids", tmp_path / "kernel"
    for folder in (group, sysctl):
        folder.mkdir()
    (sysctl / "pid_max").write_text("32768\n")
    (sysctl / "threads-max").write_text("192747\n")
    (group / "pids.max").write_text("max")
    Cgroups([Hierarchy("pids", 1, group, frozenset({"pids"}))]).limit_processes(sysctl)
    assert (group / "pids.max").read_text().startswith("24576")
    (group / "pids.max").unlink()
    Cgroups([Hierarchy("pids", 1, group, frozenset({"pids"}))]).limit_processes(sysctl)
    Cgroups([]).limit_processes(sysctl)
    assert not (group / "pids.max").exists(), "a missing pids.max must be ignored, not created"


def test_charged_socket_buffers_are_read_from_both_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").mkdir()
    (tmp_path / "s/memory.stat").write_text("anon 600\nsock 400\n")
    (tmp_path / "s/memory.kmem.tcp.usage_in_bytes").write_text("500\n")
    (tmp_path / "s/memory.kmem.tcp.limit_in_bytes").write_text("450\n")
    (tmp_path / "tcp_mem").write_text("100000\t200000\t300000\n")
    monkeypatch.setattr(tree, "TCP_MEMORY_FILE", tmp_path / "tcp_mem")
    monkeypatch.setattr(os, "sysconf", lambda _: 4096)
    two = Cgroups([Hierarchy("unified", 2, tmp_path, frozenset({"memory"}))])
    assert two.read_socket_memory("s") == SocketMemory(400, 50_000 * 4096), (
        "half of the machine's limit below memory pressure"
    )
    one = Cgroups([Hierarchy("memory", 1, tmp_path, frozenset({"memory"}))])
    assert one.read_socket_memory("s") == SocketMemory(500, 450)
    assert Cgroups([Hierarchy("unified", 2, tmp_path, frozenset())]).read_socket_memory("s") is None


def test_a_group_that_cannot_be_created_leaks_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _FakeKernelFiles(monkeypatch)
    hierarchies = [Hierarchy(name, 2, tmp_path / name, frozenset()) for name in ("unified", "missing")]
    (tmp_path / "unified").mkdir()
    with pytest.raises(FileNotFoundError):
        Cgroups(hierarchies).create("one", Limits())
    assert list_open_files(tmp_path) == []


def test_usage_is_read_from_both_versions(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    for folder in (two / "s", one / "s"):
        folder.mkdir(parents=True)
    (two / "s/cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (two / "s/memory.current").write_text("1000\n")
    (two / "s/memory.stat").write_text("anon 600\nfile 400\n")
    (two / "s/memory.events").write_text("low 0\noom 1\noom_kill 2\n")
    used = Cgroups([Hierarchy("unified", 2, two, frozenset({"memory"}))]).read_usage("s")
    assert (used.cpu_seconds, used.memory, used.cache, used.oom_kills) == (2.5, 600, 400, 2)
    (one / "s/memory.usage_in_bytes").write_text("1000\n")
    (one / "s/memory.stat").write_text("cache 1\ntotal_cache 300\n")
    (one / "s/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    (one / "s/cpuacct.usage").write_text("1500000000\n")
    used = Cgroups([Hierarchy("memory", 1, one, frozenset({"memory", "cpuacct"}))]).read_usage("s")
    assert (used.cpu_seconds, used.memory, used.cache, used.oom_kills) == (1.5, 700, 300, 3)
    assert Cgroups([]).read_usage("s").cpu_seconds == 0


@pytest.mark.parametrize(
    ("memory_mb", "pages", "expected_mb"),
    [(512, 1 << 20, 128), (4096, 1 << 20, 256), (4096, 1024, 64), (64, 1 << 20, 64)],
    ids=["a quarter", "a share of the machine's", "a small machine", "a small sandbox"],
)
def test_the_socket_memory_limit_depends_on_the_sandbox_and_the_machine(
    memory_mb: int, pages: int, expected_mb: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tcp_mem").write_text(f"{pages}\t{pages}\t{pages}\n")
    monkeypatch.setattr(tree, "TCP_MEMORY_FILE", tmp_path / "tcp_mem")
    monkeypatch.setattr(os, "sysconf", lambda _: 4096)
    assert tree.get_socket_limit(memory_mb) == expected_mb << 20


def test_the_machines_tcp_memory_is_estimated_when_the_kernel_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel does not show tcp_mem in a network namespace of the engine's own."""
    monkeypatch.setattr(tree, "TCP_MEMORY_FILE", tmp_path / "tcp_mem")
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 1 << 22, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert tree.read_tcp_memory() == (16 << 30) * 3 // 64
