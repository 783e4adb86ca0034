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

from sandyard.engine.drivers.volume_files.descriptors import OPEN_FOLDER

_MAX_DEPTH = 32
_BATCH_ENTRIES = 1000
TIMEOUT_S = 300.0


def remove(parent: int, name: str, timeout_s: float = TIMEOUT_S) -> None:
    """Remove the tree. Raises FileNotFoundError if it does not exist, and OSError with `ENOTEMPTY` if others write
    faster than this removes."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            os.unlink(name, dir_fd=parent)
        except OSError as error:
            if error.errno not in {errno.EISDIR, errno.EPERM}:
                raise
        else:
            return
        fd = os.open(name, OPEN_FOLDER, dir_fd=parent)
        try:
            _empty_folder(fd, fd, 0, deadline)
        finally:
            os.close(fd)
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY or time.monotonic() > deadline:
                raise
        else:
            return


def _empty_folder(folder: int, top: int, depth: int, deadline: float) -> None:
    while True:
        with os.scandir(folder) as entries:
            batch = [
                (entry.name, entry.is_dir(follow_symlinks=False)) for entry in itertools.islice(entries, _BATCH_ENTRIES)
            ]
        if not batch:
            return
        for name, is_folder in batch:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # changed in the meantime: look again
                if is_folder:
                    _remove_folder(folder, name, top, depth, deadline)
                else:
                    os.unlink(name, dir_fd=folder)
        if time.monotonic() > deadline:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))


def _remove_folder(folder: int, name: str, top: int, depth: int, deadline: float) -> None:
    if depth >= _MAX_DEPTH:  # moved up to a shallow level
        os.rename(name, secrets.token_hex(16), src_dir_fd=folder, dst_dir_fd=top)
        return
    fd = os.open(name, OPEN_FOLDER, dir_fd=folder)
    try:
        _empty_folder(fd, top, depth + 1, deadline)
    finally:
        os.close(fd)
    with contextlib.suppress(OSError):  # no longer empty: the next round retries
        os.rmdir(name, dir_fd=folder)
