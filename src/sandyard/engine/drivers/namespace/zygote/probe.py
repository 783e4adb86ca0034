"""Find out how this kernel accepts a sandbox's layers, by mounting some."""

from __future__ import annotations

import os

from sandyard.engine.drivers.machine import kernel
from sandyard.engine.drivers.machine.store import trees
from sandyard.engine.drivers.namespace.zygote import script, userns
from sandyard.engine.drivers.namespace.zygote.rootfs import ROOT, RootFs
from sandyard.engine.drivers.namespace.zygote.zygote_root import ZygoteRoot

_TEST_FOLDER = "/store/probe"
_ANY_UID = 0x7000_0000


def find_working_root(zygote_root: ZygoteRoot) -> tuple[RootFs | None, str | None]:
    """Return a `RootFs` that works here, or the reason why there is none. Mounts in a separate namespace, and leaves
    nothing."""
    problem = None
    uid, ids = (0, 1) if zygote_root.rootless else (_ANY_UID, 65_536)
    userns_fd = userns.create(uid, ids)
    for attach in (False, True):
        root = RootFs(zygote_root, attach=attach)
        reader, writer = os.pipe2(os.O_CLOEXEC)
        pid, pidfd = kernel.clone(kernel.CLONE_NEWNS | kernel.CLONE_NEWPID)
        if pid == 0:
            os.write(writer, (_try_mounts(root, uid, userns_fd) or "").encode()[:500])
            os._exit(0)
        os.close(writer)
        os.waitpid(pid, 0)
        os.close(pidfd)
        problem = os.read(reader, 600).decode(errors="replace")
        os.close(reader)
        if not problem:
            os.close(userns_fd)
            return root, None
    os.close(userns_fd)
    return None, problem


def _try_mounts(root: RootFs, uid: int, userns_fd: int) -> str | None:
    try:
        trees.remove_tree(_TEST_FOLDER)
        for name in ("lower/proc", "lower/sys", "lower/dev", "upper", "work"):
            os.makedirs(f"{_TEST_FOLDER}/{name}")
        script.run(
            [*root.make_open_steps(_TEST_FOLDER), *root.make_steps([f"{_TEST_FOLDER}/lower"], uid, userns_fd, 1 << 20)]
        )
        if os.statvfs(ROOT).f_flag & os.ST_RDONLY:
            return "overlay can't write to its upper directory"
        kernel.unmount(os.fsdecode(ROOT), kernel.MNT_DETACH)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        trees.remove_tree(_TEST_FOLDER)
    return None
