"""Find the cgroup hierarchies of this machine, and where this engine may create groups in them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandyard.engine.drivers.machine import kernel

UNIFIED = "unified"
_LIMIT_CONTROLLERS = ("memory", "cpu", "pids")
_IO_CONTROLLERS = {2: "io", 1: "blkio"}  # its name in each version; optional


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """`root` is the engine's own directory. `controllers` are the available ones of memory, cpu, pids, io, cpuacct and
    freezer."""

    name: str
    version: int
    root: Path
    controllers: frozenset[str]


@dataclass(frozen=True, slots=True)
class CgroupMount:
    version: int
    path: Path
    controllers: frozenset[str]
    options: tuple[str, ...] = ()  # of the file system, not of the mount


def parse_mounts(mountinfo: str) -> list[CgroupMount]:
    """Return the cgroup file systems in a `/proc/PID/mountinfo`."""
    found = []
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        path = Path(left.split()[4].replace("\\040", " "))
        if kind == "cgroup2":
            found.append(CgroupMount(2, path, frozenset(), tuple(options.split(","))))
        elif kind == "cgroup":
            known = {"memory", "cpu", "cpuacct", "pids", "freezer", _IO_CONTROLLERS[1]} & set(options.split(","))
            if known:
                found.append(CgroupMount(1, path, frozenset(known)))
    return found


def discover_hierarchies(
    folder: str, *, known: Mapping[str, str], rootless: bool
) -> tuple[list[Hierarchy], dict[str, str]]:
    """Create the engine's directory (`folder`) in each useful hierarchy. `known` are directories of an earlier run,
    which are kept while they exist, because running sandboxes are in them. Also returns what is missing, and why."""
    found: list[Hierarchy] = []
    missing: dict[str, str] = {}
    mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    unified = next((m for m in mounts if m.version == 2), None)
    if unified is not None:
        base = _find_own_group(unified.path) if rootless else unified.path
        root = _create_group(known.get(UNIFIED), base / folder, missing)
        if root is not None:
            found.append(Hierarchy(UNIFIED, 2, root, _enable_controllers(root, unified.path)))
    available = {controller for hierarchy in found for controller in hierarchy.controllers}
    wanted = set(_LIMIT_CONTROLLERS) - available
    if _IO_CONTROLLERS[2] not in available:
        wanted.add(_IO_CONTROLLERS[1])
    if not found:
        wanted |= {"freezer", "cpuacct"}
    for mount in mounts:
        controllers = mount.controllers & wanted
        if mount.version != 1 or not controllers or rootless:
            continue
        name = "+".join(sorted(controllers))
        root = _create_group(known.get(name), mount.path / folder, missing)
        if root is not None:
            found.append(Hierarchy(name, 1, root, frozenset(controllers)))
            wanted -= controllers
    if unified is not None and any(hierarchy.version == 1 for hierarchy in found):
        _speed_up_moves(unified)
    for controller in sorted(wanted & set(_LIMIT_CONTROLLERS)):
        missing.setdefault(controller, _explain_missing(controller, rootless=rootless))
    return found, missing


def _speed_up_moves(unified: CgroupMount) -> None:
    """Speed up moving processes into groups of version 1: a move waits for an RCU grace period, some 20 ms, unless the
    kernel is configured to favour moves (Linux 6.0). The cost for every fork on the machine is not measurable. Lasts
    until a reboot."""
    if "favordynmods" in unified.options:
        return
    others = [option for option in unified.options if option not in {"rw", "ro"}]
    with contextlib.suppress(OSError):  # an older kernel: the first sandbox after an idle time takes 20 ms longer
        kernel.set_filesystem_options(str(unified.path), [*others, "favordynmods"])


def _create_group(known: str | None, root: Path, missing: dict[str, str]) -> Path | None:
    if known is not None and Path(known).is_dir() and os.access(known, os.W_OK):
        return Path(known)
    try:
        root.mkdir(exist_ok=True)
    except OSError as error:
        missing["cgroups"] = f"could not create a group in {root.parent}: {error.strerror}"
        return None
    return root


def _find_own_group(mount: Path) -> Path:
    """Return the group of this process: without root, groups can be created only below it, if it was delegated."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return mount / line[3:].lstrip("/")
    return mount


def _enable_controllers(root: Path, mount: Path) -> frozenset[str]:
    """Enable the limiting controllers from the top down to the groups in `root`. Return which are enabled there."""
    for group in reversed([root, *root.parents]):
        if group.is_relative_to(mount):
            _enable_in_group(group)
    with contextlib.suppress(OSError):
        return frozenset((root / "cgroup.subtree_control").read_text().split()) & {
            *_LIMIT_CONTROLLERS,
            _IO_CONTROLLERS[2],
        }
    return frozenset()


def _enable_in_group(group: Path) -> None:
    try:
        offered = set((group / "cgroup.controllers").read_text().split()) & {*_LIMIT_CONTROLLERS, _IO_CONTROLLERS[2]}
        enabled = set((group / "cgroup.subtree_control").read_text().split())
    except OSError:
        return
    for controller in offered - enabled:
        for _ in range(2):
            try:
                (group / "cgroup.subtree_control").write_text(f"+{controller}")
            except OSError:
                if controller not in _LIMIT_CONTROLLERS or not _move_processes_out(group):
                    break
            else:
                break


def _move_processes_out(group: Path) -> bool:
    """Move the processes of a group into another group beside ours, because a group with processes cannot pass
    controllers down (the machine's root group can, a container's cannot)."""
    try:
        pids = (group / "cgroup.procs").read_text().split()
        if not pids or not (group / "cgroup.events").exists():
            return False
        others = group / "sandyard-others"
        others.mkdir(exist_ok=True)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (others / "cgroup.procs").write_text(pid)
    except OSError:
        return False
    return True


def _explain_missing(controller: str, *, rootless: bool) -> str:
    if rootless:
        return (
            f"no {controller} controller for this user: run as root, or under "
            "`systemd-run --user --scope -p Delegate=yes` on a machine with cgroup 2"
        )
    return (
        f"this machine has no {controller} cgroup controller: enable it in the kernel or mount the cgroup file system"
    )
