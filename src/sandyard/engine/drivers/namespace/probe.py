"""Check what this machine offers for sandboxes, without changing anything. For `sandyard doctor`.

`capabilities` of an open driver say what works; these findings say why, and how to get what is missing.
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

from sandyard.engine.drivers.machine.cgroups.discovery import parse_mounts
from sandyard.engine.drivers.machine.kernel import is_root
from sandyard.engine.drivers.machine.store import btrfs, image
from sandyard.engine.drivers.namespace import seccomp
from sandyard.engine.drivers.namespace.criu.checkpoint import INSTALL_HINT, MIN_VERSION, PRIVATE_CRIU

_MIN_KERNEL, _MIN_KERNEL_ROOTLESS = (5, 19), (5, 11)  # overlay on idmapped mounts; overlay in a user namespace


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail` says what was found; `help` says what to do if it is not `ok`. `vital`: without it, no sandboxes can
    run."""

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
    found = [
        _check_root(),
        _check_architecture(),
        _check_kernel(),
        _check_user_namespaces(),
        *_check_cgroups(),
        _check_store(folder),
        _check_criu(),
        _check_disk(folder),
    ]
    return [replace(finding, help="") if finding.ok else finding for finding in found]


def _parse_version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def _check_root() -> Finding:
    if is_root():
        return Finding("root", True, "the engine runs as root")
    if os.geteuid() == 0:
        return Finding(
            "root",
            False,
            "root without CAP_SYS_ADMIN, as in a container",
            "give the container that capability (--privileged)",
        )
    return Finding("root", False, "no limits, no disk quotas and no network for sandboxes", "run the engine as root")


def _check_architecture() -> Finding:
    machine = os.uname().machine
    known = " and ".join(seccomp.MACHINES)
    return Finding("architecture", machine in seccomp.MACHINES, machine, f"sandboxes run on {known}", vital=True)


def _check_kernel() -> Finding:
    release = platform.release()
    minimum = _MIN_KERNEL if is_root() else _MIN_KERNEL_ROOTLESS
    overlay = _supports_file_system("overlay")
    needed = f"Linux {minimum[0]}.{minimum[1]} or newer with overlayfs"
    ok = _parse_version(release) >= minimum and overlay
    detail = f"Linux {release}" + ("" if overlay else " without overlayfs")
    return Finding("kernel", ok, detail, f"{needed} is needed", vital=True)


def _supports_file_system(name: str) -> bool:
    """Return whether the kernel supports the file system; a module may not be loaded yet."""
    listed = Path("/proc/filesystems").read_text().split()
    modules = Path("/lib/modules", platform.release())
    with contextlib.suppress(OSError):
        builtin = (modules / "modules.dep").read_text() + (modules / "modules.builtin").read_text()
        return name in listed or f"/{name}.ko" in builtin
    return name in listed


def _check_user_namespaces() -> Finding:
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
    for path, (bad_value, remedy) in checks.items():
        only_unprivileged = "unprivileged" in path
        with contextlib.suppress(OSError):
            if Path(path).read_text().strip() == bad_value and not (only_unprivileged and is_root()):
                return Finding("user namespaces", False, f"turned off by {path}", remedy, vital=True)
    return Finding("user namespaces", True, "available", vital=True)


def _check_cgroups() -> Iterator[Finding]:
    found = parse_mounts(Path("/proc/self/mountinfo").read_text())
    unified = next((mount for mount in found if mount.version == 2), None)
    offered: set[str] = {controller for mount in found if mount.version == 1 for controller in mount.controllers}
    if unified is not None:
        with contextlib.suppress(OSError):
            offered |= set((unified.path / "cgroup.controllers").read_text().split())
    versions = sorted({mount.version for mount in found})
    detail = " and ".join(f"version {version}" for version in versions) or "none"
    yield Finding("cgroups", bool(found), detail, "mount cgroup2 on /sys/fs/cgroup")
    for controller in ("memory", "cpu", "pids"):
        remedy = "boot with cgroup_enable=memory" if controller == "memory" else "use a kernel with that controller"
        yield Finding(
            f"{controller} controller",
            controller in offered,
            "available" if controller in offered else "missing",
            remedy,
        )
    freezer = unified is not None or "freezer" in offered
    yield Finding(
        "freezer",
        freezer,
        "available" if freezer else "pausing sends stop signals to processes instead",
        "mount cgroup2",
    )


def _check_store(folder: Path) -> Finding:
    with contextlib.suppress(OSError):
        if btrfs.is_btrfs(folder) and is_root() and btrfs.get_quota_kind(folder):
            return Finding("copy-on-write store", True, f"{folder} is on btrfs with quotas")
    obstacle = image.find_obstacle()
    if obstacle is None:
        return Finding("copy-on-write store", True, "btrfs in an image file")
    return Finding(
        "copy-on-write store", False, "forks and snapshots copy every file, and disk limits are not enforced", obstacle
    )


def _check_criu() -> Finding:
    path = str(PRIVATE_CRIU) if PRIVATE_CRIU.exists() else shutil.which("criu")
    remedy = INSTALL_HINT
    if path is None:
        return Finding("CRIU", False, "not installed: memory of paused sandboxes stays in RAM", remedy)
    output = subprocess.run([path, "--version"], check=False, capture_output=True, text=True).stdout
    found = re.search(r"Version:\s*([\d.]+)", output)
    version = found[1] if found else "unknown"
    return Finding("CRIU", _parse_version(version) >= MIN_VERSION, f"{path}, version {version}", remedy)


def _check_disk(folder: Path) -> Finding:
    stat = os.statvfs(folder)
    free, reserved = stat.f_bavail * stat.f_frsize, image.get_reserve(folder)
    enough = free - reserved > image.MIN_SIZE
    detail = f"{free >> 30} GiB free on the disk of {folder}, of which {reserved >> 30} GiB are reserved"
    return Finding(
        "disk",
        enough,
        detail,
        f"free some space, or use another --data-dir: {image.MIN_SIZE >> 30} GiB plus the reserve are needed",
    )
