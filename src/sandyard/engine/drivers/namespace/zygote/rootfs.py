"""A sandbox's root file system, mounted by its first process in its own mount namespace while that still has all privileges.

Layers and the writable directory keep plain ids (0 to 65535) on the disk. Each is shown to the overlay through an idmapped mount
that turns them into the sandbox's own range, so that any sandbox can stand on any layer. Without root there is no such mapping,
and none is needed: all sandboxes share the ids of one user.
"""

# ruff: noqa: PTH (plain os calls: this runs in every create)

from __future__ import annotations

import contextlib
import errno
import os
import stat

from sandyard.engine.drivers.namespace import kernel
from sandyard.engine.drivers.namespace.zygote.home import DEVICES, Home

ROOT = "/root"
_TTY_GROUP = 5
_QUIET = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC

# redirect_dir lets rename() of a directory of the image work. No metacopy, no index, no xino: layers are moved, copied and
# stacked anew while nothing is mounted, and none of these three survives that.
_OPTIONS = "redirect_dir=on,metacopy=off,index=off,xino=off"
_OPTIONS_ROOTLESS = (
    "userxattr,index=off,xino=off"  # redirects need trusted xattrs: rename() of an image's directory is EXDEV
)


def mount_overlay(layers: list[str], writable: str, uid: int, userns_fd: int, *, attach: bool) -> None:
    """`writable` holds `upper` and `work`. Ids are mapped by `userns_fd`, where `uid` is root; rootless (< 0) they are not.
    `attach`: this kernel accepts layers only when they are mounted somewhere in the namespace; newer ones take them
    detached, which is quicker."""
    rootless = userns_fd < 0
    opened = [_open_layer(path, userns_fd) for path in (*layers, writable)]
    names = [f"/proc/self/fd/{fd}" for fd in opened]
    if attach and not rootless:
        for number, fd in enumerate(opened):
            names[number] = f"/stack/{number}"
            os.makedirs(names[number], exist_ok=True)
            kernel.attach_mount(fd, names[number])
    *lower, top = names
    options = _OPTIONS_ROOTLESS if rootless else _OPTIONS
    data = f"lowerdir={':'.join(lower)},upperdir={top}/upper,workdir={top}/work,{options}"
    # Overlay acts on its layers as who mounted it, and the host's root does not exist on an idmapped mount.
    with contextlib.nullcontext() if rootless else kernel.file_owner(uid):
        kernel.mount("sandyard", ROOT, "overlay", kernel.MS_NODEV, data)
    for fd in opened:
        os.close(fd)
    if os.statvfs(ROOT).f_flag & os.ST_RDONLY:  # it does not call that an error
        raise OSError(errno.EROFS, "overlay can't write to its upper directory")


def _open_layer(path: str, userns_fd: int) -> int:
    if userns_fd < 0:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    fd = kernel.clone_mount(path)
    kernel.set_mount(fd, 0, userns_fd=userns_fd)
    return fd


class System:
    """/proc, /dev and /sys of sandboxes. Made once by the zygote, which converts everything that is the same for all of them."""

    def __init__(self, home: Home) -> None:
        proc, dev = f"{ROOT}/proc", f"{ROOT}/dev"
        call, bind = kernel.mount_call, kernel.MS_BIND
        self.rootless = home.rootless
        self._static = [
            call("proc", proc, "proc", _QUIET),
            *(call(cover, f"{proc}/{name}", None, bind) for name, cover in home.hidden),
            call(f"{proc}/sys", f"{proc}/sys", None, bind),
            call("none", f"{proc}/sys", None, bind | kernel.MS_REMOUNT | kernel.MS_RDONLY | _QUIET),
            call("/sys", f"{ROOT}/sys", None, bind | kernel.MS_REC),
        ]
        # Its own limits, read-only: runtimes size their heaps and thread pools by them.
        self._cgroup2 = [call("cgroup2", f"{ROOT}/sys/fs/cgroup", "cgroup2", _QUIET | kernel.MS_RDONLY)]
        self._bound_devices = (
            [call(f"/dev/{name}", f"{dev}/{name}", None, bind) for name in DEVICES] if home.rootless else []
        )
        self._nodes = [(f"{dev}/{name}", os.makedev(*numbers)) for name, numbers in DEVICES.items()]
        links = {
            "fd": "/proc/self/fd",
            "stdin": "/proc/self/fd/0",
            "stdout": "/proc/self/fd/1",
            "stderr": "/proc/self/fd/2",
        }
        self._links = [(target, f"{dev}/{name}") for name, target in {**links, "ptmx": "pts/ptmx"}.items()]

    def mount(self, name: str, uid: int, shm_bytes: int, *, cgroup2: bool) -> None:
        """`name` is nobody else's; `uid` is where the sandbox's ids begin, as the current user namespace counts."""
        kernel.mount_all(self._static)
        _mount_boot_id(name)
        if cgroup2:
            kernel.mount_all(self._cgroup2)
        dev, owner = f"{ROOT}/dev", f"uid={uid},gid={uid}"
        kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, f"mode=755,size=64k,{owner}")
        for path, device in self._nodes:
            if self.rootless:
                os.mknod(path, 0o666 | stat.S_IFREG)
            else:
                os.mknod(path, 0o666 | stat.S_IFCHR, device)
                os.chmod(path, 0o666)  # noqa: S103 - /dev/null and its like are for everybody
                os.chown(path, uid, uid)
        kernel.mount_all(self._bound_devices)
        for target, path in self._links:
            os.symlink(target, path)
        os.mkdir(f"{dev}/pts", 0o755)
        os.mkdir(f"{dev}/shm", 0o755)
        tty = "" if self.rootless else f",gid={uid + _TTY_GROUP}"
        devpts = f"newinstance,ptmxmode=0666,mode=620{tty}"
        kernel.mount("devpts", f"{dev}/pts", "devpts", kernel.MS_NOSUID | kernel.MS_NOEXEC, devpts)
        shm = f"mode=1777,size={shm_bytes},{owner}"
        kernel.mount("shm", f"{dev}/shm", "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, shm)


def _mount_boot_id(name: str) -> None:
    """Programs tell by its boot id whether a machine was started anew. A sandbox has its own, from start to stop.

    The file lies on the zygote's own tmpfs, without a name as soon as it is mounted."""
    path = f"/boot_id.{name}"
    digits = os.urandom(16).hex()
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o444)
    os.write(fd, f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}\n".encode())
    os.close(fd)
    kernel.bind(path, f"{ROOT}/proc/sys/kernel/random/boot_id")
    os.unlink(path)
