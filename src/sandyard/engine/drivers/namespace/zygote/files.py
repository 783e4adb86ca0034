"""Copying and removing trees that sandboxes wrote, with the privileges to do so: ids, whiteouts and all extended attributes kept.

Trees are hostile: nothing here follows a link or leaves the directory it was told.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

_FICLONE = 0x4004_9409
_CHUNK = 1 << 26
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Inode = tuple[int, int]


def remove_tree(path: str) -> None:
    """Remove a directory and all in it, or a file. Nothing happens when it isn't there."""
    parent = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _remove(parent, os.path.basename(path))
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> None:
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.EPERM}:
            raise
    else:
        return
    try:
        fd = os.open(name, _FOLDER, dir_fd=parent)
    except PermissionError:  # overlay's own work directory has mode 0
        os.chmod(name, 0o700, dir_fd=parent)
        fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for entry in names:
            _remove(fd, entry)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def copy_tree(source: str, target: str) -> None:
    """Copy a directory to a place that must not exist. Shares blocks where the file system can; keeps hard links and holes."""
    os.mkdir(target, 0o700)
    source_fd = os.open(source, _FOLDER)
    target_fd = os.open(target, _FOLDER)
    try:
        _copy_folder(source_fd, target_fd, {})
    finally:
        os.close(source_fd)
        os.close(target_fd)


def _copy_folder(source: int, target: int, seen: dict[Inode, tuple[str, str]]) -> None:
    with os.scandir(source) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISDIR(status.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            inner_source, inner_target = os.open(name, _FOLDER, dir_fd=source), os.open(name, _FOLDER, dir_fd=target)
            try:
                _copy_folder(inner_source, inner_target, seen)
            finally:
                os.close(inner_source)
                os.close(inner_target)
        elif not _link_again(status, name, target, seen):
            _copy_entry(source, target, name, status)
            _copy_metadata(f"/proc/self/fd/{source}/{name}", f"/proc/self/fd/{target}/{name}", status)
    _copy_metadata(f"/proc/self/fd/{source}/.", f"/proc/self/fd/{target}/.", os.fstat(source))


def _link_again(status: os.stat_result, name: str, target: int, seen: dict[Inode, tuple[str, str]]) -> bool:
    """Another name of a file that was copied already."""
    if status.st_nlink < 2:
        return False
    inode = (status.st_dev, status.st_ino)
    folder = os.readlink(f"/proc/self/fd/{target}")
    if inode not in seen:
        seen[inode] = (folder, name)
        return False
    first_folder, first_name = seen[inode]
    os.link(f"{first_folder}/{first_name}", name, dst_dir_fd=target, follow_symlinks=False)
    return True


def _copy_entry(source: int, target: int, name: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        reader = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
        writer = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            _copy_data(reader, writer, status.st_size)
        finally:
            os.close(reader)
            os.close(writer)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    else:  # pipes, sockets, and overlay's whiteouts, which are character devices 0:0
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)


def _copy_data(reader: int, writer: int, size: int) -> None:
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError:
        pass
    else:
        return
    os.ftruncate(writer, size)
    offset = 0
    while offset < size:
        try:
            offset = os.lseek(reader, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(reader, offset, os.SEEK_HOLE)
        while offset < end:
            copied = os.copy_file_range(reader, writer, min(end - offset, _CHUNK), offset, offset)
            if copied == 0:
                return
            offset += copied


def _copy_metadata(source: str, target: str, status: os.stat_result) -> None:
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))
    for name in os.listxattr(source, follow_symlinks=False):
        with contextlib.suppress(PermissionError):  # trusted.* without root: overlay uses user.* then
            os.setxattr(target, name, os.getxattr(source, name, follow_symlinks=False), follow_symlinks=False)
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
