"""`python -m sandyard.engine.images.unpack`: one layer into one directory, in a process of its own.

The order is a JSON object in the descriptor that the argument names, the layer's file is descriptor 0, and the outcome is a JSON
object on standard output: what was found, or `{"error": …}`. The process ends with its parent, has little memory, and is nothing to
wait for when it is killed: whoever started it removes the directory.
"""

from __future__ import annotations

import errno
import os
import tarfile
from dataclasses import dataclass
from typing import Any, cast

from sandyard.engine.images.stream import CHUNK, LayerError, NoRoomError, Slice, Stream, forget_members
from sandyard.engine.images.tree import DEEPEST, Meta, Tree
from sandyard.engine.images.worker import answer, settle

_MEMORY = 1 << 30
_LOOK_EVERY = 64 << 20
_LATEST = 1 << 40


@dataclass(frozen=True, slots=True)
class Order:
    """`digest` is that of the file as it lies there, None where nobody knows it; `diff_id` that of the tar in it."""

    target: str
    offset: int
    size: int
    digest: str | None
    diff_id: str
    most_bytes: int
    most_entries: int
    reserve_bytes: int


def unpack(order: Order, source: int) -> dict[str, Any]:
    """Raises LayerError. Blocks."""
    root = os.open(order.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    raw = Slice(source, order.offset, order.size)
    stream = Stream(raw, order.most_bytes)
    tree = Tree(root, privileged=os.geteuid() == 0)
    try:
        _extract(stream, tree, _Room(root, order))
        tree.finish()
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NoRoomError("does not fit on the disk") from None
        raise LayerError(f"has an entry that can't be made here: {error.strerror}") from None
    except tarfile.TarError as error:
        raise LayerError(f"is not a valid tar ({error})") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise LayerError(f"is not a sound tar ({type(error).__name__})") from None
    if stream.finish() != order.diff_id:
        raise LayerError("does not have the content that the image's configuration announces (its digest differs)")
    if raw.finish() != order.digest and order.digest is not None:
        raise LayerError("does not have the digest it was asked for by")
    os.close(root)
    tally = tree.tally
    return {
        "entries": tally.entries,
        "bytes": tally.bytes,
        "devices": tally.devices,
        "strangers": tally.strangers,
        "implied": sorted(tally.implied),
        "opaque_root": tally.opaque_root,
    }


class _Room:
    """Counts what is used against what there is."""

    def __init__(self, root: int, order: Order) -> None:
        self._root, self._order = root, order
        self._entries = self._bytes = 0
        self._next_look = 0

    def entry(self, size: int) -> None:
        self._entries += 1
        self._bytes += size
        if size < 0 or self._bytes > self._order.most_bytes:  # sparse files count as if they were full
            raise LayerError(
                f"unpacks to more than the {self._order.most_bytes >> 20} MiB that are left for the image (setting images_max_mb)"
            )
        if self._entries > self._order.most_entries:
            raise LayerError(
                f"has more files than the {self._order.most_entries} that are left for the image (setting images_max_files)"
            )
        if self._bytes >= self._next_look or self._entries % 4096 == 0:
            self._next_look = self._bytes + _LOOK_EVERY
            disk = os.fstatvfs(self._root)
            if disk.f_bavail * disk.f_frsize < self._order.reserve_bytes + size:
                raise NoRoomError("does not fit on the disk beside the engine's reserve (setting disk_reserve_mb)")


def _extract(stream: Stream, tree: Tree, room: _Room) -> None:
    try:
        tar = tarfile.TarFile(
            fileobj=cast("Any", stream), mode="r", encoding="utf-8", errors="surrogateescape", tarinfo=tarfile.TarInfo
        )
    except tarfile.ReadError:
        if not stream.tell():  # nothing at all
            return
        raise
    while (member := tar.next()) is not None:
        room.entry(member.size if member.isreg() else 0)
        _entry(stream, tree, tar, member)
        forget_members(tar)


def _entry(stream: Stream, tree: Tree, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    path = clean(member.name)
    tally, meta = tree.tally, _meta(member)
    tally.entries += 1
    if tree.whiteout(path):
        return
    if member.isdir():
        tree.folder(path, meta)
    elif not path:
        raise LayerError("has an entry without a name")
    elif member.isreg():
        tally.bytes += member.size
        fd = tree.file(path, meta)
        try:
            if member.sparse is not None:
                _copy_sparse(fd, tar, member)
            else:
                _copy(fd, stream, member.size)
            tree.finish_file(fd, meta)
        finally:
            os.close(fd)
    elif member.issym():
        tree.link(path, member.linkname, meta)
    elif member.islnk():
        tree.hard_link(path, clean(member.linkname))
    elif member.isfifo():
        tree.pipe(path, meta)
    else:
        tally.entries -= 1
        tally.devices += 1


def clean(name: str) -> str:
    """A path within the layer, without a leading slash; the root itself is "". LayerError for one that leads out."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise LayerError(f"names a path outside of itself: {name[:200]!r}")
    if len(parts) > DEEPEST:
        raise LayerError(f"has directories that are nested deeper than {DEEPEST}")
    return "/".join(parts)


def _meta(member: tarfile.TarInfo) -> Meta:
    prefix = "SCHILY.xattr."
    xattrs = tuple(
        (key.removeprefix(prefix), value.encode("utf-8", "surrogateescape"))
        for key, value in member.pax_headers.items()
        if key.startswith(prefix)
    )
    mtime = member.mtime if 0 <= member.mtime < _LATEST else 0  # also for what is not a number
    return Meta(member.mode, member.uid, member.gid, int(mtime * 1_000_000_000), xattrs)


def _copy(fd: int, stream: Stream, size: int) -> None:
    while size:
        data = stream.read(min(size, CHUNK))
        if not data:
            raise LayerError("ends in the middle")
        size -= len(data)
        _write(fd, data)


def _copy_sparse(fd: int, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """Holes stay holes."""
    content = tar.extractfile(member)
    assert content is not None
    copied = 0
    while data := content.read(CHUNK):
        copied += len(data)
        if data.count(0) == len(data):
            os.lseek(fd, len(data), os.SEEK_CUR)
        else:
            _write(fd, data)
    if copied != member.size:
        raise LayerError("ends in the middle")
    os.ftruncate(fd, copied)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def main() -> None:
    order = Order(**settle(_MEMORY))
    answer(lambda: unpack(order, 0), order.target)


if __name__ == "__main__":
    main()
