"""Start another program with fewer privileges. Root runs this program first.

    python3 -I -S stepdown.py ORDER PROGRAM ARGUMENT…

ORDER is JSON: `uid`, `gid`; `shown`: directories that the program needs even if they are inside an inaccessible one (a checkout below
/root), true for those it writes to; `sealed`: the only directory, or none (""), that it may write to at all; `listen`: host and port of
a socket whose descriptor it gets as SANDYARD_LISTENER. The program has no supplementary groups and no capabilities, and the programs it
starts cannot gain any. Uses only the standard library, because it is run as a file.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

CLONE_NEWNS, MNT_DETACH = 0x20000, 2
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 1, 2, 4, 32, 4096, 16384, 1 << 19
MOUNT_SETATTR, AT_FDCWD, AT_RECURSIVE = 442, -100, 0x8000
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4
CAPABILITY_VERSION_3 = 0x20080522
LAST_CAPABILITY = 63
BACKLOG = 4096

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    order: dict[str, Any] = json.loads(sys.argv[1])
    program = sys.argv[2:]
    uid, gid = int(order["uid"]), int(order["gid"])
    try:
        if (sealed := order.get("sealed")) is not None:
            make_read_only(sealed)
        if (address := order.get("listen")) is not None:
            os.environ["SANDYARD_LISTENER"] = str(open_listener(*address))
        make_accessible(order.get("shown", {}), uid, gid)
        check_readable(order.get("shown", {}), uid, gid)
        drop_privileges(uid, gid)
        os.execvpe(program[0], program, os.environ)  # noqa: S606 - replaces this process
    except OSError as error:
        sys.stderr.write(f"Could not start {program[0]} as user {uid}: {error.strerror}: {error.filename or ''}\n")
        sys.exit(126)


def open_listener(host: str, port: int) -> int:
    """Return the descriptor of a socket that listens on a port reserved for root."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener.detach()


def drop_privileges(uid: int, gid: int) -> None:
    """Drop all privileges permanently, for this process and everything it starts."""
    for number in range(LAST_CAPABILITY + 1):
        _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for capabilities unknown to the kernel
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _check_result(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capabilities")
    _check_result(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def make_accessible(shown: dict[str, bool], uid: int, gid: int) -> None:
    """Make the directories accessible. If the user cannot reach one of them, a new mount namespace is created in which the inaccessible
    parent directory is covered by an empty one that contains only what is shown, at the same paths."""
    paths = sorted(shown, key=len)
    if all(_find_closed_parent(path, uid, gid) is None for path in paths):
        return
    _create_mount_namespace()
    _detach_loop_mounts(paths)
    descriptors = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths
    }  # opened in the new namespace: only such descriptors can be bound
    for path in paths:
        while (closed_parent := _find_closed_parent(path, uid, gid)) is not None:
            _mount(b"tmpfs", closed_parent, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=1m")
            for other, descriptor in descriptors.items():
                if other.startswith(f"{closed_parent}/"):
                    _bind(descriptor, other, writable=shown[other])
    for descriptor in descriptors.values():
        os.close(descriptor)


def check_readable(shown: dict[str, bool], uid: int, gid: int) -> None:
    """Raise PermissionError for what the user cannot read, such as a checkout made with a strict umask."""
    with _impersonate(uid, gid):
        for path in shown:
            if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0), effective_ids=True):  # noqa: PTH112
                raise PermissionError(errno.EACCES, "not readable; fix it with `chmod -R go+rX`", path)


def make_read_only(writable: str) -> None:
    """Make everything read-only except below that directory. If the kernel does not permit it, nothing is changed."""
    try:
        _create_mount_namespace()
        if writable:
            _mount(writable.encode(), writable, None, MS_BIND)
        _set_attributes("/", AT_RECURSIVE, MS_RDONLY | MS_NOSUID, 0)
        if writable:
            _set_attributes(writable, 0, MS_NOSUID, MS_RDONLY)
    except OSError:
        return


def _find_closed_parent(path: str, uid: int, gid: int) -> str | None:
    """Return the first parent directory that this user cannot traverse, or None."""
    with _impersonate(uid, gid):
        parent = ""
        for name in path.strip("/").split("/")[:-1]:
            parent += f"/{name}"
            if not os.access(parent, os.X_OK, effective_ids=True):
                return parent
    return None


@contextmanager
def _impersonate(uid: int, gid: int) -> Iterator[None]:
    groups = os.getgroups()
    os.setgroups([])
    os.setegid(gid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(groups)


def _bind(descriptor: int, path: str, *, writable: bool) -> None:
    folder = os.path.isdir(f"/proc/self/fd/{descriptor}")  # noqa: PTH112
    old = os.umask(0o022)
    try:
        os.makedirs(path if folder else os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
        if not folder and not os.path.exists(path):  # noqa: PTH110
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))
    except OSError:
        if not os.path.exists(path):  # noqa: PTH110 - otherwise it is already visible inside a read-only directory
            raise
    finally:
        os.umask(old)
    _mount(f"/proc/self/fd/{descriptor}".encode(), path, None, MS_BIND | MS_REC)
    if not writable:
        _mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _create_mount_namespace() -> None:
    _check_result(_libc.unshare(CLONE_NEWNS), "a mount namespace")
    _mount(None, "/", None, MS_REC | MS_SLAVE)  # do not keep alive what is unmounted outside


def _detach_loop_mounts(needed: list[str]) -> None:
    """Unmount loop devices, such as the engine's store: mounts held here could not be detached where nothing is propagated."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as listing:  # noqa: PTH123
        mounts = [line.split() for line in listing]
    for words in reversed(mounts):
        point = words[4].replace("\\040", " ")
        source = words[words.index("-") + 2]
        if source.startswith("/dev/loop") and not any(f"{path}/".startswith(f"{point}/") for path in needed):
            _libc.umount2(os.fsencode(point), MNT_DETACH)


def _mount(source: bytes | None, target: str, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _check_result(_libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data), target)


def _set_attributes(path: str, flags: int, added: int, removed: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(added, removed, 0, 0)
    words = (ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(32))
    _check_result(_libc.syscall(*words), path)


def _check_result(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main()
