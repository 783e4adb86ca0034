"""The data directory of `sandyard up`: the engine's part, the platform's part, the key between them, one owner at a time.

up.lock · engine.key (mode 0600) · engine/ (root's alone) · platform/
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
from sandyard.kit.ids import random_secret
from sandyard.kit.secret import Secret

ORPHAN_SECONDS = STOP_SECONDS + 5
"""How long the children of a supervisor that was killed may take to be gone."""


def default_data_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/sandyard")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "sandyard"


class State:
    """Making one touches nothing; `take` makes the directory and locks it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.lock = -1

    @property
    def engine(self) -> Path:
        return self.path / "engine"

    @property
    def platform(self) -> Path:
        return self.path / "platform"

    def take(self) -> None:
        """Until this process and all that it has handed the lock to are gone.

        ConflictError when another supervisor has it; waits for what one that was killed has left to end by itself.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.lock = os.open(self.path / "up.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CommandError(f"The data directory {self.path} cannot be used: {error.strerror}.") from None
        deadline = time.monotonic() + ORPHAN_SECONDS
        while not self._locked():
            holder = os.pread(self.lock, 32, 0).decode(errors="replace").strip()
            if _alive(holder) or time.monotonic() > deadline:
                raise ConflictError(
                    f"`sandyard up` runs already on {self.path} (process {holder or 'unknown'}). "
                    "Stop that one, or give this one another --data-dir and --port."
                )
            time.sleep(0.1)
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{os.getpid()}\n".encode(), 0)

    def key(self) -> Secret:
        """The engine's key: made once, readable by the owner of the directory only."""
        file = self.path / "engine.key"
        with contextlib.suppress(FileNotFoundError):
            if text := file.read_text().strip():
                file.chmod(0o600)
                return Secret(text)
        made = random_secret("e2b_", 20)
        fresh = file.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(f"{made.reveal()}\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
        return made

    def give_platform_to(self, user: pwd.struct_passwd) -> None:
        """Let `user` reach and own the platform's part, and nothing else in here."""
        self.path.chmod(0o711)
        self.platform.mkdir(exist_ok=True, mode=0o700)
        before = self.platform.stat().st_uid
        if before == user.pw_uid:
            return
        # its own folder last: one that was cut short is done again. What was another's is left, for it is a hard link from elsewhere
        for _, _, files, folder in os.fwalk(self.platform, topdown=False, follow_symlinks=False):
            for name in files:
                if os.stat(name, dir_fd=folder, follow_symlinks=False).st_uid == before:
                    os.chown(name, user.pw_uid, user.pw_gid, dir_fd=folder, follow_symlinks=False)
            os.fchown(folder, user.pw_uid, user.pw_gid)

    def take_platform_back(self) -> None:
        """For root, who leaves files there that nobody else could read: the next `give_platform_to` has to walk it again."""
        if self.platform.exists() and self.platform.stat().st_uid != 0:
            os.chown(self.platform, 0, 0)

    def _locked(self) -> bool:
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
                raise CommandError(f"{self.path} cannot be locked: {error.strerror}.") from None
            return False
        return True


def _alive(holder: str) -> bool:
    """Whether that supervisor, and not only a child of it, is there. Its number may belong to another one by now."""
    try:
        return b"up" in Path(f"/proc/{int(holder)}/cmdline").read_bytes().split(b"\0")
    except (ValueError, OSError):
        return False
