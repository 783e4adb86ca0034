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
from sandyard.engine.templates.sources import read_os_release

NAME = "host"
FORMAT = 2  # increase it when the output of this module changes
TOP_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr")
EMPTY_FOLDERS = "boot dev media mnt opt proc run srv sys var/cache var/lib var/log var/mail var/spool".split()
EXCLUDED = frozenset(
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
class CopyProgress:
    """The progress of a build."""

    root: Path
    method: str  # LINKS or COPIES
    files: int = 0
    hidden: int = 0  # left out, because not every user may read them
    space_checked: bool = False
    copied: dict[int, Path] = field(default_factory=dict)  # by inode, for files with several names


def compute_fingerprint(root: Path = Path("/")) -> str:
    """Return a value that changes with the machine's packages or local programs. Cheap: compares dates, not contents."""
    paths = "var/lib/dpkg/status var/lib/rpm usr usr/bin usr/sbin usr/lib usr/local/bin usr/local/lib etc/ld.so.cache"
    parts: list[object] = [FORMAT]
    for path in paths.split():
        with contextlib.suppress(OSError):
            status = (root / path).stat()
            parts.append([path, status.st_mtime_ns, status.st_size, status.st_ino])
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def build(folder: TemplateFolder, root: Path = Path("/")) -> TemplateVersion:
    """Create `host`, or return the version that matches the current machine. Blocks for a second or two if files can be
    linked, for minutes if gigabytes have to be copied; raises NoSpaceError if they would not fit."""
    digest = compute_fingerprint(root)
    if existing := folder.find(NAME, digest):
        return existing
    with folder.open_build_directory(NAME) as work, use_default_umask():
        if existing := folder.find(NAME, digest):
            return existing
        tree = work / ROOTFS
        tree.mkdir()
        tree.chmod(0o755)
        progress = _copy_programs(root, tree)
        for path in EMPTY_FOLDERS:
            (tree / path).mkdir(parents=True, exist_ok=True)
        for path in ("tmp", "var/tmp"):
            (tree / path).mkdir(parents=True)
            (tree / path).chmod(0o1777)
        (tree / "var/run").symlink_to("/run")
        (tree / "var/lock").symlink_to("/run/lock")
        write_etc(root, tree)
        write_homes(root, tree)
        release = read_os_release(root).get("PRETTY_NAME", "this machine")
        details = {
            "release": release,
            "made of": progress.method,
            "files": str(progress.files),
            "hidden": str(progress.hidden),
        }
        return folder.publish(
            work, folder.make_version(NAME, digest, f"the programs of this machine: {release}", details)
        )


def _copy_programs(root: Path, tree: Path) -> CopyProgress:
    progress = CopyProgress(root, LINKS if _can_link(root, tree) else COPIES)
    for name in TOP_FOLDERS:
        source = root / name
        if source.is_symlink():
            (tree / name).symlink_to(source.readlink())
        elif source.is_dir():
            _mirror(source, tree / name, name, progress, source.stat().st_dev)
    return progress


def _mirror(source: Path, target: Path, name: str, progress: CopyProgress, device: int) -> None:
    """Mirror one directory recursively, staying on its file system."""
    info = source.stat()
    target.mkdir()
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{name}/{entry.name}"
            status = entry.stat(follow_symlinks=False)
            kind = stat.S_IFMT(status.st_mode)
            if path in EXCLUDED or status.st_dev != device or (progress.method == COPIES and path in BULKY):
                continue
            if entry.name == "EXTERNALLY-MANAGED":  # pip may write into a sandbox, because it affects nothing outside
                continue
            if kind == stat.S_IFLNK:
                (target / entry.name).symlink_to(Path(entry.path).readlink())
            elif kind == stat.S_IFDIR and status.st_mode & 0o005 == 0o005:
                _mirror(Path(entry.path), target / entry.name, path, progress, device)
            elif kind == stat.S_IFREG and status.st_mode & 0o004:
                _add_file(entry.path, target / entry.name, status, progress)
            else:
                progress.hidden += 1
    target.chmod(stat.S_IMODE(info.st_mode))
    if f"{name}/".startswith(LOCAL):
        give_to_user(target)
    else:
        _set_owner(target, info)


def _can_link(root: Path, tree: Path) -> bool:
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


def _add_file(source: str, target: Path, status: os.stat_result, progress: CopyProgress) -> None:
    progress.files += 1
    if progress.method == LINKS:
        try:
            os.link(source, target, follow_symlinks=False)
        except OSError as error:
            # copied instead if it is immutable, has too many links, or is on another file system
            if error.errno not in _CANNOT_LINK:
                raise
        else:
            return
    if first := progress.copied.get(status.st_ino):  # keep hard links between files
        os.link(first, target)
        return
    if not _clone(source, target):
        if progress.method == COPIES and not progress.space_checked:
            require_space(target.parent, _measure_size(progress.root), "A copy of this machine's programs")
            progress.space_checked = True
        shutil.copyfile(source, target)
    _set_owner(target, status)
    target.chmod(stat.S_IMODE(status.st_mode))
    if status.st_nlink > 1:
        progress.copied[status.st_ino] = target


def _measure_size(root: Path) -> int:
    """Return the maximum disk space that a copy of the programs needs."""
    folders = [str(root / name) for name in TOP_FOLDERS if (root / name).is_dir() and not (root / name).is_symlink()]
    result = subprocess.run(["du", "-sxk", *folders], capture_output=True, text=True, check=False)
    return sum(int(line.split()[0]) << 10 for line in result.stdout.splitlines())


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
