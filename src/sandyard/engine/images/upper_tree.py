"""Extract a tar of the upper layer of a sandbox into a directory, so that the layer is the same as before.

The format is a POSIX (pax) tar, as GNU tar writes it with `--xattrs`: extended attributes are `SCHILY.xattr.<name>`
records with `%` and `=` in names as `%25` and `%3D`, times have nanoseconds, sparse files have GNU's format 1.0.
Whiteouts are character devices 0:0, and overlay's own attributes have the prefix that it has as root
(`trusted.overlay.`).
"""

from __future__ import annotations

import os
import stat
import tarfile

from sandyard.engine.images.stream import LayerError
from sandyard.engine.images.tree import Meta, Tree, filter_attribute

XATTR_RECORD = "SCHILY.xattr."
OVERLAY, ROOTLESS_OVERLAY = "trusted.overlay.", "user.overlay."
OPAQUE_ATTRIBUTE, REDIRECT_ATTRIBUTE = f"{OVERLAY}opaque", f"{OVERLAY}redirect"
CAPABILITY_ATTRIBUTE = "security.capability"
ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")
MAX_UPPER_DEPTH = 2048  # as many as a path can have
MAX_SPARSE_BYTES = 1 << 60
MAX_REDIRECT = 4096


def encode_xattr_name(name: str) -> str:
    """Return the name of the record of an extended attribute. Its name must not contain `=`."""
    return XATTR_RECORD + name.replace("%", "%25").replace("=", "%3D")


def is_redirect(value: bytes) -> bool:
    """Return whether overlay accepts this value: a name in the same directory, or an absolute path, without `..`."""
    parts = value.split(b"/")
    names = parts[1:] if value.startswith(b"/") else parts
    if not value.startswith(b"/") and len(parts) != 1:
        return False
    return len(value) < MAX_REDIRECT and all(name not in (b"", b".", b"..") and b"\0" not in name for name in names)


def parse_upper_metadata(member: tarfile.TarInfo) -> Meta:
    """Return the metadata of an entry that `engine.layers.pack` has written."""
    xattrs = tuple(
        (_decode_xattr_name(key), value.encode("utf-8", "surrogateescape"))
        for key, value in member.pax_headers.items()
        if key.startswith(XATTR_RECORD)
    )
    seconds, _, fraction = member.pax_headers.get("mtime", str(int(member.mtime))).partition(".")
    try:
        mtime = int(seconds) * 1_000_000_000
        nanoseconds = int(fraction[:9].ljust(9, "0"))
    except ValueError:
        raise LayerError("has a time that is not a number") from None
    mtime += -nanoseconds if seconds.startswith("-") else nanoseconds
    return Meta(member.mode, member.uid, member.gid, max(-(1 << 62), min(mtime, 1 << 62)), xattrs)


def _decode_xattr_name(record: str) -> str:
    return record.removeprefix(XATTR_RECORD).replace("%3D", "=").replace("%25", "%")


class UpperTree(Tree):
    """The directory into which the upper layer of a sandbox is extracted. `mark` is called with the descriptor of each opaque
    directory, and with the descriptor and former path of each renamed one."""

    def add_whiteout_device(self, path: str) -> None:
        parent, name = self._open_parent(path)
        self._remove_existing(parent, name)
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)

    def _set_xattrs(self, fd: int, meta: Meta) -> None:
        for name, value in meta.xattrs:
            if name.startswith(OVERLAY):
                self._set_overlay_attribute(fd, name, value)
            elif name == CAPABILITY_ATTRIBUTE:
                if (capability := filter_attribute(name, value)) is not None and self._privileged:
                    os.setxattr(fd, name, capability)
            elif name.startswith("user.") or name in ACCESS_LISTS:
                if self._privileged:
                    os.setxattr(fd, name, value)
                else:
                    super()._set_xattrs(fd, Meta(0, 0, 0, 0, ((name, value),)))

    def _set_overlay_attribute(self, fd: int, name: str, value: bytes) -> None:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            raise LayerError(f"has the attribute {name!r} on something that is not a directory")
        if name == OPAQUE_ATTRIBUTE and value == b"y":
            self._mark(fd)
        elif name == REDIRECT_ATTRIBUTE and is_redirect(value):
            self._mark(fd, value)
        else:
            raise LayerError(f"has the attribute {name[:100]!r}, which this engine does not know")
