"""`python -m sandyard.engine.layers.pack`: pack the directory of a layer into a compressed file, in a separate process.

The format is described in `images.upper_tree`, and `images.unpack` reads it. The request is a JSON object in the descriptor
given as the argument, the file is descriptor 0, and the outcome is a JSON object on standard output. Entries are sorted
and times come from the layer, so that the same layer gives the same file.

Nothing changes the directory while it is packed, but its contents are untrusted, because a sandbox has written them: nothing
here follows a link. A file that cannot be packed is an error. Left out are only sockets, to which nobody could connect, and
extended attributes that have a meaning only on this machine.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import zstandard

from sandyard.engine.guest.files import trees
from sandyard.engine.guest.files.trees import FOLDER_FLAGS, Level, get_inode
from sandyard.engine.images.stream import CHUNK, LayerError, NoRoomError
from sandyard.engine.images.upper_tree import (
    ACCESS_LISTS,
    CAPABILITY_ATTRIBUTE,
    MAX_UPPER_DEPTH,
    OPAQUE_ATTRIBUTE,
    OVERLAY,
    REDIRECT_ATTRIBUTE,
    ROOTLESS_OVERLAY,
    encode_xattr_name,
)
from sandyard.engine.images.worker import initialize_process, report_outcome

_MEMORY_BYTES = 1 << 30
_COMPRESSION_LEVEL = 3  # faster than most disks
_BLOCK = tarfile.BLOCKSIZE
_MAX_PATH_BYTES = 4095 - len("/")
# Readers find the next header by the size in this one, in which more does not fit.
_MAX_SPARSE_BYTES = 8 << 30
_SPACE_CHECK_BYTES = 64 << 20
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# They describe inode numbers of the lower layers on this machine, and overlay does without them.
_MACHINE_ATTRIBUTES = frozenset(OVERLAY + name for name in ("origin", "impure", "nlink", "uuid", "upper"))


@dataclass(frozen=True, slots=True)
class PackRequest:
    """The layer to pack, and its limits. `rootless`: overlay's attributes in it have the prefix that they have without root.
    `reserve_bytes`: the space to leave free on the disk."""

    path: str
    rootless: bool
    max_bytes: int
    max_entries: int
    reserve_bytes: int


@dataclass
class Tally:
    """The result of packing a layer. `bytes` is the size of the tar archive."""

    entries: int = 0
    bytes: int = 0
    sockets: int = 0


class LayerWriter:
    """Compresses and hashes what is written. `diff_id` is the digest of the tar, `digest` that of the file."""

    def __init__(self, target: int, request: PackRequest, tally: Tally) -> None:
        self._target, self._request, self.tally = target, request, tally
        self._plain, self._compressed, self.size = hashlib.sha256(), hashlib.sha256(), 0
        self._compressor = zstandard.ZstdCompressor(level=_COMPRESSION_LEVEL, write_checksum=True).compressobj()
        self._next_space_check = 0

    @property
    def diff_id(self) -> str:
        return f"sha256:{self._plain.hexdigest()}"

    @property
    def digest(self) -> str:
        return f"sha256:{self._compressed.hexdigest()}"

    def write(self, data: bytes) -> None:
        self.tally.bytes += len(data)
        if self.tally.bytes > self._request.max_bytes:
            size = self._request.max_bytes >> 20
            raise LayerError(f"is larger than the {size} MiB that a layer may have (setting layer_max_mb)")
        self._plain.update(data)
        self._store(self._compressor.compress(data))

    def write_padding(self, size: int) -> None:
        """Fill the last block of a file of that size."""
        if size % _BLOCK:
            self.write(bytes(_BLOCK - size % _BLOCK))

    def finish(self) -> None:
        self.write(bytes(2 * _BLOCK))
        self._store(self._compressor.flush())

    def _store(self, data: bytes) -> None:
        self._compressed.update(data)
        self.size += len(data)
        if self.size >= self._next_space_check:
            self._next_space_check = self.size + _SPACE_CHECK_BYTES
            disk = os.fstatvfs(self._target)
            if disk.f_bavail * disk.f_frsize < self._request.reserve_bytes + _SPACE_CHECK_BYTES:
                raise NoRoomError("does not fit on the disk next to the engine's reserve (setting disk_reserve_mb)")
        view = memoryview(data)
        while view:
            view = view[os.write(self._target, view) :]


@dataclass
class Packer:
    """Writes the entries of a directory tree as a tar archive."""

    writer: LayerWriter
    request: PackRequest
    links: dict[tuple[int, int], str] = field(default_factory=dict)  # the first path of files with several, by inode

    def pack(self, root: int) -> None:
        """Pack the directory. Closes `root`."""
        self._add_entry(f"/proc/self/fd/{root}/.", "./", os.fstat(root))
        fd, paths = root, ["./"]
        levels = [Level("", (0, 0), _list_names(fd))]
        try:
            while levels:
                level = levels[-1]
                if not level.names:
                    levels.pop()
                    paths.pop()
                    if levels:
                        fd = trees.enter_parent(fd, level.parent)
                    continue
                name = level.names.pop()
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                path = paths[-1] + name
                if len(os.fsencode(path)) > _MAX_PATH_BYTES or len(paths) > MAX_UPPER_DEPTH:
                    raise LayerError(f"has a path that is too long: {path[:200]!r}…")
                if not stat.S_ISDIR(status.st_mode):
                    self._add_file(fd, name, path, status)
                    continue
                self._add_entry(f"/proc/self/fd/{fd}/{name}", f"{path}/", status)
                child = os.open(name, FOLDER_FLAGS, dir_fd=fd)
                levels.append(Level(name, get_inode(fd), _list_names(child)))
                paths.append(f"{path}/")
                os.close(fd)
                fd = child
        finally:
            os.close(fd)

    def _add_file(self, parent: int, name: str, path: str, status: os.stat_result) -> None:
        mode, inode = status.st_mode, (status.st_dev, status.st_ino)
        if stat.S_ISSOCK(mode):
            self.writer.tally.sockets += 1
            return
        if (stat.S_ISCHR(mode) and status.st_rdev != 0) or stat.S_ISBLK(mode):
            raise LayerError(f"has a device node: {path[:200]!r}")
        can_be_linked = stat.S_ISREG(mode) or stat.S_ISLNK(mode)
        if can_be_linked and status.st_nlink > 1:
            if (first := self.links.get(inode)) is not None:
                self._write_header(_make_info(path, status, tarfile.LNKTYPE, first))
                return
            self.links[inode] = path
        proc_path = f"/proc/self/fd/{parent}/{name}"
        if stat.S_ISCHR(mode):  # a whiteout, of which nothing else matters
            info = tarfile.TarInfo(path)
            info.type, info.mode = tarfile.CHRTYPE, 0
            self._write_header(info)
        elif stat.S_ISREG(mode):
            fd = os.open(name, _FILE_FLAGS, dir_fd=parent)
            try:
                self._add_regular_file(fd, proc_path, path, status)
            finally:
                os.close(fd)
        elif stat.S_ISLNK(mode):
            self._add_entry(proc_path, path, status, os.readlink(name, dir_fd=parent))
        else:
            self._add_entry(proc_path, path, status)

    def _add_entry(self, proc_path: str, path: str, status: os.stat_result, target: str = "") -> None:
        """Add anything that has no content. `proc_path` is the path at which this process can open it."""
        kind = _TYPES[stat.S_IFMT(status.st_mode)]
        info = _make_info(path, status, kind, target)
        info.pax_headers = {**info.pax_headers, **dict(self._read_xattrs(proc_path, path))}
        self._write_header(info)

    def _add_regular_file(self, fd: int, proc_path: str, path: str, status: os.stat_result) -> None:
        size = status.st_size
        info = _make_info(path, status, tarfile.REGTYPE)
        info.pax_headers = {**info.pax_headers, **dict(self._read_xattrs(proc_path, path))}
        extents = list(_list_extents(fd, size)) if status.st_blocks * 512 < size else [(0, size)]
        stored = sum(length for _, length in extents)
        if stored == size or stored >= _MAX_SPARSE_BYTES:
            info.size = size
            self._write_header(info)
            self._copy(fd, 0, size)
        else:
            numbers = [len(extents), *(number for extent in extents for number in extent)]
            sparse_map = "".join(f"{number}\n" for number in numbers).encode()
            sparse_map += bytes(-len(sparse_map) % _BLOCK)
            info.name, info.size = f"./GNUSparseFile.0/{path.rpartition('/')[2]}", len(sparse_map) + stored
            sparse = {"major": "1", "minor": "0", "name": path, "realsize": str(size)}
            info.pax_headers = {**info.pax_headers, **{f"GNU.sparse.{key}": value for key, value in sparse.items()}}
            self._write_header(info)
            self.writer.write(sparse_map)
            for offset, length in extents:
                self._copy(fd, offset, length)
        self.writer.write_padding(info.size)

    def _copy(self, fd: int, offset: int, size: int) -> None:
        end = offset + size
        while offset < end:
            data = os.pread(fd, min(end - offset, CHUNK), offset)
            if not data:
                raise LayerError("was changed while it was being packed")
            self.writer.write(data)
            offset += len(data)

    def _write_header(self, info: tarfile.TarInfo) -> None:
        self.writer.tally.entries += 1
        if self.writer.tally.entries > self.request.max_entries:
            limit = self.request.max_entries
            raise LayerError(f"has more files than the {limit} that a layer may have (setting layer_max_files)")
        self.writer.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))

    def _read_xattrs(self, proc_path: str, path: str) -> Iterator[tuple[str, str]]:
        """Yield the records of all extended attributes to keep, sorted."""
        for name in sorted(os.listxattr(proc_path, follow_symlinks=False)):
            stored_name = name
            if self.request.rootless and name.startswith(ROOTLESS_OVERLAY):
                stored_name = OVERLAY + name.removeprefix(ROOTLESS_OVERLAY)
            if stored_name.startswith(OVERLAY):
                if stored_name in _MACHINE_ATTRIBUTES:
                    continue
                if stored_name not in (OPAQUE_ATTRIBUTE, REDIRECT_ATTRIBUTE):
                    raise LayerError(f"has {path[:200]!r} with the attribute {name!r}, which cannot be packed")
            elif not name.startswith("user.") and name != CAPABILITY_ATTRIBUTE and name not in ACCESS_LISTS:
                continue
            value = os.getxattr(proc_path, name, follow_symlinks=False)
            yield encode_xattr_name(stored_name), value.decode("utf-8", "surrogateescape")


_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def _list_names(fd: int) -> list[str]:
    """Return the names in a directory in reverse order, because they are taken from the end."""
    return sorted(os.listdir(fd), key=os.fsencode, reverse=True)


def _make_info(path: str, status: os.stat_result, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(path)
    info.type, info.linkname = kind, target
    info.mode, info.uid, info.gid = stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid
    seconds, nanoseconds = divmod(abs(status.st_mtime_ns), 1_000_000_000)
    info.mtime = max(0, status.st_mtime_ns // 1_000_000_000)
    if nanoseconds or status.st_mtime_ns < 0:
        sign = "-" if status.st_mtime_ns < 0 else ""
        info.pax_headers = {"mtime": f"{sign}{seconds}.{nanoseconds:09}"}
    return info


def _list_extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a file that are not holes, and an empty one at its end if it ends with a hole."""
    offset = 0
    while offset < size:
        try:
            begin = os.lseek(fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            yield size, 0
            return
        offset = min(os.lseek(fd, begin, os.SEEK_HOLE), size)
        yield begin, offset - begin


def pack(request: PackRequest, target: int) -> dict[str, Any]:
    """Pack the layer into the open file. Return a `PackedLayer` as JSON, with the number of sockets that were left out. Blocks; raises
    LayerError. Call it only in a separate process: if it fails, file descriptors stay open."""
    writer = LayerWriter(target, request, Tally())
    try:
        Packer(writer, request).pack(os.open(request.path, FOLDER_FLAGS))
        writer.finish()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError("does not fit on the disk") from None
        where = f": {error.filename!r}" if error.filename and not str(error.filename).startswith("/proc/") else ""
        raise LayerError(f"could not be read: {error.strerror}{where}") from None
    except MemoryError:
        raise LayerError("needs more memory to be packed than this process may use") from None
    tally = writer.tally
    return {
        "digest": writer.digest,
        "diff_id": writer.diff_id,
        "size": writer.size,
        "bytes": tally.bytes,
        "entries": tally.entries,
        "sockets": tally.sockets,
    }


def main() -> None:
    request = PackRequest(**initialize_process(_MEMORY_BYTES))
    report_outcome(lambda: pack(request, 0))


if __name__ == "__main__":
    main()
