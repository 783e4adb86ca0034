"""The `host` template: the machine's own programs and libraries with a generated /etc. Needs no download and no
network.

A sandbox sees the machine's /usr (and /bin, /sbin, /lib* if they are not links into it), except files that are not
readable by every user of the machine. It sees nothing of /root, /home, /var, /opt or /srv, and of /etc only public
system tables. On the same file system the tree consists of hard links, which takes a second or two and no space: a
sandbox never writes through them, because its overlay copies a file before changing it. Otherwise files are cloned or
copied.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from sandyard.engine.templates.folder import ROOTFS, TemplateFolder, TemplateVersion, require_space, use_default_umask
from sandyard.engine.templates.host_etc import give_to_user, write_etc, write_homes
from sandyard.engine.templates.sources import os_release

NAME = "host"
FORMAT = 2  # increase it when the output of this module changes
TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
EMPTY = "boot dev media mnt opt proc run srv sys var/cache var/lib var/log var/mail var/spool".split()
LEFT_OUT = frozenset(
    "usr/etc usr/local/etc usr/lib/modules usr/lib/firmware usr/lib/debug usr/src lib/modules lib/firmware".split()
)
"""Settings of this machine, which may contain secrets, and files that only a kernel needs."""
BULKY = frozenset(f"usr/share/{name}" for name in ("doc", "man", "info", "locale", "help", "icons"))
"""Not worth copying if files have to be copied."""
LOCAL = "usr/local/"  # `pip install` and `npm install -g` write here; owned by the user, so that neither needs sudo
LINKS, COPIES = "hard links", "copies"
FICLONE = 0x40049409
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


@dataclass
class Tally:
    """The progress of a build."""

    root: Path
    how: str
    files: int = 0
    hidden: int = 0
    room_checked: bool = False
    copied: dict[int, Path] = field(default_factory=dict)  # by inode, for files with several names


def fingerprint(root: Path = Path("/")) -> str:
    """Return a value that changes with the machine's packages or local programs. Cheap: compares dates, not contents."""
    looked_at = (
        "var/lib/dpkg/status var/lib/rpm usr usr/bin usr/sbin usr/lib usr/local/bin usr/local/lib etc/ld.so.cache"
    )
    seen: list[object] = [FORMAT]
    for path in looked_at.split():
        with contextlib.suppress(OSError):
            found = (root / path).stat()
            seen.append([path, found.st_mtime_ns, found.st_size, found.st_ino])
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:16]


def build(folder: TemplateFolder, root: Path = Path("/")) -> TemplateVersion:
    """Create `host`, or return the version that matches the current machine. Blocks for a second or two if files can be
    linked, for minutes if gigabytes have to be copied; raises NoSpaceError if they would not fit."""
    digest = fingerprint(root)
    if found := folder.find(NAME, digest):
        return found
    with folder.open_build_directory(NAME) as work, use_default_umask():
        if found := folder.find(NAME, digest):
            return found
        tree = work / ROOTFS
        tree.mkdir()
        tree.chmod(0o755)
        tally = _copy_programs(root, tree)
        for path in EMPTY:
            (tree / path).mkdir(parents=True, exist_ok=True)
        for path in ("tmp", "var/tmp"):
            (tree / path).mkdir(parents=True)
            (tree / path).chmod(0o1777)
        (tree / "var/run").symlink_to("/run")
        (tree / "var/lock").symlink_to("/run/lock")
        write_etc(root, tree)
        write_homes(root, tree)
        release = os_release(root).get("PRETTY_NAME", "this machine")
        details = {"release": release, "made of": tally.how, "files": str(tally.files), "hidden": str(tally.hidden)}
        return folder.publish(
            work, folder.make_version(NAME, digest, f"the programs of this machine: {release}", details)
        )


def _copy_programs(root: Path, tree: Path) -> Tally:
    tally = Tally(root, LINKS if _links_work(root, tree) else COPIES)
    for name in TOP:
        source = root / name
        if source.is_symlink():
            (tree / name).symlink_to(source.readlink())
        elif source.is_dir():
            _mirror(source, tree / name, name, tally, source.stat().st_dev)
    return tally


def _mirror(source: Path, target: Path, name: str, tally: Tally, device: int) -> None:
    """Mirror one directory recursively, staying on its file system."""
    info = source.stat()
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            below = f"{name}/{entry.name}"
            status = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(status.st_mode)
            if below in LEFT_OUT or status.st_dev != device or (tally.how == COPIES and below in BULKY):
                continue
            if entry.name == "EXTERNALLY-MANAGED":  # pip may write into a sandbox, because it affects nothing outside
                continue
            if kind == stat.S_IFLNK:
                (target / entry.name).symlink_to(Path(entry.path).readlink())
            elif kind == stat.S_IFDIR and status.st_mode & 0o005 == 0o005:
                _mirror(Path(entry.path), target / entry.name, below, tally, device)
            elif kind == stat.S_IFREG and status.st_mode & 0o004:
                _place(entry.path, target / entry.name, status, tally)
            else:
                tally.hidden += 1
    target.chmod(stat.S_IMODE(info.st_mode))
    if f"{name}/".startswith(LOCAL):
        give_to_user(target)
    else:
        _set_owner(target, info)


def _links_work(root: Path, tree: Path) -> bool:
    """Try it with one file: linking fails across file systems, and for files of other users unless run as root."""
    for path in (root / "usr/bin").iterdir():
        if path.is_file() and not path.is_symlink():
            probe = tree / ".probe"
            try:
                os.link(path, probe, follow_symlinks=False)
            except OSError as error:
                if error.errno in _CANNOT_LINK:
                    return False
                raise
            probe.unlink()
            return True
    return False


def _place(source: str, target: Path, status: os.stat_result, tally: Tally) -> None:
    tally.files += 1
    if tally.how == LINKS:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            if (
                error.errno not in _CANNOT_LINK
            ):  # this file is immutable, has too many links, or is on another file system
                raise
        else:
            return
    if first := tally.copied.get(status.st_ino):  # keep hard links between files
        os.link(first, target)
        return
    if not _clone(source, target):
        if tally.how == COPIES and not tally.room_checked:
            require_space(target.parent, _size_of(tally.root), "A copy of this machine's programs")
            tally.room_checked = True
        shutil.copyfile(source, target)
    _set_owner(target, status)
    target.chmod(stat.S_IMODE(status.st_mode))
    if status.st_nlink > 1:
        tally.copied[status.st_ino] = target


def _size_of(root: Path) -> int:
    """Return the maximum disk space that a copy of the programs needs."""
    tops = [str(root / name) for name in TOP if (root / name).is_dir() and not (root / name).is_symlink()]
    done = subprocess.run(["du", "-sxk", *tops], capture_output=True, text=True, check=False)
    return sum(int(line.split()[0]) << 10 for line in done.stdout.splitlines())


def _clone(source: str, target: Path) -> bool:
    """Share the blocks if the file system supports it."""
    with Path(source).open("rb") as old, target.open("wb") as new:
        try:
            fcntl.ioctl(new.fileno(), FICLONE, old.fileno())
        except OSError:
            return False
    return True


def _set_owner(path: Path, status: os.stat_result) -> None:
    if os.geteuid() == 0:
        os.chown(path, status.st_uid, status.st_gid, follow_symlinks=False)
