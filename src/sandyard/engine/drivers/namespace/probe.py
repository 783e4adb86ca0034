"""Checks of what this machine offers for sandboxes, without changing anything. For `sandyard doctor`.

`capabilities` of an open driver say what works; these findings say why, and what to do about what is missing.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.drivers.namespace.cgroups.discovery import mounts
from sandyard.engine.drivers.namespace.kernel import is_root
from sandyard.engine.drivers.namespace.store import btrfs, image

OLDEST_ROOT, OLDEST_ROOTLESS = (5, 19), (5, 11)  # overlay on idmapped mounts; overlay in a user namespace
OLDEST_CRIU = (4, 1)


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail` says what was found; `help` says what to do if it is not `ok`. `vital`: without it, no sandboxes can run."""

    name: str
    ok: bool
    detail: str
    help: str = ""
    vital: bool = False


def probe(data_dir: Path | None = None) -> list[Finding]:
    """Run all checks. Blocks for some tens of milliseconds. `data_dir` is where the engine would store its data; its
    disk is checked."""
    folder = data_dir or Path("/var/lib")
    while not folder.exists():
        folder = folder.parent
    found = [_root(), _machine(), _kernel(), _user_namespaces(), *_cgroups(), _btrfs(folder), _criu(), _disk(folder)]
    return [replace(finding, help="") if finding.ok else finding for finding in found]


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _root() -> Finding:
    if is_root():
        return Finding("root", True, "the engine may use everything below")
    if os.geteuid() == 0:
        return Finding(
            "root",
            False,
            "root without CAP_SYS_ADMIN, as in a container",
            "give the container that capability (--privileged)",
        )
    return Finding("root", False, "no limits, no disk quotas and no network for sandboxes", "run the engine as root")


def _machine() -> Finding:
    machine = os.uname().machine
    known = " and ".join(seccomp.MACHINES)
    return Finding("architecture", machine in seccomp.MACHINES, machine, f"sandboxes run on {known}", vital=True)


def _kernel() -> Finding:
    release = platform.release()
    oldest = OLDEST_ROOT if is_root() else OLDEST_ROOTLESS
    overlay = _file_system("overlay")
    needed = f"Linux {oldest[0]}.{oldest[1]} or newer with overlayfs"
    ok = _version(release) >= oldest and overlay
    detail = f"Linux {release}" + ("" if overlay else " without overlayfs")
    return Finding("kernel", ok, detail, f"{needed} is needed", vital=True)


def _file_system(name: str) -> bool:
    """Return whether the kernel supports the file system; a module may not be loaded yet."""
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules", platform.release())
    with contextlib.suppress(OSError):
        builtin = (modules / "modules.dep").read_text() + (modules / "modules.builtin").read_text()
        return name in listed or f"/{name}.ko" in builtin
    return name in listed


def _user_namespaces() -> Finding:
    """Check the three settings with which distributions disable them."""
    checks = {
        "/proc/sys/user/max_user_namespaces": ("0", "sysctl -w user.max_user_namespaces=65536"),
        "/proc/sys/kernel/unprivileged_userns_clone": ("0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": (
            "1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    }
    if not Path("/proc/self/ns/user").exists():
        return Finding(
            "user namespaces",
            False,
            "this kernel does not support them",
            "use a kernel with CONFIG_USER_NS",
            vital=True,
        )
    for path, (bad, remedy) in checks.items():
        only_users = "unprivileged" in path
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == bad and not (only_users and is_root()):
                return Finding("user namespaces", False, f"turned off by {path}", remedy, vital=True)
    return Finding("user namespaces", True, "they can be created", vital=True)


def _cgroups() -> Iterator[Finding]:
    found = mounts(Path("/proc/self/mountinfo").read_text())
    unified = next((mount for mount in found if mount.version == 2), None)
    offered: set[str] = {controller for mount in found if mount.version == 1 for controller in mount.controllers}
    if unified is not None:
        with contextlib.suppress(OSError):
            offered |= set((unified.path / "cgroup.controllers").read_text().split())
    versions = sorted({mount.version for mount in found})
    said = " and ".join(f"version {version}" for version in versions) or "none"
    yield Finding("cgroups", bool(found), said, "mount cgroup2 on /sys/fs/cgroup")
    for controller in ("memory", "cpu", "pids"):
        remedy = "boot with cgroup_enable=memory" if controller == "memory" else "a kernel with that controller"
        yield Finding(
            f"{controller} controller", controller in offered, "there" if controller in offered else "missing", remedy
        )
    freezer = unified is not None or "freezer" in offered
    yield Finding(
        "freezer", freezer, "there" if freezer else "a pause would stop processes by signals", "mount cgroup2"
    )


def _btrfs(folder: Path) -> Finding:
    with contextlib.suppress(OSError):
        if btrfs.is_btrfs(folder) and is_root() and btrfs.quota_kind(folder):
            return Finding("copy-on-write store", True, f"{folder} is on btrfs with quotas")
    obstacle = image.obstacle()
    if obstacle is None:
        return Finding("copy-on-write store", True, "btrfs in a file of its own")
    return Finding("copy-on-write store", False, "forks and snapshots copy, no disk limits", obstacle)


def _criu() -> Finding:
    path = next((str(p) for p in (Path("/var/lib/sandyard/criu/criu"),) if p.exists()), None) or shutil.which("criu")
    remedy = "install CRIU 4.1 or newer"
    if path is None:
        return Finding("CRIU", False, "not installed: memory of paused sandboxes stays in RAM", remedy)
    told = subprocess.run([path, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"Version:\s*([\d.]+)", told)
    version = found[1] if found else "unknown"
    return Finding("CRIU", _version(version) >= OLDEST_CRIU, f"{path}, version {version}", remedy)


def _disk(folder: Path) -> Finding:
    stat = os.statvfs(folder)
    free, kept = stat.f_bavail * stat.f_frsize, image.reserve(folder)
    enough = free - kept > image.SMALLEST
    detail = f"{free >> 30} GiB free on the disk of {folder}, of which {kept >> 30} GiB are reserved"
    return Finding(
        "disk",
        enough,
        detail,
        f"free some space, or use another --data-dir: {image.SMALLEST >> 30} GiB plus the reserve are needed",
    )
