"""Volumes in a sandbox: directories of the store, mounted in its root file system.

Each is opened before the sandbox's root is entered, where the store is visible, and attached after that, where a path
can only lead into the sandbox: what its template or snapshot put there is not trusted, especially symbolic links.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.kernel import libc
from sandyard.engine.drivers.machine.mount_targets import OPEN_DIRECTORY, open_target
from sandyard.engine.drivers.namespace.zygote.rootfs import CLOSE_LAYERS, FIRST_LAYER_FD
from sandyard.engine.drivers.namespace.zygote.script import Step

Volumes = Sequence[tuple[str, str, bool]]  # path in the zygote's root, path in the sandbox, whether it is read-only

_MOVE_MOUNT_T_EMPTY_PATH = 0x40
_PURPOSE = "mount its volumes"


def make_open_steps(volumes: Volumes, userns_fd: int, *, rootless: bool) -> list[Step]:
    """Return the steps that copy the mounts, with ids mapped to the sandbox's own range, into the lowest free
    descriptors."""
    steps: list[Step] = []
    clone = kernel.OPEN_TREE_CLONE | os.O_CLOEXEC
    for number, (source, _, read_only) in enumerate(volumes):
        fd = FIRST_LAYER_FD + number
        wanted = kernel.MOUNT_ATTR_NOSUID | kernel.MOUNT_ATTR_NODEV | (kernel.MOUNT_ATTR_RDONLY if read_only else 0)
        attributes = kernel.make_mount_attributes(wanted, -1 if rootless else userns_fd)
        change = (kernel.SYS_MOUNT_SETATTR, fd, b"", kernel.AT_EMPTY_PATH, attributes, len(attributes))
        steps.append((libc.syscall, (kernel.SYS_OPEN_TREE, kernel.AT_FDCWD, os.fsencode(source), clone), _PURPOSE))
        steps.append((libc.syscall, change, _PURPOSE))
    return steps


def make_attach_steps(volumes: Volumes, uid: int, capabilities: tuple[bytes, bytes], *, rootless: bool) -> list[Step]:
    """Return the steps that attach them in the sandbox's root. `uid` is its root, which will own missing
    directories."""
    if not volumes:
        return []
    become_owner: list[Step] = [(libc.setfsgid, (uid,), _PURPOSE), (libc.setfsuid, (uid,), _PURPOSE)]
    become_owner.append((libc.capset, capabilities, _PURPOSE))  # with another file system id the kernel removed some
    become_root: list[Step] = [(libc.setfsuid, (0,), _PURPOSE), (libc.setfsgid, (0,), _PURPOSE)]
    attach: list[Step] = [
        (_attach, (FIRST_LAYER_FD + number, target), f"mount a volume on {target}")
        for number, (_, target, _) in enumerate(volumes)
    ]
    return [*([] if rootless else become_owner), *attach, *([] if rootless else become_root), CLOSE_LAYERS]


def _attach(fd: int, target: str) -> int:
    root = os.open("/", OPEN_DIRECTORY)
    target_fd = open_target(root, target)
    os.close(root)
    if target_fd < 0:
        return -1
    flags = kernel.MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH
    done: int = libc.syscall(kernel.SYS_MOVE_MOUNT, fd, b"", target_fd, b"", flags)
    os.close(target_fd)
    return done
