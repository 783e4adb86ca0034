"""The data directory of `sandyard up`: the engine's part, the platform's part and the key between them. One process locks it at a time.

up.lock · engine.key (mode 0600) · engine.url · schemas · engine/ (root only) · platform/
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import time
from pathlib import Path

from sandyard.cli.errors import CommandError
from sandyard.cli.up.lifeline import STOP_SECONDS
from sandyard.kit.errors import ConflictError
from sandyard.kit.ids import make_random_secret
from sandyard.kit.secret import Secret

ORPHAN_SECONDS = STOP_SECONDS + 5
"""How long the children of a killed supervisor may take to end."""


RESTORE_FOLDER = "restore.tmp"
"""Exists in the data directory while a backup is being restored."""


def get_default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandyard")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sandyard"


class DataDirectory:
    """The data directory. Creating the object does not touch the disk; `acquire_lock` creates the directory and locks it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock_fd = -1

    @property
    def engine(self) -> Path:
        return self.path / "engine"

    @property
    def platform(self) -> Path:
        return self.path / "platform"

    def acquire_lock(self, *, restoring: bool = False) -> None:
        """Lock the directory until this process and all processes that inherited the lock are gone.

        Raises ConflictError if another supervisor holds it, and CommandError if an interrupted restore has left it incomplete, unless the
        caller is `restoring`. Waits for the children of a killed supervisor to end.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.lock_fd = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(f"Cannot use the data directory {self.path}: {error.strerror}.") from None
        deadline = time.monotonic() + ORPHAN_SECONDS
        while not self._try_lock():
            holder = os.pread(self.lock_fd, 32, 0).decode(errors="replace").strip()
            if is_supervisor_running(holder) or time.monotonic() > deadline:
                raise ConflictError(
                    f"`sandyard up` is already running on {self.path} (process {holder or 'unknown'}). "
                    "Stop it, or choose another --data-dir and --port."
                )
            time.sleep(0.1)
        if not restoring and (self.path / RESTORE_FOLDER).exists():
            self.release_lock()
            raise CommandError(f"{self.path} is incomplete, because `sandyard restore` was interrupted. Run it again.")
        os.ftruncate(self.lock_fd, 0)
        os.pwrite(self.lock_fd, f"{os.getpid()}\n".encode(), 0)

    def release_lock(self) -> None:
        """Release the lock, if no other process inherited it. Idempotent."""
        if self.lock_fd != -1:
            os.close(self.lock_fd)
            self.lock_fd = -1

    def get_engine_key(self) -> Secret:
        """Return the engine's key. It is created once, readable only by the directory's owner."""
        file = self.path / "engine.key"
        with contextlib.suppress(FileNotFoundError):
            if text := file.read_text().strip():
                file.chmod(0o600)
                return Secret(text)
        key = make_random_secret("e2b_", 20)
        temporary = file.with_suffix(".new")
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{key.reveal()}\n")
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
        return key

    def record_engine_url(self, url: str) -> None:
        """Store the URL of the engine, for commands on this machine."""
        self._write("engine.url", url)

    def get_schemas(self) -> str:
        """Return the schemas that `record_schemas` stored, or an empty string."""
        with contextlib.suppress(OSError):
            return (self.path / "schemas").read_text().strip()
        return ""

    def record_schemas(self, schemas: str) -> None:
        """Store which schemas the databases have."""
        if self.get_schemas() != schemas:
            self._write("schemas", schemas)

    def give_platform_to(self, user: pwd.struct_passwd) -> None:
        """Make `user` the owner of the platform's part, without access to the rest of the data directory."""
        self.path.chmod(0o711)
        self.platform.mkdir(exist_ok=True, mode=0o700)
        before = self.platform.stat().st_uid
        if before == user.pw_uid:
            return
        # The top directory comes last, so that an interrupted run is repeated. Files of other owners are skipped: they may be hard links to
        # files outside.
        for _, _, files, folder in os.fwalk(self.platform, topdown=False, follow_symlinks=False):
            for name in files:
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == before:
                    os.chown(name, user.pw_uid, user.pw_gid, dir_fd=folder, follow_symlinks=False)
            os.fchown(folder, user.pw_uid, user.pw_gid)

    def take_platform_back(self) -> None:
        """Make root the owner of the platform's directory again, so that the next `give_platform_to` also changes files that root creates
        now."""
        if self.platform.exists() and self.platform.stat().st_uid != 0:
            os.chown(self.platform, 0, 0)

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f"{name}.new"
        temporary.write_text(f"{text}\n")
        temporary.replace(self.path / name)

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self.lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise CommandError(f"Could not lock {self.path}: {error.strerror}.") from None
            return False
        return True


def is_supervisor_running(holder: str) -> bool:
    """Return whether that supervisor itself is running, and not only a child of it. Its process id may have been reused."""
    try:
        return b"up" in Path(f"/proc/{int(holder)}/cmdline").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return False
