"""Copy and remove trees that sandboxes wrote, with the necessary privileges: keeps ids, whiteouts and all extended
attributes.

Trees are hostile: nothing here follows a link or leaves the given directory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat

from sandyard.engine.guest.files import trees
from sandyard.engine.guest.files.trees import FOLDER_FLAGS, Level, get_inode

_FICLONE = 0x4004_9409
_CHUNK_BYTES = 1 << 26

Inode = tuple[int, int]


def remove_tree(path: str) -> None:
    """Remove a directory with its contents, or a file. Does nothing if it does not exist."""
    for _ in trees.remove(path):
        pass


def copy_tree(source: str, target: str) -> None:
    """Copy a directory to a path that must not exist. Shares blocks if the file system supports it; keeps hard links
    and holes."""
    os.mkdir(target, 0o700)
    source_fd = os.open(source, FOLDER_FLAGS)
    target_fd = os.open(target, FOLDER_FLAGS)
    seen: dict[Inode, tuple[str, str]] = {}
    levels = [(Level("", (0, 0), os.listdir(source_fd)), (0, 0))]
    try:
        while levels:
            level, target_parent = levels[-1]
            if level.names:
                name = level.names.pop()
                status = os.stat(name, dir_fd=source_fd, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    parents = get_inode(source_fd), get_inode(target_fd)
                    source_fd, target_fd = _enter_both(source_fd, target_fd, name)
                    levels.append((Level(name, parents[0], os.listdir(source_fd)), parents[1]))
                elif not _link_if_copied(status, name, target_fd, seen):
                    _copy_entry(source_fd, target_fd, name, status)
                    _copy_metadata(f"/proc/self/fd/{source_fd}/{name}", f"/proc/self/fd/{target_fd}/{name}", status)
                continue
            _copy_metadata(f"/proc/self/fd/{source_fd}/.", f"/proc/self/fd/{target_fd}/.", os.fstat(source_fd))
            levels.pop()
            if levels:
                source_fd = trees.enter_parent(source_fd, level.parent)
                target_fd = trees.enter_parent(target_fd, target_parent)
    finally:
        os.close(source_fd)
        os.close(target_fd)


def _enter_both(source: int, target: int, name: str) -> tuple[int, int]:
    """Enter the directory `name` in both trees, creating it in the second; the two parents are closed."""
    os.mkdir(name, 0o700, dir_fd=target)
    inner_source = os.open(name, FOLDER_FLAGS, dir_fd=source)
    try:
        inner_target = os.open(name, FOLDER_FLAGS, dir_fd=target)
    except OSError:
        os.close(inner_source)
        raise
    os.close(source)
    os.close(target)
    return inner_source, inner_target


def measure_disk_usage(path: str) -> int:
    """Return the bytes on disk below a directory, as far as this process has access."""
    total = 0
    try:
        fd = os.open(path, FOLDER_FLAGS)
    except OSError:
        return 0
    levels = [Level("", (0, 0), os.listdir(fd))]
    try:
        while levels:
            level = levels[-1]
            if not level.names:
                levels.pop()
                if levels:
                    fd = trees.enter_parent(fd, level.parent)
                continue
            name = level.names.pop()
            with contextlib.suppress(OSError):
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                total += status.st_blocks * 512
                if stat.S_ISDIR(status.st_mode):
                    child = os.open(name, FOLDER_FLAGS, dir_fd=fd)
                    levels.append(Level(name, get_inode(fd), os.listdir(child)))
                    os.close(fd)
                    fd = child
    except OSError:  # a sandbox moved a directory while it was being measured
        return total
    else:
        return total
    finally:
        os.close(fd)


def _link_if_copied(status: os.stat_result, name: str, target: int, seen: dict[Inode, tuple[str, str]]) -> bool:
    """Create a hard link if the file was already copied. Return whether it was."""
    if status.st_nlink < 2:
        return False
    number = (status.st_dev, status.st_ino)
    try:
        folder = os.readlink(f"/proc/self/fd/{target}")
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # nested too deeply for a link, so make a copy
            return False
        raise
    if number not in seen:
        seen[number] = (folder, name)
        return False
    first_folder, first_name = seen[number]
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
            if error.errno == errno.ENXIO:  # only a hole is left
                return
            raise
        end = os.lseek(reader, offset, os.SEEK_HOLE)
        while offset < end:
            copied = os.copy_file_range(reader, writer, min(end - offset, _CHUNK_BYTES), offset, offset)
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
