"""Walk untrusted trees of any depth, without following links out of the tree.

Only one directory is open at a time. Neither recursion nor a descriptor per level is used, because a tree may be nested
deeper than both allow, and its paths may be longer than PATH_MAX.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Level:
    """A directory on the current path of the walk: its name, its parent's inode, and the names in it that are still to
    be visited."""

    name: str
    parent: tuple[int, int]
    names: list[str]


def remove(path: str) -> Iterator[None]:
    """Remove a directory with its contents, or a file. Does nothing if it does not exist. Yields before each entry, so that
    the caller can let other tasks run. Raises OSError with the path that could not be removed."""
    path = path.rstrip("/") or "/"
    try:
        fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return
    top = Level(os.path.dirname(path), (0, 0), [os.path.basename(path)])
    levels = [top]
    try:
        while levels:
            level = levels[-1]
            if level.names:
                yield
                name = level.names.pop()
                if not _unlink(fd, name):
                    try:
                        child = _open(fd, name)
                    except FileNotFoundError:
                        continue
                    levels.append(Level(name, get_inode(fd), os.listdir(child)))
                    os.close(fd)
                    fd = child
            elif level is top:
                return
            else:
                fd = enter_parent(fd, level.parent)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(level.name, dir_fd=fd)
                levels.pop()
    except OSError as error:
        names = [level.name for level in levels]
        if isinstance(error.filename, str) and error.filename != names[-1]:
            names.append(error.filename)
        raise OSError(error.errno, error.strerror, "/".join(names)) from None
    finally:
        os.close(fd)


def enter_parent(fd: int, expected: tuple[int, int]) -> int:
    """Open the directory above `fd`, and close `fd`. Raises OSError if it is not the one that the walk came from, because
    the directory was moved; `fd` then stays open."""
    parent = os.open("..", FOLDER_FLAGS, dir_fd=fd)
    if get_inode(parent) != expected:
        os.close(parent)
        raise OSError(errno.ESTALE, "the directory was moved while it was being walked")
    os.close(fd)
    return parent


def get_inode(fd: int) -> tuple[int, int]:
    """Return the identity of a file: its device and its inode number."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _unlink(folder: int, name: str) -> bool:
    """Remove an entry. Return False if it is a directory that is not empty."""
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in {errno.EISDIR, errno.EPERM}:
            raise
    else:
        return True
    try:
        os.rmdir(name, dir_fd=folder)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in {errno.ENOTEMPTY, errno.EEXIST}:
            return False
        if error.errno == errno.ENOTDIR:  # a file that may not be removed
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), name) from None
        raise
    return True


def _open(folder: int, name: str) -> int:
    try:
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
    except PermissionError:  # overlay's own work directory has mode 0
        os.chmod(name, 0o700, dir_fd=folder)
        return os.open(name, FOLDER_FLAGS, dir_fd=folder)
