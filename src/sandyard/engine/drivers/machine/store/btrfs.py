"""Subvolumes, snapshots and quotas of btrfs, by ioctl. All functions block and raise OSError. The caller needs
CAP_SYS_ADMIN."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from pathlib import Path

from sandyard.engine.drivers.machine import kernel

MAGIC = 0x9123_683E

_SUBVOL_CREATE_V2, _SNAP_CREATE_V2, _SNAP_DESTROY = 0x5000_9418, 0x5000_9417, 0x5000_940F
_INO_LOOKUP, _TREE_SEARCH = 0xD000_9412, 0xD000_9411
_RESIZE, _FS_INFO = 0x5000_9403, 0x8400_941F
_QUOTA_CTL, _QGROUP_LIMIT, _QGROUP_CREATE = 0xC010_9428, 0x8030_942B, 0x4010_942A
_QUOTA_ENABLE, _QUOTA_ENABLE_SIMPLE = 1, 4

_READ_ONLY, _INHERIT = 2, 4
_FIRST_OBJECT = 256
_QUOTA_TREE, _ROOT_TREE = 8, 1
_QGROUP_STATUS_KEY, _QGROUP_INFO_KEY, _ROOT_ITEM_KEY = 240, 242, 132
_LIMIT_REFERENCED = 1
# tree, min/max objectid, min/max offset, min/max transid, min/max type, items, 4 unused
_SEARCH = struct.Struct("7Q4I4Q")
_HEADER = struct.Struct("3Q2I")  # transid, objectid, offset, type, len
_MAX = 2**64 - 1


@contextlib.contextmanager
def _open_directory(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def is_btrfs(path: Path) -> bool:
    return kernel.get_filesystem_type(str(path)) == MAGIC


def resize(path: Path, size: int | None) -> None:
    """Resize the file system to its device, or to this many bytes. Shrinking moves data beyond the end; ENOSPC means
    that it does not fit. Crash-safe; returns when it is on disk."""
    name = b"1:max" if size is None else f"1:{size}".encode()
    with _open_directory(path) as fd:
        fcntl.ioctl(fd, _RESIZE, bytearray(struct.pack("=q4088s", 0, name)))


def read_pending_bytes(path: Path) -> int:
    """Return the bytes that were written but have no place on disk yet: statvfs still reports them as free."""
    info = bytearray(1024)
    with _open_directory(path) as fd:
        fcntl.ioctl(fd, _FS_INFO, info)
    uuid = info[16:32].hex()
    name = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    try:
        return int(Path(f"/sys/fs/btrfs/{name}/allocation/data/bytes_may_use").read_text())
    except (OSError, ValueError):
        return 0


def create(path: Path, group: int | None) -> int:
    """Create a subvolume as a member of that quota group. Return its id."""
    _create_subvolume(_SUBVOL_CREATE_V2, path, 0, 0, group)
    return get_subvolume_id(path)


def snapshot(source: Path, path: Path, group: int | None, *, read_only: bool) -> int:
    """Copy a subvolume as it is now, including dirty pages, as a member of that quota group. Return the copy's id."""
    with _open_directory(source) as fd:
        _create_subvolume(_SNAP_CREATE_V2, path, fd, _READ_ONLY if read_only else 0, group)
    return get_subvolume_id(path)


def _create_subvolume(request: int, path: Path, source: int, flags: int, group: int | None) -> None:
    inherit = ctypes.create_string_buffer(struct.pack("10Q", 0, 1, 0, 0, 0, 0, 0, 0, 0, group or 0), 80)
    size, pointer = (80, ctypes.addressof(inherit)) if group is not None else (0, 0)
    flags |= _INHERIT if group is not None else 0
    args = bytearray(struct.pack("=qQQQQ16s4040s", source, 0, flags, size, pointer, b"", os.fsencode(path.name)))
    with _open_directory(path.parent) as parent:
        fcntl.ioctl(parent, request, args)


def delete(path: Path) -> None:
    """Delete the subvolume. It is gone at once; a kernel thread frees its space. Does nothing if it does not exist."""
    args = bytearray(struct.pack("=q4088s", 0, os.fsencode(path.name)))
    with _open_directory(path.parent) as parent, contextlib.suppress(FileNotFoundError):
        fcntl.ioctl(parent, _SNAP_DESTROY, args)


def get_subvolume_id(path: Path) -> int:
    args = bytearray(4096)
    struct.pack_into("=QQ", args, 0, 0, _FIRST_OBJECT)
    with _open_directory(path) as fd:
        fcntl.ioctl(fd, _INO_LOOKUP, args)
    return int(struct.unpack_from("=Q", args)[0])


# Quotas ------------------------------------------------------------------------------------------------------------------


def get_quota_kind(path: Path) -> str | None:
    """Return "simple", "full", or None if quotas are off."""
    for _, _, data in _search_tree(path, _QUOTA_TREE, 0, _MAX, kind=_QGROUP_STATUS_KEY):
        simple = 1 << 3  # BTRFS_QGROUP_STATUS_FLAG_SIMPLE_MODE
        return "simple" if struct.unpack_from("=Q", data, 16)[0] & simple else "full"
    return None


def enable_quota(path: Path) -> str:
    """Enable quotas: simple ones if the kernel supports them (6.7), which cost almost nothing, otherwise full ones."""
    with _open_directory(path) as fd:
        for kind, command in (("simple", _QUOTA_ENABLE_SIMPLE), ("full", _QUOTA_ENABLE)):
            try:
                fcntl.ioctl(fd, _QUOTA_CTL, bytearray(struct.pack("=QQ", command, 0)))
            except OSError as error:
                if kind == "full" or error.errno not in {errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP}:
                    raise
            else:
                return kind
    raise AssertionError


def create_group(path: Path, group: int) -> None:
    """Create a quota group. Idempotent."""
    with _open_directory(path) as fd, contextlib.suppress(FileExistsError):
        fcntl.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 1, group))


def set_limit(path: Path, group: int, limit: int) -> None:
    """Set the bytes that a quota group may use. A subvolume's own group has its id."""
    with _open_directory(path) as fd:
        fcntl.ioctl(fd, _QGROUP_LIMIT, struct.pack("=6Q", group, _LIMIT_REFERENCED, limit, 0, 0, 0))


def read_usage(path: Path, group: int) -> int:
    """Return the bytes that a quota group uses, as of the last commit (at most half a minute ago)."""
    for _, _, data in _search_tree(path, _QUOTA_TREE, 0, 0, kind=_QGROUP_INFO_KEY, offset=group):
        return int(struct.unpack_from("=Q", data, 8)[0])
    return 0


def read_own_usages(path: Path) -> dict[int, int]:
    """Return the bytes that each subvolume has alone or, with simple quotas, that it has written and that still exist."""
    found = {}
    for _, group, data in _search_tree(path, _QUOTA_TREE, 0, 0, kind=_QGROUP_INFO_KEY):
        if group >> 48 == 0:
            found[group] = int(struct.unpack_from("=Q", data, 24)[0])
    return found


def drop_stale_groups(path: Path) -> None:
    """Remove the quota groups of deleted subvolumes. New kernels do this by themselves."""
    subvolumes = {
        objectid for objectid, _, _ in _search_tree(path, _ROOT_TREE, _FIRST_OBJECT, _MAX, kind=_ROOT_ITEM_KEY)
    }
    groups = [group for _, group, _ in _search_tree(path, _QUOTA_TREE, 0, 0, kind=_QGROUP_INFO_KEY)]
    with _open_directory(path) as fd:
        for group in groups:
            if group >= _FIRST_OBJECT and group >> 48 == 0 and group not in subvolumes:
                with contextlib.suppress(OSError):  # its extents are still shared with others
                    fcntl.ioctl(fd, _QGROUP_CREATE, struct.pack("=QQ", 0, group))


def _search_tree(
    path: Path, tree: int, first: int, last: int, *, kind: int, offset: int | None = None
) -> Iterator[tuple[int, int, bytes]]:
    """Yield items of one type in a metadata tree, as (objectid, offset, data). Nothing if there is no such tree."""
    start = (first, offset or 0)
    with _open_directory(path) as fd:
        while True:
            args = bytearray(4096)
            end = _MAX if offset is None else offset
            _SEARCH.pack_into(args, 0, tree, start[0], last, start[1], end, 0, _MAX, kind, kind, 1024, 0, 0, 0, 0, 0)
            try:
                fcntl.ioctl(fd, _TREE_SEARCH, args)
            except FileNotFoundError:
                return
            count = struct.unpack_from("=I", args, 64)[0]
            position = _SEARCH.size
            for _ in range(count):
                _, objectid, item, item_kind, length = _HEADER.unpack_from(args, position)
                position += _HEADER.size
                if item_kind == kind and (offset is None or item == offset):
                    yield objectid, item, bytes(args[position : position + length])
                position += length
                # Keys are ordered by object, type, offset; only whole keys can be compared, so other types are included.
                start = (objectid, item + 1) if item_kind == kind else (objectid + (item_kind > kind), 0)
            if count == 0 or offset is not None:
                return
