"""A program that root starts in front of another one, which then runs as somebody who may do less.

    python3 -I -S stepdown.py ORDER PROGRAM ARGUMENT…

ORDER is JSON: `uid`, `gid`; `shown`: folders that the program needs though a closed folder (a checkout below /root) may lie above them,
true for those it writes to; `sealed`: the one folder, or none (""), that it may write to at all; `listen`: host and port of a socket
whose number it is told as SANDYARD_LISTENER. The program has no supplementary groups, no capabilities, and gains none by what it
starts. Standard library only: it is run as a file.
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
            seal(sealed)
        if (where := order.get("listen")) is not None:
            os.environ["SANDYARD_LISTENER"] = str(listening(*where))
        show(order.get("shown", {}), uid, gid)
        check(order.get("shown", {}), uid, gid)
        drop(uid, gid)
        os.execvpe(program[0], program, os.environ)  # noqa: S606 - it takes our place
    except OSError as error:
        sys.stderr.write(f"{program[0]} cannot be started as user {uid}: {error.strerror}: {error.filename or ''}\n")
        sys.exit(126)


def listening(host: str, port: int) -> int:
    """A socket at a port that only root may have; the program gets its number."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(address)
    listener.listen(BACKLOG)
    listener.set_inheritable(True)
    return listener.detach()


def drop(uid: int, gid: int) -> None:
    """For good: this process and all it starts are that user, alone, and nothing more."""
    for number in range(LAST_CAPABILITY + 1):
        _libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)  # fails for those the kernel does not know
    _libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0)
    _checked(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capabilities")
    _checked(_libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def show(shown: dict[str, bool], uid: int, gid: int) -> None:
    """In a mount namespace of its own, which is made where the user would not get to one of them: the closed folder above it is
    covered by an empty one, in which nothing is but what is shown, under its own name."""
    paths = sorted(shown, key=len)
    if all(_closed_above(path, uid, gid) is None for path in paths):
        return
    _separate()
    _let_go(paths)
    held = {
        path: os.open(path, os.O_PATH | os.O_CLOEXEC) for path in paths
    }  # of the new namespace: only those can be bound
    for path in paths:
        while (closed := _closed_above(path, uid, gid)) is not None:
            _mount(b"tmpfs", closed, b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=1m")
            for other, descriptor in held.items():
                if other.startswith(f"{closed}/"):
                    _bind(descriptor, other, writable=shown[other])
    for descriptor in held.values():
        os.close(descriptor)


def check(shown: dict[str, bool], uid: int, gid: int) -> None:
    """PermissionError names what the user cannot read: a checkout made with a strict umask."""
    with _as(uid, gid):
        for path in shown:
            if not os.access(path, os.R_OK | (os.X_OK if os.path.isdir(path) else 0), effective_ids=True):  # noqa: PTH112
                raise PermissionError(errno.EACCES, "it cannot be read; `chmod -R go+rX` changes that", path)


def seal(writable: str) -> None:
    """Nothing can be written but below that folder. Where the kernel does not let us, everything stays as it was."""
    try:
        _separate()
        if writable:
            _mount(writable.encode(), writable, None, MS_BIND)
        _set_attributes("/", AT_RECURSIVE, MS_RDONLY | MS_NOSUID, 0)
        if writable:
            _set_attributes(writable, 0, MS_NOSUID, MS_RDONLY)
    except OSError:
        return


def _closed_above(path: str, uid: int, gid: int) -> str | None:
    """The first folder on the way that this user cannot pass through."""
    with _as(uid, gid):
        at = ""
        for name in path.strip("/").split("/")[:-1]:
            at += f"/{name}"
            if not os.access(at, os.X_OK, effective_ids=True):
                return at
    return None


@contextmanager
def _as(uid: int, gid: int) -> Iterator[None]:
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
        if not os.path.exists(path):  # noqa: PTH110 - else it is shown already, as a part of what is read-only
            raise
    finally:
        os.umask(old)
    _mount(f"/proc/self/fd/{descriptor}".encode(), path, None, MS_BIND | MS_REC)
    if not writable:
        _mount(None, path, None, MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV)


def _separate() -> None:
    _checked(_libc.unshare(CLONE_NEWNS), "a mount namespace")
    _mount(None, "/", None, MS_REC | MS_SLAVE)  # what is unmounted outside is not held on to


def _let_go(needed: list[str]) -> None:
    """Of the disks in files, such as the engine's store: held here, they could not be taken down where nothing is propagated."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as listing:  # noqa: PTH123
        mounts = [line.split() for line in listing]
    for words in reversed(mounts):
        point = words[4].replace("\\040", " ")
        source = words[words.index("-") + 2]
        if source.startswith("/dev/loop") and not any(f"{path}/".startswith(f"{point}/") for path in needed):
            _libc.umount2(os.fsencode(point), MNT_DETACH)


def _mount(source: bytes | None, target: str, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
    _checked(_libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), data), target)


def _set_attributes(path: str, flags: int, added: int, removed: int) -> None:
    attributes = (ctypes.c_uint64 * 4)(added, removed, 0, 0)
    words = (ctypes.c_long(MOUNT_SETATTR), AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(32))
    _checked(_libc.syscall(*words), path)


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


if __name__ == "__main__":
    main()
