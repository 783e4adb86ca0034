"""Collect the facts about a frozen sandbox that CRIU needs. They are read from /proc while nothing in it runs.

Everything is written to `sandbox.json` next to CRIU's images, because a restore needs the same information.
"""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine import processes

NAMESPACES = ("mnt", "user", "pid", "net", "uts", "ipc", "cgroup", "time")

_KERNEL_FILES = ("/memfd:", "/SYSV", "/dev/zero (deleted)", "/anon_hugepage")  # not real paths; CRIU handles them
_LISTENING_FLAG = 0x10000  # in /proc/net/unix
TEXT_PREFIX = "text:"
_MAX_TEXT_BYTES = 4096
_REOPEN_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK | os.O_DIRECTORY
_MAX_SEARCHED = 300_000  # directory entries searched for the location of a file watch
_SYSTEM_FOLDERS = ("usr", "var", "lib", "etc")  # searched last


class NotDumpableError(Exception):
    """A message for users: what in this sandbox can't be moved to disk."""


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file of the host that a process inside has open or mapped: mostly the agent's Python and its libraries."""

    key: str  # CRIU's name for it
    path: str
    flags: int
    size: int
    mtime_ns: int
    inode: int
    copy: str | None  # its name in the library, in case the host's file is replaced


@dataclass(frozen=True, slots=True)
class Mounts:
    """Mount points that CRIU does not create. It creates proc, devpts and writable tmpfs, with their contents."""

    prepared: tuple[str, ...]  # the driver creates them again, as for a boot
    # On proc, to hide what is below: "text:" and a file's contents, "folder" (empty) or "device" (null)
    blank: dict[str, str]


def list_pids(freezer: Path) -> list[int]:
    """Return the host pids of everything in that cgroup and below."""
    found = []
    for folder, _, _ in os.walk(freezer):
        found += [int(line) for line in Path(folder, "cgroup.procs").read_text().split()]
    return found


def check_processes(pids: list[int], root: int) -> None:
    """Raise NotDumpableError for what is known to fail, or to be dumped incorrectly.

    All processes must be in the namespaces of the agent, because CRIU uses those for every one of them.
    """
    expected = {kind: Path(f"/proc/{root}/ns/{kind}").stat().st_ino for kind in NAMESPACES}
    for pid in pids:
        for kind, inode in expected.items():
            try:
                own = Path(f"/proc/{pid}/ns/{kind}").stat().st_ino
            except (FileNotFoundError, ProcessLookupError):
                continue  # a zombie has left its namespaces
            if own != inode:
                raise NotDumpableError(f"process {describe_process(pid)} runs in its own {kind} namespace")
        if any(_read_target(handle) == "anon_inode:[io_uring]" for handle, _ in _list_descriptors(pid)):
            raise NotDumpableError(f"process {describe_process(pid)} uses io_uring")
    if count := len(list_connections(root)):
        raise NotDumpableError(f"{count} connections to its agent are still open")


def describe_process(pid: int) -> str:
    """Describe a process with its pid inside the sandbox."""
    inside = re.search(r"^NSpid:.*\s(\d+)$", processes.read_text(f"/proc/{pid}/status"), re.MULTILINE)
    name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return f"{inside[1] if inside else pid} ({name})"


def read_root_uid(root: int) -> int:
    """Return the host's user id of the sandbox's root."""
    return int(Path(f"/proc/{root}/uid_map").read_text().split()[1])


def list_connections(root: int) -> set[str]:
    """Return the agent's sockets that belong to another network namespace: connections from the host.

    A connection that the host has closed counts until the agent, which must run for that, has closed it too.
    """
    own = {_read_target(handle) for handle, _ in _list_descriptors(root)}
    known = set()
    for table in ("unix", "tcp", "tcp6", "udp", "udp6", "raw", "raw6", "icmp", "icmp6", "netlink", "packet"):
        path = Path(f"/proc/{root}/net/{table}")
        for line in processes.read_text(path).splitlines()[1:] if path.exists() else ():
            known |= {f"socket:[{field}]" for field in line.split() if field.isdigit()}
    return {target for target in own if target.startswith("socket:[")} - known


def find_listening_socket(root: int) -> int:
    """Return the inode of the agent's listening unix socket."""
    own = {_read_target(handle) for handle, _ in _list_descriptors(root)}
    for line in processes.read_text(f"/proc/{root}/net/unix").splitlines()[1:]:
        _, _, _, flags, _, _, inode, *_ = line.split()
        if int(flags, 16) & _LISTENING_FLAG and f"socket:[{inode}]" in own:
            return int(inode)
    raise NotDumpableError("the agent has no listening socket in the sandbox's network namespace")


def list_mounts(root: int) -> Mounts:
    prepared, blank, procs = [], {}, []
    for fields in processes.read_mountinfo(root):
        part, point = map(_unescape, fields[3:5])
        kind, writable = fields[fields.index("-", 6) + 1], "rw" in fields[5].split(",")
        if kind == "proc":
            procs.append(f"{point}/")
        elif point.startswith(tuple(procs)):
            blank[point] = _describe_mask(Path(f"/proc/{root}/root{point}"))
        elif point == "/dev" or not (
            point == "/" or kind == "devpts" or (kind == "tmpfs" and part == "/" and writable)
        ):
            prepared.append(point)  # including /dev, whose nodes cannot be created by the sandbox's root
    return Mounts(tuple(prepared), blank)


_COUNTED_LIMITS = {"Max pending signals": resource.RLIMIT_SIGPENDING, "Max msgqueue size": resource.RLIMIT_MSGQUEUE}


def read_rlimits(pid: int) -> list[tuple[int, int]]:
    """Return the hard limits of a process that apply to a whole user namespace created under them. Read from its file,
    because prlimit(2) would need CAP_SYS_RESOURCE."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    known = [
        (kind, line.split()[-2]) for line in lines for name, kind in _COUNTED_LIMITS.items() if line.startswith(name)
    ]
    return [(kind, int(hard)) for kind, hard in known if hard.isdigit()]


def _describe_mask(path: Path) -> str:
    status = path.stat()
    if stat.S_ISDIR(status.st_mode) and not any(path.iterdir()):
        return "folder"
    if stat.S_ISREG(status.st_mode) and status.st_size < _MAX_TEXT_BYTES:
        return TEXT_PREFIX + path.read_text()
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == os.makedev(1, 3):
        return "device"
    raise NotDumpableError("something unknown is mounted on its proc file system")


def _unescape(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), field)


def list_host_files(pids: list[int], root: int, known: list[Path]) -> Iterator[tuple[HostFile, Path]]:
    """Yield every file of the host in use in the sandbox, with a path under which its content can be read now.

    `known`: paths of files that may have been opened under another name, from another mount namespace.
    """
    known_paths = {
        (status.st_dev, status.st_ino): str(path) for path in known if path.exists() and (status := path.stat())
    }
    inside = {int(fields[0]) for fields in processes.read_mountinfo(root)}
    seen: set[str] = set()
    for pid in pids:
        for handle, flags in (*_list_mappings(pid), *_list_descriptors(pid)):
            path = _read_target(handle)
            if not path.startswith("/") or path.startswith(_KERNEL_FILES):
                continue
            mount, status = _stat_handle(handle)
            key = f"file[{mount:x}:{status.st_ino:x}]"
            if mount not in inside and key not in seen:
                seen.add(key)
                host_path = known_paths.get((status.st_dev, status.st_ino), path)
                yield _make_host_file(key, host_path, flags, status), handle


def list_handles(pid: int) -> Iterator[Path]:
    """Yield everything a process has open or mapped, as links in /proc."""
    for handle, _ in (*_list_mappings(pid), *_list_descriptors(pid)):
        path = _read_target(handle)
        if path.startswith("/") and not path.startswith(_KERNEL_FILES):
            yield handle


def get_mount_id(handle: Path) -> int:
    """Return the id of the mount that such a file is on."""
    return _stat_handle(handle)[0]


def _stat_handle(handle: Path) -> tuple[int, os.stat_result]:
    descriptor = os.open(handle, os.O_PATH | os.O_CLOEXEC)
    try:
        return _read_field(Path(f"/proc/self/fdinfo/{descriptor}"), "mnt_id", 10), os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _make_host_file(key: str, path: str, flags: int, status: os.stat_result) -> HostFile:
    regular, writes = stat.S_ISREG(status.st_mode), flags & os.O_ACCMODE != os.O_RDONLY
    try:
        current = Path(path).stat()
        is_unchanged = (current.st_dev, current.st_ino) == (status.st_dev, status.st_ino)
    except OSError:
        is_unchanged = False
    if not is_unchanged and (writes or not regular):
        raise NotDumpableError(f"the host's file {path}, which is open inside, has been moved or removed")
    name = f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}" if regular and not writes else None
    return HostFile(key, path, flags & _REOPEN_FLAGS, status.st_size, status.st_mtime_ns, status.st_ino, name)


def _list_mappings(pid: int) -> Iterator[tuple[Path, int]]:
    seen = set()
    for line in processes.read_text(f"/proc/{pid}/maps").split("\n")[:-1]:
        address_range, _, _, device, inode, *_ = line.split(None, 5)
        if inode != "0" and (device, inode) not in seen:
            seen.add((device, inode))
            start, _, end = address_range.partition("-")
            yield Path(f"/proc/{pid}/map_files/{int(start, 16):x}-{int(end, 16):x}"), os.O_RDONLY


def _list_descriptors(pid: int) -> Iterator[tuple[Path, int]]:
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        yield handle, _read_field(Path(f"/proc/{pid}/fdinfo/{handle.name}"), "flags", 8)


def _read_target(handle: Path) -> str:
    return str(handle.readlink())


def _read_field(path: Path, name: str, base: int) -> int:
    return int(next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:")).split()[1], base)


def find_watched_paths(pids: list[int], root: int) -> list[str]:
    """Return the paths of watched files in the root file system. An overlay does not provide them, so they are searched
    for."""
    top = Path(f"/proc/{root}/root")
    device = Path(f"{top}/.").stat().st_dev
    wanted = set()
    for pid in pids:
        for handle, _ in _list_descriptors(pid):
            if _read_target(handle) == "anon_inode:inotify":
                text = Path(f"/proc/{pid}/fdinfo/{handle.name}").read_text()
                for inode, number in re.findall(r"^inotify wd:\S+ ino:(\S+) sdev:(\S+)", text, re.MULTILINE):
                    if int(number, 16) == os.major(device) << 20 | os.minor(device):
                        wanted.add(int(inode, 16))
    return list(_search_paths(str(top), device, wanted))


def _search_paths(top: str, device: int, wanted: set[int]) -> Iterator[str]:
    """Search likely places before the system's. What is not found in time makes CRIU fail with its own message."""
    if Path(f"{top}/.").stat().st_ino in wanted:
        yield "/"
    searched = 0
    folders, system = ["/"], [f"/{name}" for name in _SYSTEM_FOLDERS]
    while wanted and searched < _MAX_SEARCHED and (folders or system):
        folder = folders.pop() if folders else system.pop()
        try:
            entries = list(os.scandir(top + folder))
        except OSError:
            continue
        searched += len(entries)
        for entry in entries:
            path = f"{folder.rstrip('/')}/{entry.name}"
            status = entry.stat(follow_symlinks=False)
            if status.st_ino in wanted and status.st_dev == device:
                yield path
                wanted.discard(status.st_ino)
            if stat.S_ISDIR(status.st_mode) and status.st_dev == device and path[1:] not in _SYSTEM_FOLDERS:
                folders.append(path)
