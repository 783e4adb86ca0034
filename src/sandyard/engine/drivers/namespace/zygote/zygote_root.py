"""The zygote's own root file system: a tmpfs with binds of the few places it works on, and nothing else.

A private copy of all of the host's mounts would pin every one of them (a disk that can't be ejected, another engine's
store that stays attached), and would be copied again for each sandbox. Every fork starts from this instead:

    /proc      the host's, for /proc/self/fd and for the ids of a user namespace
    /store     the data directory's store/: what sandboxes wrote
    /roots/N   the folders that contain read-only layers
    /dev, /sys the parts of the host's that sandboxes get
    /blank     an empty file and an empty directory to mount over what they don't get
    /stack/N   where layers are attached on kernels that require it
    /root      where a sandbox's root is mounted
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sandyard.engine.drivers.machine import kernel

DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
CONTAINER_DEVICES = {"net/tun": (10, 200), "fuse": (10, 229)}

# Files of procfs that reveal or change something of the machine: Docker's list and more. Root in a sandbox owns none of them, so
# only those that everybody can read need to be covered.
_HIDDEN_PROC_NAMES = (
    *(
        "acpi",
        "asound",
        "buddyinfo",
        "bus",
        "cmdline",
        "diskstats",
        "driver",
        "dynamic_debug",
        "fs",
        "irq",
        "scsi",
        "interrupts",
        "iomem",
        "ioports",
        "kallsyms",
    ),
    *(
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "kpagecgroup",
        "kpagecount",
        "kpageflags",
        "latency_stats",
        "lockdep",
        "modules",
        "mtrr",
    ),
    *(
        "pagetypeinfo",
        "partitions",
        "pressure",  # also where programs could have the machine's load watched for them
        "sched_debug",
        "schedstat",
        "slabinfo",
        "softirqs",
        "sysrq-trigger",
        "timer_list",
        "timer_stats",
        "vmallocinfo",
    ),
)
# glibc and libuv count processors there; all of it is in /proc/cpuinfo as well.
_VISIBLE_SYS_PATHS = ("devices/system/cpu",)
_STACK_SIZE = 128


@dataclass(frozen=True, slots=True)
class ZygoteRoot:
    """The properties of the zygote's root file system that its children need."""

    rootless: bool
    hidden: tuple[tuple[str, str], ...]  # a name in /proc, and what is mounted over it


def enter_root(request: dict[str, Any]) -> ZygoteRoot:
    """Move into a new mount namespace with the root described above. Needs CAP_SYS_ADMIN in the current user
    namespace."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    sources = {"store": request["store"]}
    sources |= {f"roots/{number}": path for number, path in enumerate(request["roots"])}
    # Opened before the new root hides the old one: any of them may be in /tmp.
    opened = {target: os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for target, path in sources.items()}
    kernel.mount("sandyard", "/tmp", "tmpfs", kernel.MS_NOSUID, "mode=700,size=4m")  # noqa: S108 (any directory works)
    os.chdir("/tmp")  # noqa: S108
    for folder in ("proc", "store", "roots", "dev", "sys", "blank", "stack", "root"):
        os.mkdir(folder, 0o755)
    _make_blank()
    for number in range(_STACK_SIZE):
        os.mkdir(f"stack/{number}")

    kernel.bind("/proc", "proc", recursive=True)
    for target, fd in opened.items():
        os.makedirs(target, exist_ok=True)
        kernel.bind(f"/proc/self/fd/{fd}", target, recursive=True)
        os.close(fd)
    if request["rootless"]:
        _bind_devices()
    _bind_sys()
    kernel.pivot_into(".")
    return ZygoteRoot(bool(request["rootless"]), tuple(_list_hidden()))


def _list_hidden() -> Iterator[tuple[str, str]]:
    for name in _HIDDEN_PROC_NAMES:
        with contextlib.suppress(FileNotFoundError):
            mode = os.lstat(f"/proc/{name}").st_mode
            if mode & 0o007:
                yield name, "/blank/folder" if stat.S_ISDIR(mode) else "/blank/file"


def _make_blank() -> None:
    flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("none", "blank", "tmpfs", flags, "mode=555,size=4k")
    os.mkdir("blank/folder", 0o555)
    os.close(os.open("blank/file", os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount("none", "blank", None, kernel.MS_REMOUNT | kernel.MS_RDONLY | flags, "mode=555,size=4k")


def _bind_devices() -> None:
    """Bind the host's own device nodes, because none can be created without root."""
    for name in DEVICES:
        os.close(os.open(f"dev/{name}", os.O_CREAT | os.O_WRONLY, 0o666))
        kernel.bind(f"/dev/{name}", f"dev/{name}")


def _bind_sys() -> None:
    """Mount a read-only /sys that contains only what common tools need. Sandboxes share it."""
    kernel.mount("sysfs", "sys", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC, "mode=755,size=64k")
    os.makedirs("sys/fs/cgroup")
    for name in _VISIBLE_SYS_PATHS:
        if os.path.isdir(f"/sys/{name}"):
            os.makedirs(f"sys/{name}")
            kernel.bind(f"/sys/{name}", f"sys/{name}", recursive=True)
    tree = kernel.clone_mount("sys", recursive=True)
    attributes = (
        kernel.MOUNT_ATTR_RDONLY | kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV | kernel.MOUNT_ATTR_NOEXEC
    )
    kernel.change_mount(tree, attributes, recursive=True)
    kernel.attach_mount(tree, "sys")
    os.close(tree)
