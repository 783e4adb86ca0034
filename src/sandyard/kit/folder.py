"""A folder that belongs to one process at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from sandyard.kit.errors import ConflictError, NoSpaceError, SandyardError

PATIENCE_S = 0.5  # who was just killed, or a child of it that is just being started, may hold on for a moment


class OwnedFolder:
    """Making one touches nothing; `lock` makes and takes it. `owner` is what whoever has it calls itself."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path.absolute()
        self._owner = owner
        self._lock_fd: int | None = None

    def prepare(self) -> None:
        """Make the directory, readable by its owner only: it holds tokens and what sandboxes wrote. Idempotent."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NoSpaceError(f"There is no space left for the data directory {self.path}.") from error
            raise SandyardError(f"The data directory {self.path} cannot be made: {error.strerror}.") from error

    def lock(self) -> None:
        """Take the directory for this process until `unlock` or its death. ConflictError when another one has it.

        The descriptor is close-on-exec, so that no child process that outlives this one keeps the lock.
        """
        self.prepare()
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._take(fd)
        except BaseException:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._lock_fd = fd

    def _take(self, fd: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise SandyardError(f"{self.path} cannot be locked: {error.strerror}.") from error
                if time.monotonic() > deadline:
                    holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    raise ConflictError(
                        f"The data directory {self.path} is in use by another {self._owner} (process {holder}). "
                        "Stop that one, or give this one another --data-dir."
                    ) from None
                time.sleep(0.02)
            else:
                return

    @property
    def locked(self) -> bool:
        return self._lock_fd is not None

    def unlock(self) -> None:
        """Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
