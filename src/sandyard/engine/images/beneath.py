"""Open files below a directory with untrusted contents."""

from __future__ import annotations

from sandyard.kit.opening import Resolve, open_within


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """Open a path as a process whose `/` is the directory `root` would: links and `..` stay inside it. Raises OSError."""
    return open_within(root, path, flags, mode, resolve=Resolve.IN_ROOT | Resolve.NO_MAGICLINKS)


def open_beneath(root: int, path: str, flags: int) -> int:
    """Open a path; links that lead out of the directory `root` are an error (EXDEV), as are those of procfs."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_MAGICLINKS)


def open_plainly(root: int, path: str, flags: int) -> int:
    """Open a path; any link on the way is an error (ELOOP)."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_SYMLINKS)
