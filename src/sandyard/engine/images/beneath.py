"""Opening files below a directory whose content somebody else chose."""

from __future__ import annotations

from sandyard.kit.opening import Resolve, open_within


def open_in_root(root: int, path: str, flags: int, mode: int = 0) -> int:
    """As a process would whose `/` is the directory `root`: links and `..` stay within it. Raises OSError."""
    return open_within(root, path, flags, mode, resolve=Resolve.IN_ROOT | Resolve.NO_MAGICLINKS)


def open_beneath(root: int, path: str, flags: int) -> int:
    """Links that lead out of the directory `root` are an error (EXDEV), as are those of procfs."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_MAGICLINKS)


def open_plainly(root: int, path: str, flags: int) -> int:
    """No link on the way, at all (ELOOP)."""
    return open_within(root, path, flags, resolve=Resolve.BENEATH | Resolve.NO_SYMLINKS)
