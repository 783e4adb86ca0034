"""Remove a directory tree that others may be changing: without following links, without a descriptor or a stack frame
for each of up to a hundred thousand levels, and without reading a directory of ten million names into memory. Blocks;
raises OSError."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import secrets
import time

from sandyard.engine.volumes.descriptors import FOLDER

_DEEPEST = 32
_AT_ONCE = 1000
PATIENCE_S = 300.0


def remove(parent: int, name: str, patience_s: float = PATIENCE_S) -> None:
    """Remove the tree. Raises FileNotFoundError if it does not exist, and OSError with `ENOTEMPTY` if others write
    faster than this removes."""
    end = time.monotonic() + patience_s
    while True:
        try:
            os.unlink(name, dir_fd=parent)
        except OSError as error:
            if error.errno not in {errno.EISDIR, errno.EPERM}:
                raise
        else:
            return
        fd = os.open(name, FOLDER, dir_fd=parent)
        try:
            _empty(fd, fd, 0, end)
        finally:
            os.close(fd)
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > end:
                raise
        else:
            return


def _empty(folder: int, top: int, depth: int, end: float) -> None:
    while True:
        with os.scandir(folder) as entries:
            some = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(entries, _AT_ONCE)]
        if not some:
            return
        for name, is_folder in some:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # changed in the meantime: look again
                if is_folder:
                    _remove_folder(folder, name, top, depth, end)
                else:
                    os.unlink(name, dir_fd=folder)
        if time.monotonic() > end:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


def _remove_folder(folder: int, name: str, top: int, depth: int, end: float) -> None:
    if depth >= _DEEPEST:  # moved up to a shallow level
        os.rename(name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
        return
    fd = os.open(name, FOLDER, dir_fd=folder)
    try:
        _empty(fd, top, depth + 1, end)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):  # no longer empty: the next round retries
        os.rmdir(name, dir_fd=folder)
