"""Write the entries of a layer into a directory, in the form that an overlay needs, without ever leaving it.

- A parent directory is looked up within the tree (openat2); entries are created by name in an open directory, never
  through a link.
- `.wh.name` becomes a whiteout (character device 0:0), `.wh..wh..opq` the opaque mark of its directory.
- Owners are plain ids from 0 to 65535, as the driver maps them; others become nobody. Device nodes are skipped, because
  sandboxes could not open them. Of extended attributes only capabilities and `user.*` are kept, and none of overlay's
  own.
- Without root, files cannot be given to other users. They belong to the engine's user, who is root inside, and files of
  other owners are made accessible to everybody.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from sandyard.engine.images.stream import LayerError
from sandyard.kit.openat2 import open_in_root

NOBODY, HIGHEST_ID = 65534, 65535
MAX_DEPTH = 128
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_CAPABILITY, _CAPABILITY_V2, _CAPABILITY_V3 = "security.capability", 0x0200_0000, 0x0300_0000


@dataclass(frozen=True, slots=True)
class Meta:
    """Metadata of a file or directory. `mtime` is in nanoseconds."""

    mode: int
    uid: int
    gid: int
    mtime: int
    xattrs: tuple[tuple[str, bytes], ...] = ()


@dataclass
class Tally:
    """Statistics about a layer. `high_owners`: entries whose owner is above HIGHEST_ID. `implied`: directories that no entry
    describes, but that contain entries."""

    entries: int = 0
    bytes: int = 0
    devices: int = 0
    high_owners: int = 0
    implied: set[str] = field(default_factory=set)
    opaque_root: bool = False


class Tree:
    """The directory that receives a layer. `mark` is called with the descriptor of each directory that hides the contents
    of lower layers."""

    def __init__(self, root: int, *, privileged: bool, mark: Callable[..., None]) -> None:
        self.tally = Tally()
        self._root = root
        self._privileged = privileged
        self._mark = mark
        # applied at the end, because adding files changes a directory's dates, and its mode may forbid adding files
        self._folders: dict[str, Meta] = {}
        self._open: tuple[str, int] | None = None

    # Entries ----------------------------------------------------------------------------------------------------------------

    def add_directory(self, path: str, meta: Meta) -> None:
        if path:
            parent, name = self._open_parent(path)
            status = _stat_entry(parent, name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                self._remove_existing(parent, name)
                os.mkdir(name, 0o700, dir_fd=parent)
                # removed and created again: contents of lower layers must stay hidden
                if status is not None and _is_whiteout(status):
                    self._mark_opaque(parent, name)
        self.tally.implied.discard(path)
        self._folders[path] = meta

    def create_file(self, path: str, meta: Meta) -> int:
        """Return a new open file for its content. `finish_file` sets its owner and mode."""
        parent, name = self._open_parent(path)
        self._remove_existing(parent, name)
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)

    def finish_file(self, fd: int, meta: Meta) -> None:
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.fchown(fd, meta.uid, meta.gid)
        os.fchmod(fd, meta.mode)
        self._set_xattrs(fd, meta)
        os.utime(fd, ns=(meta.mtime, meta.mtime))

    def add_symlink(self, path: str, target: str, meta: Meta) -> None:
        parent, name = self._open_parent(path)
        self._remove_existing(parent, name)
        os.symlink(target, name, dir_fd=parent)
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.chown(name, meta.uid, meta.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(meta.mtime, meta.mtime), dir_fd=parent, follow_symlinks=False)

    def add_hard_link(self, path: str, target: str) -> None:
        folder, _, last = target.rpartition("/")
        try:
            source = open_in_root(self._root, folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise LayerError(f"has a hard link to {target!r}, which it does not contain") from None
        try:
            status = _stat_entry(source, last)
            if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                raise LayerError(f"has a hard link to {target!r}, which is not a file in it")
            parent, name = self._open_parent(path)
            existing = _stat_entry(parent, name)
            if existing is not None and (existing.st_dev, existing.st_ino) == (status.st_dev, status.st_ino):
                return
            self._remove_existing(parent, name)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def add_pipe(self, path: str, meta: Meta) -> None:
        parent, name = self._open_parent(path)
        self._remove_existing(parent, name)
        os.mkfifo(name, 0o600, dir_fd=parent)
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.chown(name, meta.uid, meta.gid, dir_fd=parent, follow_symlinks=False)
        os.chmod(name, meta.mode, dir_fd=parent)  # just created, and not a link
        os.utime(name, ns=(meta.mtime, meta.mtime), dir_fd=parent, follow_symlinks=False)

    def add_whiteout(self, path: str) -> bool:
        """Process the entry if its name is a whiteout, and return whether it was."""
        folder, _, name = path.rpartition("/")
        if not name.startswith(_WHITEOUT):
            return False
        if name == _OPAQUE:
            if not folder:
                self.tally.opaque_root = True
            else:
                parent, last = self._open_parent(folder)
                if _stat_entry(parent, last) is None:
                    self._make_implied(parent, last, folder)
                self._mark_opaque(parent, last)
            return True
        if name.startswith(".wh..wh."):  # aufs metadata
            return True
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise LayerError(f"has a whiteout without a name: {path!r}")
        parent, hidden = self._open_parent(f"{folder}/{hidden}" if folder else hidden)
        status = _stat_entry(parent, hidden)
        if status is None:
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        elif stat.S_ISDIR(status.st_mode):  # only contents of lower layers are hidden
            self._mark_opaque(parent, hidden)
        return True

    def finish(self) -> None:
        """Apply the metadata of directories."""
        self._close_parent()
        for path, described in self._folders.items():
            meta = self._adjust_owner(described)
            try:
                fd = open_in_root(self._root, path, _FOLDER)
            except (FileNotFoundError, NotADirectoryError):  # replaced by a later entry
                continue
            except OSError as error:
                if error.errno == errno.ELOOP:
                    continue
                raise
            try:
                if self._privileged:
                    os.fchown(fd, meta.uid, meta.gid)
                os.fchmod(fd, meta.mode)
                self._set_xattrs(fd, meta)
                os.utime(fd, ns=(meta.mtime, meta.mtime))
            finally:
                os.close(fd)
        self.tally.implied = {path for path in self.tally.implied if path not in self._folders}

    # Helpers ----------------------------------------------------------------------------------------------------------------

    def _open_parent(self, path: str) -> tuple[int, str]:
        """Return the open parent directory of a path, created if missing, and the last name."""
        folder, _, name = path.rpartition("/")
        if self._open is None or self._open[0] != folder:
            self._close_parent()
            self._open = (folder, self._open_directory(folder))
        return self._open[1], name

    def _open_directory(self, folder: str) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return open_in_root(self._root, folder, os.O_RDONLY | os.O_DIRECTORY)
        here, walked = os.dup(self._root), ""
        for part in folder.split("/"):
            walked = f"{walked}/{part}" if walked else part
            try:
                status = _stat_entry(here, part)
                if status is None or _is_whiteout(status):
                    self._make_implied(here, part, walked)
                elif not stat.S_ISDIR(status.st_mode):
                    raise LayerError(f"has an entry below {walked!r}, which is not a directory in it")
                inner = os.open(part, _FOLDER, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        return here

    def _make_implied(self, parent: int, name: str, path: str) -> None:
        replaces_whiteout = _stat_entry(parent, name) is not None
        if replaces_whiteout:
            os.unlink(name, dir_fd=parent)
        os.mkdir(name, 0o755, dir_fd=parent)
        if replaces_whiteout:
            self._mark_opaque(parent, name)
        self.tally.implied.add(path)

    def _remove_existing(self, parent: int, name: str) -> None:
        """Remove the file or directory of an earlier entry of the same name."""
        status = _stat_entry(parent, name)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        _remove(parent, name)

    def _close_parent(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def _mark_opaque(self, parent: int, name: str) -> None:
        fd = os.open(name, _FOLDER, dir_fd=parent)
        try:
            self._mark(fd)
        finally:
            os.close(fd)

    def _adjust_owner(self, meta: Meta) -> Meta:
        """Return the metadata with ids that exist in a sandbox and, without root, with modes that compensate for the
        missing owner."""
        ids = [owner if 0 <= owner <= HIGHEST_ID else NOBODY for owner in (meta.uid, meta.gid)]
        if ids != [meta.uid, meta.gid]:
            self.tally.high_owners += 1
        mode = meta.mode & 0o7777
        if not self._privileged:
            if ids[0]:
                mode = mode & ~stat.S_ISUID | (mode & 0o700) >> 6
            if ids[1]:
                mode &= ~stat.S_ISGID
        return Meta(mode, ids[0], ids[1], meta.mtime, meta.xattrs)

    def _set_xattrs(self, fd: int, meta: Meta) -> None:
        for name, value in meta.xattrs:
            filtered = filter_attribute(name, value)
            if filtered is not None:
                with contextlib.suppress(OSError):  # without root, or not supported by the file system
                    os.setxattr(fd, name, filtered)


def filter_attribute(name: str, value: bytes) -> bytes | None:
    if name == _CAPABILITY and len(value) >= 20:
        magic = struct.unpack_from("<I", value)[0]
        # version 3 belongs to one user namespace, which is not that of the sandbox: it is stored as version 2
        if magic & 0xFF00_0000 in (_CAPABILITY_V2, _CAPABILITY_V3):
            return struct.pack("<I", _CAPABILITY_V2 | magic & 1) + value[4:20]
        return None
    return value if name.startswith("user.") and not name.startswith("user.overlay.") else None


def _stat_entry(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _remove(parent: int, name: str) -> None:
    fd = os.open(name, _FOLDER, dir_fd=parent)
    try:
        with os.scandir(fd) as entries:
            inner = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        for entry, is_folder in inner:
            if is_folder:
                _remove(fd, entry)
            else:
                os.unlink(entry, dir_fd=fd)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)
