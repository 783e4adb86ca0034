"""A sandbox's root file system, mounted by its first process in its own mount namespace while it has all privileges.

Layers and the writable directory have plain ids (0 to 65535) on disk. The overlay sees each through an idmapped mount
that maps them to the sandbox's own range, so that any sandbox can use any layer. Without root there is no such mapping,
and none is needed: all sandboxes share the ids of one user.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Sequence

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.kernel import libc
from sandyard.engine.drivers.namespace.zygote.script import Step
from sandyard.engine.drivers.namespace.zygote.zygote_root import CONTAINER_DEVICES, DEVICES, ZygoteRoot

ROOT = b"/root"
FIRST_LAYER_FD, MAX_LAYERS = 4, 120  # descriptors that the zygote keeps free for its children
_TTY_GROUP = 5
_MAX_TERMINALS = 64  # per sandbox; the machine has 4096 for all, of which 1024 are reserved for itself
# Files in /dev/shm: no cgroup accounts for their access lists, 4 KiB with the largest that seccomp allows.
_MAX_SHM_FILES = 16_384
_SAFE_FLAGS = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
_READ_ONLY = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | _SAFE_FLAGS
_OPEN_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_CLONE = kernel.OPEN_TREE_CLONE | os.O_CLOEXEC
_LAST_LAYER_FD = FIRST_LAYER_FD + MAX_LAYERS - 1
_ROOT_PURPOSE, _DEVICES_PURPOSE, _SYSTEM_PURPOSE = (
    "make its root file system",
    "make its devices",
    "mount its system directories",
)

CLOSE_LAYERS: Step = (libc.syscall, (kernel.SYS_CLOSE_RANGE, FIRST_LAYER_FD, _LAST_LAYER_FD, 0), _ROOT_PURPOSE)

# redirect_dir lets rename() of a directory of the image work. No metacopy, no index, no xino: layers are moved, copied
# and stacked again while nothing is mounted, and none of these three survives that. volatile: fsync() in a sandbox does
# not wait for the disk and, more importantly, the end of one sandbox does not wait until everything that all others
# wrote is on disk. Data survives every crash except that of the machine, which may lose the last seconds.
_OPTIONS = "redirect_dir=on,metacopy=off,index=off,xino=off,volatile"
# No redirects without root: renaming a directory of the image fails with EXDEV.
_OPTIONS_ROOTLESS = "userxattr,index=off,xino=off,volatile"


class RootFs:
    """Prepares the steps to create roots. One for all sandboxes: what is the same for all of them is prepared once.

    `attach`: this kernel accepts layers only if they are mounted somewhere in the namespace; newer ones accept detached
    layers, which is faster.
    """

    def __init__(self, zygote_root: ZygoteRoot, *, attach: bool) -> None:
        self.rootless = zygote_root.rootless
        self._attach = attach and not zygote_root.rootless
        self.capabilities = kernel.make_capset_arguments(kernel.get_effective_capabilities())
        self._device_steps = [*_make_device_steps(zygote_root)]
        self._system_steps = [*_make_system_steps(zygote_root)]

    def make_open_steps(self, path: str) -> list[Step]:
        """Return the first steps, the only ones that differ between sandboxes: `path` contains `upper` and `work`."""
        return [CLOSE_LAYERS, self._make_open_step(path)]

    def _make_open_step(self, path: str) -> Step:
        if self.rootless:
            return libc.open, (os.fsencode(path), _OPEN_DIRECTORY), _ROOT_PURPOSE
        return libc.syscall, (kernel.SYS_OPEN_TREE, kernel.AT_FDCWD, os.fsencode(path), _CLONE), _ROOT_PURPOSE

    def make_steps(self, layers: Sequence[str], uid: int, userns_fd: int, shm_bytes: int) -> list[Step]:
        """Return the remaining steps. `uid` is the sandbox's root in the current user namespace, and `userns_fd` maps
        ids to it."""
        tty = "" if self.rootless else f",gid={uid + _TTY_GROUP}"
        pts = f"newinstance,ptmxmode=0666,mode=620,max={_MAX_TERMINALS}{tty}".encode()
        shm = f"mode=1777,size={shm_bytes},nr_inodes={_MAX_SHM_FILES}".encode()
        return [
            *self._make_overlay_steps(layers, uid, userns_fd),
            *self._device_steps,
            _make_mount_step(b"devpts", b"/dev/pts", b"devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, pts),
            _make_mount_step(b"shm", b"/dev/shm", b"tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, shm),
            *([] if self.rootless else [(libc.setfsuid, (0,), _ROOT_PURPOSE), (libc.setfsgid, (0,), _ROOT_PURPOSE)]),
            *self._system_steps,
        ]

    def _make_overlay_steps(self, layers: Sequence[str], uid: int, userns_fd: int) -> list[Step]:
        if len(layers) >= MAX_LAYERS:
            raise OSError(errno.E2BIG, f"use more than {MAX_LAYERS - 1} layers")
        count = len(layers) + 1
        steps = [self._make_open_step(path) for path in layers]  # each gets the lowest free descriptor
        names = [f"/proc/self/fd/{FIRST_LAYER_FD + number}" for number in range(count)]
        attributes = kernel.make_mount_attributes(0, userns_fd)
        for number in range(0 if self.rootless else count):
            fd = FIRST_LAYER_FD + number
            idmap = (kernel.SYS_MOUNT_SETATTR, fd, b"", kernel.AT_EMPTY_PATH, attributes, len(attributes))
            steps.append((libc.syscall, idmap, f"{_ROOT_PURPOSE} on mapped ids"))
            if self._attach:
                names[number] = f"/stack/{number}"
                target = (kernel.AT_FDCWD, names[number].encode(), kernel.MOVE_MOUNT_F_EMPTY_PATH)
                steps.append((libc.syscall, (kernel.SYS_MOVE_MOUNT, fd, b"", *target), _ROOT_PURPOSE))
        top, *lower = names
        options = _OPTIONS_ROOTLESS if self.rootless else _OPTIONS
        data = f"lowerdir={':'.join(lower)},upperdir={top}/upper,workdir={top}/work,{options}"
        if not self.rootless:
            # Overlay accesses its layers as the user who mounted it, and the host's root does not exist on an idmapped
            # mount. With another file system id the kernel removes some capabilities, which are then restored.
            steps += [
                (libc.setfsgid, (uid,), _ROOT_PURPOSE),
                (libc.setfsuid, (uid,), _ROOT_PURPOSE),
                (libc.capset, self.capabilities, _ROOT_PURPOSE),
            ]
        steps.append((libc.mount, (b"sandyard", ROOT, b"overlay", kernel.MS_NODEV, data.encode()), _ROOT_PURPOSE))
        return [*steps, CLOSE_LAYERS]


def _make_mount_step(source: bytes, below: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> Step:
    return libc.mount, (source, ROOT + below, kind, flags, data), _SYSTEM_PURPOSE


def _make_device_steps(zygote_root: ZygoteRoot) -> list[Step]:
    """Return the steps for /dev, all of it owned by its creator."""
    steps: list[Step] = [
        _make_mount_step(b"tmpfs", b"/dev", b"tmpfs", kernel.MS_NOSUID, b"mode=755,size=64k,nr_inodes=64")
    ]
    steps.append((libc.umask, (0,), _DEVICES_PURPOSE))
    for name, numbers in DEVICES.items():
        path = ROOT + b"/dev/" + name.encode()
        if zygote_root.rootless:
            steps.append((libc.mknod, (path, stat.S_IFREG | 0o666, 0), _DEVICES_PURPOSE))
            steps.append((libc.mount, (b"/dev/" + name.encode(), path, None, kernel.MS_BIND, None), _DEVICES_PURPOSE))
        else:
            steps.append((libc.mknod, (path, stat.S_IFCHR | 0o666, os.makedev(*numbers)), _DEVICES_PURPOSE))
    steps.append((libc.umask, (0o022,), _DEVICES_PURPOSE))
    links = {b"fd": b"", b"stdin": b"/0", b"stdout": b"/1", b"stderr": b"/2"}
    for link, target in links.items():
        steps.append((libc.symlink, (b"/proc/self/fd" + target, ROOT + b"/dev/" + link), _DEVICES_PURPOSE))
    steps.append((libc.symlink, (b"pts/ptmx", ROOT + b"/dev/ptmx"), _DEVICES_PURPOSE))
    return [*steps, *((libc.mkdir, (ROOT + folder, 0o755), _DEVICES_PURPOSE) for folder in (b"/dev/pts", b"/dev/shm"))]


def _make_system_steps(zygote_root: ZygoteRoot) -> list[Step]:
    """Return the steps for /proc with sensitive parts covered, and /sys."""
    return [
        _make_mount_step(b"proc", b"/proc", b"proc", _SAFE_FLAGS),
        *(
            _make_mount_step(cover.encode(), b"/proc/" + name.encode(), None, kernel.MS_BIND)
            for name, cover in zygote_root.hidden
        ),
        _make_mount_step(ROOT + b"/proc/sys", b"/proc/sys", None, kernel.MS_BIND),
        _make_mount_step(b"none", b"/proc/sys", None, _READ_ONLY),
        _make_mount_step(b"/sys", b"/sys", None, kernel.MS_BIND | kernel.MS_REC),
    ]


def make_container_steps() -> list[Step]:
    """Return the steps for what a container engine needs: the devices of its network and of its file systems, and a /proc
    and a /sys without covers.

    The kernel lets a user namespace mount its own /proc and /sys only if there already is one that shows everything.
    These are not reachable by any path: a directory is mounted over them.
    """
    purpose, hidden = "prepare it for containers", ROOT + b"/dev/mounts"
    steps: list[Step] = [(libc.umask, (0,), purpose), (libc.mkdir, (ROOT + b"/dev/net", 0o755), purpose)]
    for name, numbers in CONTAINER_DEVICES.items():
        path = ROOT + b"/dev/" + name.encode()
        steps.append((libc.mknod, (path, stat.S_IFCHR | 0o666, os.makedev(*numbers)), purpose))
    cover = (b"none", hidden, b"tmpfs", _SAFE_FLAGS | kernel.MS_RDONLY, b"mode=0,size=4k,nr_inodes=8")
    return [
        *steps,
        (libc.umask, (0o022,), purpose),
        (libc.mkdir, (hidden, 0o700), purpose),
        (libc.mount, (b"none", hidden, b"tmpfs", _SAFE_FLAGS, b"mode=700,size=4k,nr_inodes=8"), purpose),
        (libc.mkdir, (hidden + b"/proc", 0o700), purpose),
        (libc.mkdir, (hidden + b"/sys", 0o700), purpose),
        (libc.mount, (b"proc", hidden + b"/proc", b"proc", _SAFE_FLAGS, None), purpose),
        (libc.mount, (b"sysfs", hidden + b"/sys", b"sysfs", _SAFE_FLAGS, None), purpose),
        (libc.mount, cover, purpose),
    ]


def write_boot_id(slot: int) -> None:
    """Write a sandbox's boot id, by which programs detect a reboot. A sandbox has its own, from start to stop: a file
    on the zygote's own tmpfs. It keeps its name, because a mount of a file without one could not be restored from
    disk."""
    path = _get_boot_id_path(slot)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # of the slot's previous sandbox
    digits = os.urandom(16).hex()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444)
    try:
        os.write(fd, "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:] + "\n")).encode())
    finally:
        os.close(fd)


def make_boot_id_steps(slot: int) -> list[Step]:
    target = b"/proc/sys/kernel/random/boot_id"
    return [_make_mount_step(_get_boot_id_path(slot), target, None, kernel.MS_BIND)]


def _get_boot_id_path(slot: int) -> bytes:
    return b"/boot_id.%d" % slot


def make_cgroup_step() -> Step:
    """Return the step that shows a sandbox's own limits, read-only, if cgroup2 has them: runtimes size their heaps and
    thread pools by them."""
    return _make_mount_step(b"cgroup2", b"/sys/fs/cgroup", b"cgroup2", _SAFE_FLAGS | kernel.MS_RDONLY)


def make_enter_steps() -> list[Step]:
    """Return the steps that make the finished root the root of this mount namespace, and detach everything else."""
    purpose = "enter its root file system"
    return [
        (libc.chdir, (ROOT,), purpose),
        (libc.syscall, (kernel.SYS_PIVOT_ROOT, b".", b"."), purpose),
        (libc.umount2, (b".", kernel.MNT_DETACH), purpose),
        (libc.chdir, (b"/",), purpose),
    ]
