"""Trees with everything that the upper layer of a sandbox can contain, and a comparison of two trees."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
from pathlib import Path

CAPABILITY = struct.pack("<IIIII", 0x0200_0001, 1 << 13, 0, 0, 0)
ACCESS_LIST = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", tag, mode, user)
    for tag, mode, user in ((1, 6, 2**32 - 1), (2, 4, 1234), (4, 4, 2**32 - 1), (16, 4, 2**32 - 1), (32, 0, 2**32 - 1))
)
SPARSE_BYTES = 1 << 40


def fill(root: Path) -> None:
    """Create a tree in an empty directory. Needs root."""
    (root / "etc").mkdir(mode=0o750)
    (root / "etc/shadow").write_text("secret\n")
    os.chmod(root / "etc/shadow", 0o640)
    os.chown(root / "etc/shadow", 0, 42)
    os.chmod(root / "etc", 0o4751)
    os.mknod(root / "etc/removed", stat.S_IFCHR, os.makedev(0, 0))
    os.link(root / "etc/removed", root / "etc/also-removed")  # overlay shares the inodes of whiteouts
    (root / ".wh.literal").write_text("not a whiteout")
    for name, attribute, value in (
        ("opaque", "trusted.overlay.opaque", b"y"),
        ("renamed", "trusted.overlay.redirect", b"/usr/lib/old name"),
        ("copied", "trusted.overlay.origin", b"\0\xfb!machine"),
    ):
        (root / name).mkdir()
        os.setxattr(root / name, attribute, value)
    (root / "opaque/inner").write_text("x")
    (root / "program").write_bytes(os.urandom(300_000))
    os.chown(root / "program", 1000, 65535)  # before its mode: chown clears set-user-id
    os.chmod(root / "program", 0o6755)
    os.setxattr(root / "program", "security.capability", CAPABILITY)
    os.setxattr(root / "program", "user.binary", bytes(range(256)))
    os.setxattr(root / "program", "user.odd=100%=x", b"\n21 hdrcharset=BINARY\n")
    os.setxattr(root / "program", "user.overlay.opaque", b"y")  # of a nested overlay
    os.setxattr(root / "etc/shadow", "system.posix_acl_access", ACCESS_LIST)
    os.link(root / "program", root / "zlink")
    os.symlink("../outside", root / "link")
    os.chown(root / "link", 7, 8, follow_symlinks=False)
    os.symlink("target", root / "link-one")
    os.link(root / "link-one", root / "link-two", follow_symlinks=False)
    os.mkfifo(root / "pipe", 0o620)
    with (root / "sparse").open("wb") as file:
        file.seek(1 << 30)
        file.write(b"middle")
        file.truncate(SPARSE_BYTES)
    with (root / "sparse-start").open("wb") as file:
        file.write(b"start" * 1000)
        file.truncate(1 << 20)
    (root / "empty").touch()
    (root / os.fsdecode(b"latin-\xff\n")).write_text("odd name")
    deep = root
    for number in range(150):
        deep = deep / f"{number:03}"
        deep.mkdir()
    (deep / "bottom").write_text("deep")
    (root / ("n" * 255)).write_text("long name")
    for number, path in enumerate(sorted(root.rglob("*"), reverse=True)):
        os.utime(path, ns=(0, 1_700_000_000_123_456_789 + number * 1_000_000_007), follow_symlinks=False)
    os.utime(root / "empty", ns=(0, -1_500_000_000))
    os.chmod(root, 0o711)
    os.utime(root, ns=(0, 1_600_000_000_000_000_001))


def describe(root: Path) -> dict[str, tuple[object, ...]]:
    """Return everything about a tree that a sandbox can notice."""
    found = {}
    inodes: dict[int, list[str]] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        name = str(path.relative_to(root))
        ignored = ("trusted.overlay.origin", "trusted.overlay.impure", "trusted.overlay.uuid", "security.selinux")
        names = sorted(set(os.listxattr(path, follow_symlinks=False)) - set(ignored))
        xattrs = tuple((item, os.getxattr(path, item, follow_symlinks=False)) for item in names)
        content: object = None
        if stat.S_ISREG(status.st_mode):
            content = hash_data(path)
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        if not stat.S_ISDIR(status.st_mode) and not stat.S_ISCHR(status.st_mode):
            inodes.setdefault(status.st_ino, []).append(name)
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        mtime = None if stat.S_ISCHR(status.st_mode) else status.st_mtime_ns
        mode = stat.S_IFMT(status.st_mode) if stat.S_ISCHR(status.st_mode) else status.st_mode
        found[name] = (mode, status.st_uid, status.st_gid, status.st_rdev, size, mtime, xattrs, content)
    found["hard links"] = tuple(sorted(tuple(names) for names in inodes.values() if len(names) > 1))
    return found


def hash_data(path: Path) -> str:
    """Return a hash of a file's parts that are not zeros, with their places."""
    result = hashlib.sha256()
    with path.open("rb") as file:
        offset, size = 0, path.stat().st_size
        while offset < size:
            try:
                offset = os.lseek(file.fileno(), offset, os.SEEK_DATA)
            except OSError:
                break
            end = os.lseek(file.fileno(), offset, os.SEEK_HOLE)
            data = os.pread(file.fileno(), end - offset, offset)
            if data.strip(b"\0"):
                result.update(f"{offset} {data.strip(chr(0).encode())!r}".encode())
            offset = end
    return result.hexdigest()
