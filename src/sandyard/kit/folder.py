"""A directory that only one process uses at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path

from sandyard.kit.errors import ConflictError, NoSpaceError, SandyardError

LOCK_TIMEOUT_S = 0.5  # a process that was just killed, or a child it was starting, may hold the lock a moment longer


class OwnedFolder:
    """A directory with a lock. Creating the object does not touch the disk; `lock` creates and locks the directory. `owner` names the
    kind of program for error messages."""

    def __init__(self, path: Path, owner: str) -> None:
        self.path = path.absolute()
        self._owner = owner
        self._lock_fd: int | None = None

    def prepare(self) -> Path:
        """Create the directory, readable by its owner only, because it holds tokens and files written by sandboxes, and return it.
        Idempotent."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.chmod(0o700)
        except OSError as error:
            if error.errno in {errno.ENOSPC, errno.EDQUOT}:
                raise NoSpaceError(f"There is no space left for the data directory {self.path}.") from error
            raise SandyardError(f"Could not create the data directory {self.path}: {error.strerror}.") from error
        return self.path

    def lock(self) -> None:
        """Lock the directory for this process until `unlock` or exit. Raises ConflictError if another process holds the lock.

        The descriptor is close-on-exec, so that a child process that outlives this one does not keep the lock.
        """
        self.prepare()
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            self._acquire_lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._lock_fd = fd
        try:
            # padded to a fixed length, so that it fits into the block of the previous content
            os.pwrite(fd, f"{os.getpid():<10}\n".encode(), 0)
        except OSError:  # the disk is full; the process id is only for messages
            os.ftruncate(fd, 0)

    def _acquire_lock(self, fd: int) -> None:
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                    raise SandyardError(f"Could not lock {self.path}: {error.strerror}.") from error
                if time.monotonic() > deadline:
                    holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
                    raise ConflictError(
                        f"The data directory {self.path} is in use by another {self._owner} (process {holder}). "
                        "Stop it, or choose another --data-dir."
                    ) from None
                time.sleep(0.02)
            else:
                return

    @property
    def locked(self) -> bool:
        return self._lock_fd is not None

    def unlock(self) -> None:
        """Release the lock. Idempotent."""
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None
