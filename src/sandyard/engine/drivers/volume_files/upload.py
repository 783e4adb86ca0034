"""Upload of a file into a volume. It becomes visible only when it is complete: it has no name until then, and leaves
nothing behind if the client, the engine or the machine fails. All methods block."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import threading

from sandyard.engine.contract import FileEntry, FileOwner
from sandyard.engine.drivers.volume_files.content import (
    FILE_MODE,
    Content,
    Parts,
    format_path,
    make_entry,
    parse_path,
    set_owner,
    translate_errors,
)
from sandyard.engine.drivers.volume_files.descriptors import get_proc_path, is_folder, open_path
from sandyard.kit.errors import ConflictError, InvalidInputError

_SPACE_CHECK_BYTES = 8 << 20  # bytes between two checks of the free space


class Upload:
    """One upload. Start it with `begin`, and end it with `finish` or `abandon`."""

    def __init__(self, parts: Parts, parent: int, fd: int, owner: FileOwner, *, force: bool, reserve: int) -> None:
        self._parts = parts
        self._parent = parent
        self._fd = fd
        self._owner = owner
        self._force = force
        self._reserve = reserve
        self._unchecked = _SPACE_CHECK_BYTES
        self._lock = threading.Lock()  # a cancelled chunk may still be being written when the file is closed

    @classmethod
    def begin(cls, content: Content, path: str, owner: FileOwner, *, force: bool, reserve: int = 0) -> Upload:
        """Start an upload. `force` replaces an existing file and creates missing directories. `reserve` is the number
        of bytes to leave free on the disk. Raises ConflictError or NotFoundError."""
        parts = parse_path(path)
        if not parts:
            raise InvalidInputError("path is not valid: use the path of a file.")
        with translate_errors(parts), content.open_root() as root:
            _check_existing(root, parts, force)
            with content.open_parent(root, parts, FileOwner(owner.uid, owner.gid) if force else None) as parent:
                fd = os.open(".", os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o600, dir_fd=parent)
                return cls(parts, os.dup(parent), fd, owner, force=force, reserve=reserve)

    def write(self, data: bytes) -> None:
        """Write the next chunk. Raises NoSpaceError."""
        with self._lock, translate_errors(self._parts):
            self._unchecked += len(data)
            if self._unchecked >= _SPACE_CHECK_BYTES:
                self._unchecked = 0
                disk = os.fstatvfs(self._fd)
                if disk.f_bavail * disk.f_frsize < self._reserve + len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            view = memoryview(data)
            while view:
                view = view[os.write(self._fd, view) :]

    def finish(self) -> FileEntry:
        """Give the file its name, after it is safely on disk."""
        try:
            with self._lock, translate_errors(self._parts):
                set_owner(self._fd, self._owner, FILE_MODE)
                os.fsync(self._fd)
                self._publish()
                return make_entry(self._parts, self._fd)
        finally:
            self.abandon()

    def _publish(self) -> None:
        """Link the file to its name. With `force`, replace an existing file atomically."""
        name = self._parts[-1]
        if not self._force:
            self._link(name)
            return
        with contextlib.suppress(FileExistsError):
            self._link(name)
            return
        partial = f".{secrets.token_hex(12)}.partial"
        self._link(partial)
        try:
            os.rename(partial, name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        except OSError:
            os.unlink(partial, dir_fd=self._parent)
            raise

    def _link(self, name: str) -> None:
        os.link(get_proc_path(self._fd), name, dst_dir_fd=self._parent, follow_symlinks=True)

    def abandon(self) -> None:
        """Discard the upload. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                os.close(self._parent)
                self._fd = -1


def _check_existing(root: int, parts: Parts, force: bool) -> None:
    """Raise ConflictError if the path is taken, before the client sends the whole file."""
    flags = os.O_PATH | os.O_NOFOLLOW
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), open_path(root, parts, flags) as fd:
        if is_folder(fd):
            raise ConflictError(f"Path {format_path(parts)} is a directory")
        if not force:
            raise ConflictError(f"Path {format_path(parts)} already exists. Use `force` to replace it.")
