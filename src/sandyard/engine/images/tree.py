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
DEEPEST = 128
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_WHITEOUT = ".wh."
_OPAQUE = ".wh..wh..opq"
_CAPABILITY, _CAP_2, _CAP_3 = "security.capability", 0x0200_0000, 0x0300_0000


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
    """Statistics about a layer. `implied`: directories that no entry describes, but that contain entries."""

    entries: int = 0
    bytes: int = 0
    devices: int = 0
    strangers: int = 0
    implied: set[str] = field(default_factory=set)
    opaque_root: bool = False


class Tree:
    """`mark_opaque` is called with the descriptor of a directory that hides the contents of lower layers."""

    def __init__(self, root: int, *, privileged: bool, mark_opaque: Callable[[int], None]) -> None:
        self.tally = Tally()
        self._root = root
        self._privileged = privileged
        self._mark = mark_opaque
        self._folders: dict[
            str, Meta
        ] = {}  # applied at the end, because adding files changes their dates and modes may lock us out
        self._open: tuple[str, int] | None = None

    # Entries ----------------------------------------------------------------------------------------------------------------

    def folder(self, path: str, meta: Meta) -> None:
        if path:
            parent, name = self._parent(path)
            found = _look(parent, name)
            if found is None or not stat.S_ISDIR(found.st_mode):
                self._clear(parent, name)
                os.mkdir(name, 0o700, dir_fd=parent)
                if found is not None and _is_whiteout(
                    found
                ):  # removed and created again: contents of lower layers must stay hidden
                    self._mark_opaque(parent, name)
        self.tally.implied.discard(path)
        self._folders[path] = meta

    def file(self, path: str, meta: Meta) -> int:
        """Return a new open file for its content. `finish_file` sets its owner and mode."""
        parent, name = self._parent(path)
        self._clear(parent, name)
        return os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=parent)

    def finish_file(self, fd: int, meta: Meta) -> None:
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.fchown(fd, meta.uid, meta.gid)
        os.fchmod(fd, meta.mode)
        self._set_xattrs(fd, meta)
        os.utime(fd, ns=(meta.mtime, meta.mtime))

    def link(self, path: str, target: str, meta: Meta) -> None:
        parent, name = self._parent(path)
        self._clear(parent, name)
        os.symlink(target, name, dir_fd=parent)
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.chown(name, meta.uid, meta.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(meta.mtime, meta.mtime), dir_fd=parent, follow_symlinks=False)

    def hard_link(self, path: str, target: str) -> None:
        folder, _, last = target.rpartition("/")
        try:
            source = open_in_root(self._root, folder, os.O_PATH | os.O_DIRECTORY)
        except OSError:
            raise LayerError(f"has a hard link to {target!r}, which it does not contain") from None
        try:
            found = _look(source, last)
            if found is None or not (stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode)):
                raise LayerError(f"has a hard link to {target!r}, which is not a file in it")
            parent, name = self._parent(path)
            there = _look(parent, name)
            if there is not None and (there.st_dev, there.st_ino) == (found.st_dev, found.st_ino):
                return
            self._clear(parent, name)
            os.link(last, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)

    def pipe(self, path: str, meta: Meta) -> None:
        parent, name = self._parent(path)
        self._clear(parent, name)
        os.mkfifo(name, 0o600, dir_fd=parent)
        meta = self._adjust_owner(meta)
        if self._privileged:
            os.chown(name, meta.uid, meta.gid, dir_fd=parent, follow_symlinks=False)
        os.chmod(name, meta.mode, dir_fd=parent)  # just created, and not a link

    def whiteout(self, path: str) -> bool:
        """Process the entry if its name is a whiteout, and return whether it was."""
        folder, _, name = path.rpartition("/")
        if not name.startswith(_WHITEOUT):
            return False
        if name == _OPAQUE:
            if not folder:
                self.tally.opaque_root = True
            else:
                parent, last = self._parent(folder)
                if _look(parent, last) is None:
                    self._make_implied(parent, last, folder)
                self._mark_opaque(parent, last)
            return True
        if name.startswith(".wh..wh."):  # aufs metadata
            return True
        hidden = name.removeprefix(_WHITEOUT)
        if hidden in ("", ".", ".."):
            raise LayerError(f"has a whiteout without a name: {path!r}")
        parent, hidden = self._parent(f"{folder}/{hidden}" if folder else hidden)
        found = _look(parent, hidden)
        if found is None:
            os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)
        elif stat.S_ISDIR(found.st_mode):  # only contents of lower layers are hidden
            self._mark_opaque(parent, hidden)
        return True

    def finish(self) -> None:
        """Apply the metadata of directories."""
        self._forget()
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

    # Within -----------------------------------------------------------------------------------------------------------------

    def _parent(self, path: str) -> tuple[int, str]:
        """Return the open parent directory of a path, created if missing, and the last name."""
        folder, _, name = path.rpartition("/")
        if self._open is None or self._open[0] != folder:
            self._forget()
            self._open = (folder, self._enter(folder))
        return self._open[1], name

    def _enter(self, folder: str) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return open_in_root(self._root, folder, os.O_RDONLY | os.O_DIRECTORY)
        here, walked = os.dup(self._root), ""
        for part in folder.split("/"):
            walked = f"{walked}/{part}" if walked else part
            try:
                found = _look(here, part)
                if found is None or _is_whiteout(found):
                    self._make_implied(here, part, walked)
                elif not stat.S_ISDIR(found.st_mode):
                    raise LayerError(f"has an entry below {walked!r}, which is not a directory in it")
                inner = os.open(part, _FOLDER, dir_fd=here)
            finally:
                os.close(here)
            here = inner
        return here

    def _make_implied(self, parent: int, name: str, path: str) -> None:
        hid = _look(parent, name) is not None
        if hid:
            os.unlink(name, dir_fd=parent)
        os.mkdir(name, 0o755, dir_fd=parent)
        if hid:
            self._mark_opaque(parent, name)
        self.tally.implied.add(path)

    def _clear(self, parent: int, name: str) -> None:
        """Remove what an earlier entry of the same name created."""
        found = _look(parent, name)
        if found is None:
            return
        if not stat.S_ISDIR(found.st_mode):
            os.unlink(name, dir_fd=parent)
            return
        _remove(parent, name)

    def _forget(self) -> None:
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
        ids = [one if 0 <= one <= HIGHEST_ID else NOBODY for one in (meta.uid, meta.gid)]
        if ids != [meta.uid, meta.gid]:
            self.tally.strangers += 1
        mode = meta.mode & 0o7777
        if not self._privileged:
            if ids[0]:
                mode = mode & ~stat.S_ISUID | (mode & 0o700) >> 6
            if ids[1]:
                mode &= ~stat.S_ISGID
        return Meta(mode, ids[0], ids[1], meta.mtime, meta.xattrs)

    def _set_xattrs(self, fd: int, meta: Meta) -> None:
        for name, value in meta.xattrs:
            kept = _filter_attribute(name, value)
            if kept is not None:
                with contextlib.suppress(OSError):  # without root, or not supported by the file system
                    os.setxattr(fd, name, kept)


def _filter_attribute(name: str, value: bytes) -> bytes | None:
    if name == _CAPABILITY and len(value) >= 20:
        magic = struct.unpack_from("<I", value)[0]
        if magic & 0xFF00_0000 in (_CAP_2, _CAP_3):  # version 3 belongs to one user namespace, which is not ours
            return struct.pack("<I", _CAP_2 | magic & 1) + value[4:20]
        return None
    return value if name.startswith("user.") and not name.startswith("user.overlay.") else None


def _look(parent: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


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
