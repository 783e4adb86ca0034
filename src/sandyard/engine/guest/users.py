"""The sandbox's accounts, from its own /etc/passwd and /etc/group. `pwd` is not used, because it would load the image's
NSS modules into the agent. Both files are read again when they change."""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

_Stamp = tuple[int, int, int]
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class User:
    name: str
    uid: int
    gid: int
    home: str
    shell: str
    groups: tuple[int, ...]


class UnknownUserError(LookupError):
    """The user does not exist."""


class _Table:
    """The rows of a colon-separated file, parsed once per version of the file. A missing file is treated as empty."""

    __slots__ = ("_path", "_stamp", "rows")

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: _Stamp | None = None
        self.rows: list[list[str]] = []

    def refresh(self) -> bool:
        """Read the file if it changed. Return whether `rows` is new."""
        try:
            status = os.stat(self._path)
        except OSError:
            changed, self._stamp, self.rows = self._stamp is not None, None, []
            return changed
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp == self._stamp:
            return False
        try:
            text = read_text(self._path)
        except OSError:
            return False
        self.rows = [line.split(":") for line in text.splitlines() if line and not line.startswith(("#", "+", "-"))]
        self._stamp = stamp
        return True


def read_text(path: str) -> str:
    """Return the content of a file of the image. Raises OSError if it is too long, or not a regular file: programs in the
    sandbox can replace it by a pipe, which would block the agent."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, encoding="utf-8", errors="replace") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return file.read(_MAX_BYTES)


class Accounts:
    """Finds accounts by name or number. With `owned_by_caller`, for an agent that cannot switch users, every account has
    the agent's own ids, and `user` and `root` exist without any file."""

    def __init__(self, etc: str, *, owned_by_caller: bool = False) -> None:
        self._passwd = _Table(os.path.join(etc, "passwd"))
        self._group = _Table(os.path.join(etc, "group"))
        self._owned_by_caller = owned_by_caller
        self._users: dict[str, User] = {}
        self._names: dict[int, str] = {}
        self._group_names: dict[int, str] = {}

    def lookup(self, name: str) -> User:
        """Return the user of this name. Raises UnknownUserError."""
        self.refresh()
        try:
            return self._users[name]
        except KeyError:
            raise UnknownUserError(f"user: unknown user {name}") from None

    def get_user_name(self, uid: int) -> str:
        """Return the name as of the last `refresh`, or the number if there is none."""
        return self._names.get(uid) or str(uid)

    def get_group_name(self, gid: int) -> str:
        """Return the name as of the last `refresh`, or the number if there is none."""
        return self._group_names.get(gid) or str(gid)

    def refresh(self) -> None:
        """Read the files again if they changed."""
        changed = self._passwd.refresh()
        if not (self._group.refresh() or changed or not self._users):
            return
        memberships: dict[str, list[int]] = {}
        self._group_names = {}
        for row in self._group.rows:
            if len(row) < 4 or not _is_id(row[2]):
                continue
            self._group_names.setdefault(int(row[2]), row[0])
            for member in row[3].split(","):
                memberships.setdefault(member.strip(), []).append(int(row[2]))
        self._users, self._names = {}, {}
        for row in self._passwd.rows:
            if len(row) >= 7 and _is_id(row[2]) and _is_id(row[3]):
                name, gid = row[0], int(row[3])
                groups = (gid, *(group for group in memberships.get(name, []) if group != gid))
                self._add(User(name, int(row[2]), gid, row[5] or "/", row[6].strip() or "/bin/sh", groups))
        if self._owned_by_caller:
            self._adopt_caller()

    def _add(self, user: User) -> None:
        """Add a user; the first entry of a name or number counts."""
        self._users.setdefault(user.name, user)
        self._names.setdefault(user.uid, user.name)

    def _adopt_caller(self) -> None:
        """Give all accounts the ids of this process."""
        uid, gid = os.getuid(), os.getgid()
        for name, home in (("user", "/home/user"), ("root", "/root")):
            self._users.setdefault(name, User(name, uid, gid, home, "/bin/bash", (gid,)))
        self._users = {name: User(name, uid, gid, user.home, user.shell, (gid,)) for name, user in self._users.items()}
        self._names = {uid: "user"}
        self._group_names = {gid: "user"}


def _is_id(text: str) -> bool:
    """Return whether this is a user or group id that the kernel accepts; the highest number means "unchanged"."""
    return text.isascii() and text.isdigit() and len(text) <= 10 and int(text) < 0xFFFFFFFF
