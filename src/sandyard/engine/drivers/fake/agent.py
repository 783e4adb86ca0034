"""The process of a fake sandbox: the guest agent, as the parent of every orphan among its descendants.

So everything a sandbox started can be found from its agent's pid, just as everything in a real one is in its pid
namespace.
"""

from __future__ import annotations

import ctypes
import os

from sandyard.engine.guest.__main__ import main

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent ends."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


if __name__ == "__main__":
    adopt_orphans()
    main()
