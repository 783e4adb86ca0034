"""The cgroups of this engine's sandboxes. Methods are idempotent and ignore groups that do not exist, except `create` and
`freeze`. Only the coroutines wait."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.contract import Limits
from sandyard.engine.drivers.machine.cgroups import io
from sandyard.engine.drivers.machine.cgroups.discovery import UNIFIED, Hierarchy

ZYGOTE = "_zygote"
_PERIOD_US = 100_000
_FREEZE_TIMEOUT_S = 20.0

_MEMORY_AND_SWAP_LIMIT = "memory.memsw.limit_in_bytes"
_SOCKET_LIMIT = "memory.kmem.tcp.limit_in_bytes"  # v1 counts socket buffers separately, and not at all without this
_SOCKET_USAGE = "memory.kmem.tcp.usage_in_bytes"
MIN_SOCKET_MEMORY = 64 << 20
TCP_MEMORY_FILE = Path("/proc/sys/net/ipv4/tcp_mem")
_TCP_DIVISOR = 16
"""No sandbox may hold more than 1/_TCP_DIVISOR of the TCP buffers at which the whole machine comes under pressure."""
_TCP_DIVISOR_V2 = 2
"""The same with cgroup v2, where the kernel has no such limit: the engine kills the processes of a sandbox far above it."""
_OPTIONAL_FILES = frozenset({"memory.swap.max", _MEMORY_AND_SWAP_LIMIT, _SOCKET_LIMIT})


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used by a group. `oom_kills` counts since the group was created. Values without a controller are 0."""

    cpu_seconds: float = 0.0
    memory: int = 0
    cache: int = 0
    oom_kills: int = 0


@dataclass(frozen=True, slots=True)
class SocketMemory:
    """Bytes of socket buffers that a group is charged for, and its limit. The kernel gives an empty socket a page
    beyond the limit, so many sockets can exceed it by far."""

    used: int
    limit: int


class Cgroups:
    """Creates, limits, measures, freezes and removes the groups of sandboxes, each known by its sandbox's id."""

    def __init__(self, hierarchies: Sequence[Hierarchy]) -> None:
        self.hierarchies = tuple(hierarchies)
        self._unified = self._find_by_name(UNIFIED)
        self._freezer = self._find_by_controller("freezer")
        self.limits = frozenset({"memory", "cpu", "pids"} & {c for h in hierarchies for c in h.controllers})
        self._existing_files: dict[tuple[str, str], bool] = {}
        self.can_freeze = self._unified is not None or self._freezer is not None
        self._io: dict[str, list[tuple[str, str]]] = {}  # hierarchy → files of every sandbox's group

    def limit_io(self, limits: io.IoLimits, disk: str | None) -> None:
        """Set the I/O limits for new groups, as far as the kernel supports it; the weight applies to all together.
        `disk` is `major:minor`."""
        for hierarchy in self.hierarchies:
            if hierarchy.controllers & {"io", "blkio"}:
                io.set_weight(hierarchy.root, limits.weight)
                self._io[hierarchy.name] = list(io.list_limit_files(hierarchy.version, limits, disk))

    def limit_processes(self, sysctl: Path = Path("/proc/sys/kernel")) -> None:
        """Limit the processes of all sandboxes together, so that the machine always has process ids and threads left
        for everything else."""
        hierarchy = self._find_by_controller("pids")
        if hierarchy is None:
            return
        machine_limit = min(int((sysctl / name).read_text()) for name in ("pid_max", "threads-max"))
        with contextlib.suppress(OSError):  # without root the engine's own group may belong to another user
            _write(hierarchy.root / "pids.max", str(machine_limit * 3 // 4))

    def _find_by_name(self, name: str) -> Hierarchy | None:
        return next((h for h in self.hierarchies if h.name == name), None)

    def _find_by_controller(self, controller: str) -> Hierarchy | None:
        return next((h for h in self.hierarchies if controller in h.controllers), None)

    @property
    def directories(self) -> dict[str, str]:
        """This engine's directory in each hierarchy, by the hierarchy's name."""
        return {h.name: str(h.root) for h in self.hierarchies}

    @property
    def shows_limits(self) -> bool:
        """Whether a sandbox that sees its own group in cgroup2 sees its limits there."""
        return self._unified is not None and bool(self._unified.controllers)

    def create(self, name: str, limits: Limits) -> list[tuple[str, int]]:
        """Create a sandbox's groups with its limits. Return open descriptors, which the caller must close: "cgroup" is
        the cgroup2 directory to create its first process in, each "join" a file to which the process has to write 0."""
        opened: list[tuple[str, int]] = []
        try:
            for hierarchy in self.hierarchies:
                group = f"{hierarchy.root}/{name}"  # not a Path, because this is part of every create
                os.mkdir(group, 0o755)  # noqa: PTH102
                for file, value in self._list_limit_files(hierarchy, limits):
                    _write(f"{group}/{file}", value)
                for file, value in self._io.get(hierarchy.name, ()):
                    with contextlib.suppress(OSError):  # the disk does not support it
                        _write(f"{group}/{file}", value)
                if hierarchy is self._unified:
                    opened.append(("cgroup", os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)))
                else:
                    opened.append(("join", os.open(f"{group}/cgroup.procs", os.O_WRONLY | os.O_CLOEXEC)))
        except BaseException:
            for _, fd in opened:
                os.close(fd)
            raise
        return opened

    def _list_limit_files(self, hierarchy: Hierarchy, limits: Limits) -> Iterator[tuple[str, str]]:
        memory, quota = str(limits.memory_mb << 20), limits.cpu_count * _PERIOD_US
        sockets = str(get_socket_limit(limits.memory_mb))
        if hierarchy.version == 2:
            files = {
                "memory": [("memory.max", memory), ("memory.swap.max", "0")],
                "cpu": [("cpu.max", f"{quota} {_PERIOD_US}")],
                "pids": [("pids.max", str(limits.pids))],
            }
        else:
            files = {
                "memory": [
                    ("memory.limit_in_bytes", memory),
                    (_MEMORY_AND_SWAP_LIMIT, memory),
                    (_SOCKET_LIMIT, sockets),
                ],
                "cpu": [("cpu.cfs_quota_us", str(quota))],  # the default period is 100 ms
                "pids": [("pids.max", str(limits.pids))],
            }
        for controller in sorted(hierarchy.controllers):
            for file, value in files.get(controller, ()):
                if file not in _OPTIONAL_FILES or self._has_file(hierarchy, file):
                    yield file, value

    def _has_file(self, hierarchy: Hierarchy, file: str) -> bool:
        """Return whether groups have this file. Some kernels do not limit swap or socket buffers; all groups are alike."""
        key = (hierarchy.name, file)
        if key not in self._existing_files:
            self._existing_files[key] = (hierarchy.root / file).exists()
        return self._existing_files[key]

    # Contents ----------------------------------------------------------------------------------------------------------

    def list_groups(self, name: str) -> Iterator[Path]:
        """Yield the directories of one sandbox, whether they exist or not."""
        for hierarchy in self.hierarchies:
            yield hierarchy.root / name

    def list_names(self) -> set[str]:
        """Return the names of all groups in all hierarchies, including the zygote's."""
        return {path.name for h in self.hierarchies for path in h.root.iterdir() if path.is_dir()}

    def list_pids(self, name: str) -> set[int]:
        found: set[int] = set()
        for group in self.list_groups(name):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
        return found - {0}  # 0: a process that is not visible in this pid namespace

    def add_zygote(self, pid: int) -> None:
        """Move the zygote into its own group. Its children stay in it until they join their sandbox's group, so killing
        one group and then the other leaves none."""
        for group in self.list_groups(ZYGOTE):
            group.mkdir(exist_ok=True)
            (group / "cgroup.procs").write_text(str(pid))

    # Killing and removing ---------------------------------------------------------------------------------------------------

    def kill(self, name: str) -> None:
        """Send SIGKILL to all processes in the group, frozen or not. Processes that fork in the meantime are caught as
        well, at the latest by the next call."""
        if self._unified is not None:
            with contextlib.suppress(OSError):
                (self._unified.root / name / "cgroup.kill").write_text("1")
        for pid in self.list_pids(name):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if self._unified is None and self._freezer is not None:  # processes frozen by version 1 cannot die
            with contextlib.suppress(OSError):
                (self._freezer.root / name / "freezer.state").write_text("THAWED")

    async def kill_and_remove(self, name: str, timeout_s: float = 10.0) -> bool:
        """Kill all processes in the group, wait until they are gone, and remove the group. Return False if a process
        did not die in time."""
        loop = asyncio.get_running_loop()
        deadline, pause = loop.time() + timeout_s, 0.0002
        while not self.remove(name):
            if loop.time() > deadline:
                return False
            self.kill(name)
            await asyncio.sleep(pause)
            pause = min(pause * 2, 0.05)
        return True

    def remove(self, name: str) -> bool:
        """Remove the group. Return False while it has processes."""
        is_removed = True
        for group in self.list_groups(name):
            try:
                _remove_group(group)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                is_removed = False
        return is_removed

    # Freezing ---------------------------------------------------------------------------------------------------------------

    async def freeze(self, name: str) -> None:
        """Freeze the group, and return when every process has stopped. Raises TimeoutError after thawing it again, and
        OSError if it does not exist."""
        try:
            async with asyncio.timeout(_FREEZE_TIMEOUT_S):
                if self._unified is not None:
                    await _freeze_unified(self._unified.root / name)
                elif self._freezer is not None:
                    await _freeze_v1(self._freezer.root / name)
        except BaseException:
            self.thaw(name)
            raise

    def thaw(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if self._unified is not None:
                _write(self._unified.root / name / "cgroup.freeze", "0")
            elif self._freezer is not None:
                _write(self._freezer.root / name / "freezer.state", "THAWED")

    def is_frozen(self, name: str) -> bool:
        """Return whether a freeze was requested, even if it is not complete yet."""
        with contextlib.suppress(OSError):
            if self._unified is not None:
                return _read(self._unified.root / name / "cgroup.freeze").strip() == b"1"
            if self._freezer is not None:
                return _read(self._freezer.root / name / "freezer.state").strip() != b"THAWED"
        return False

    # Accounting -------------------------------------------------------------------------------------------------------------

    @property
    def reports_usage(self) -> bool:
        """Whether `read_usage` reports both CPU time and memory."""
        return (
            self._unified is not None or self._find_by_controller("cpuacct") is not None
        ) and "memory" in self.limits

    def read_usage(self, name: str) -> Usage:
        cpu, memory, cache, kills = 0.0, 0, 0, 0
        if self._unified is not None:
            cpu = _read_table(self._unified.root / name / "cpu.stat").get("usage_usec", 0) / 1e6
        elif (accounting := self._find_by_controller("cpuacct")) is not None:
            cpu = _read_number(accounting.root / name / "cpuacct.usage") / 1e9
        hierarchy = self._find_by_controller("memory")
        if hierarchy is not None and hierarchy.version == 2:
            group = hierarchy.root / name
            memory, cache = _read_number(group / "memory.current"), _read_table(group / "memory.stat").get("file", 0)
            kills = _read_table(group / "memory.events").get("oom_kill", 0)
        elif hierarchy is not None:
            group = hierarchy.root / name
            memory, cache = (
                _read_number(group / "memory.usage_in_bytes"),
                _read_table(group / "memory.stat").get("total_cache", 0),
            )
            kills = _read_table(group / "memory.oom_control").get("oom_kill", 0)
        return Usage(cpu, max(memory - cache, 0), cache, kills)

    def read_kernel_memory(self) -> int:
        """Return the bytes of kernel memory that all sandboxes together are charged for, 0 if unknown."""
        hierarchy = self._find_by_controller("memory")
        if hierarchy is None:
            return 0
        if hierarchy.version == 2:
            table = _read_table(hierarchy.root / "memory.stat")
            return table.get("kernel", 0) + table.get("sock", 0)
        return _read_number(hierarchy.root / "memory.kmem.usage_in_bytes")

    def read_socket_memory(self, name: str) -> SocketMemory | None:
        """Return the socket memory, or None if memory is not accounted for."""
        hierarchy = self._find_by_controller("memory")
        if hierarchy is None:
            return None
        if hierarchy.version == 2:
            used = _read_table(hierarchy.root / name / "memory.stat").get("sock", 0)
            return SocketMemory(used, max(MIN_SOCKET_MEMORY, read_tcp_memory() // _TCP_DIVISOR_V2))
        group = hierarchy.root / name
        return SocketMemory(_read_number(group / _SOCKET_USAGE), _read_number(group / _SOCKET_LIMIT))


async def _freeze_unified(group: Path) -> None:
    _write(group / "cgroup.freeze", "1")
    events = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    # The file is always "readable": only a nested epoll for exceptional events can wait for a change.
    waiter = select.epoll()
    try:
        waiter.register(events, select.EPOLLPRI | select.EPOLLET)
        loop = asyncio.get_running_loop()
        while b"frozen 1" not in os.pread(events, 256, 0):
            changed = asyncio.Event()
            loop.add_reader(waiter.fileno(), changed.set)
            try:
                if b"frozen 1" not in os.pread(events, 256, 0):
                    await changed.wait()
                    waiter.poll(0)
            finally:
                loop.remove_reader(waiter.fileno())
    finally:
        waiter.close()
        os.close(events)


async def _freeze_v1(group: Path) -> None:
    pause = 0.0001
    while True:
        _write(group / "freezer.state", "FROZEN")  # repeated, because a busy task may have been missed
        if _read(group / "freezer.state").strip() == b"FROZEN":
            return
        await asyncio.sleep(pause)
        pause = min(pause * 2, 0.01)


def get_socket_limit(memory_mb: int) -> int:
    """Return the bytes of socket buffers that a sandbox with this memory may hold."""
    return max(MIN_SOCKET_MEMORY, min(memory_mb << 18, read_tcp_memory() // _TCP_DIVISOR))


def read_tcp_memory() -> int:
    """Return the bytes of TCP buffers above which the kernel starts to save memory."""
    try:
        pages = int(TCP_MEMORY_FILE.read_text().split()[0])
    except FileNotFoundError:  # in a separate network namespace of the engine; use the kernel's default
        pages = os.sysconf("SC_PHYS_PAGES") * 3 // 64
    return pages * os.sysconf("SC_PAGE_SIZE")


def _remove_group(group: Path) -> None:
    try:
        group.rmdir()
    except OSError as error:
        if error.errno not in {errno.EBUSY, errno.ENOTEMPTY}:
            raise
        for inner in [path for path in group.iterdir() if path.is_dir()]:
            _remove_group(inner)
        group.rmdir()


def _write(path: Path | str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def _read(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def _read_number(path: Path) -> int:
    with contextlib.suppress(OSError, ValueError):
        return int(_read(path))
    return 0


def _read_table(path: Path) -> dict[str, int]:
    """Parse lines of `name number`."""
    with contextlib.suppress(OSError, ValueError):
        pairs = (line.split() for line in _read(path).decode().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
    return {}
