"""FUSE connections of sandboxes: find and abort them.

A process that waits for the answer of a FUSE server ends only when the server answers or the connection is aborted, not
by SIGKILL. If the waiting processes themselves hold the server's descriptor, nothing else ends them.

A connection belongs to the sandbox whose host ids include its owner. The kernel takes the owner from the user namespace
of whoever mounted it, so it is always one of the sandbox's own ids, also if the mount is hidden or detached.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

from sandyard.engine.drivers.machine import kernel


def list_connections(owners: range) -> list[str]:
    """Return the numbers of the FUSE connections with an owner in this range of host user ids. Without root, or on a
    kernel without FUSE, there are none."""
    try:
        root = kernel.open_filesystem("fusectl")
    except OSError:
        return []
    try:
        return _list_connections(root, owners)
    finally:
        os.close(root)


def abort_connections(owners: range, *, keep: Collection[range] = ()) -> int:
    """Abort these connections: processes that wait for a response get an error. Return how many there were. `keep`: ranges of
    owners whose connections continue."""
    try:
        root = kernel.open_filesystem("fusectl")
    except OSError:
        return 0
    try:
        kept = {name for ids in keep for name in _list_connections(root, ids)}
        found = [name for name in _list_connections(root, owners) if name not in kept]
        for name in found:
            with contextlib.suppress(OSError):  # it has just ended
                fd = os.open(f"{name}/abort", os.O_WRONLY | os.O_CLOEXEC, dir_fd=root)
                try:
                    os.write(fd, b"1")
                finally:
                    os.close(fd)
        return len(found)
    finally:
        os.close(root)


def _list_connections(root: int, owners: range) -> list[str]:
    found = []
    for name in os.listdir(root):
        with contextlib.suppress(OSError):
            if os.stat(name, dir_fd=root, follow_symlinks=False).st_uid in owners:
                found.append(name)
    return found
