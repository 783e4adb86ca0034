"""The environment of an agent: its root directory, its accounts, and the default user and directory of requests.

Paths of the protocol are absolute in the sandbox ("/home/user/x"). A host path is where the agent finds such a path: the
same, or below `config.root` if that is not `/`.
"""

from __future__ import annotations

import base64
import errno
import os
import posixpath
import stat

from sandyard.engine.guest.config import Defaults, GuestConfig
from sandyard.engine.guest.kernel import open_no_magic
from sandyard.engine.guest.users import Accounts, UnknownUserError, User
from sandyard.engine.guest.wire.connect import RpcError
from sandyard.engine.guest.wire.http1 import HttpError, Request


class PathError(ValueError):
    """An invalid path."""


class NotAFileError(OSError):
    """Not a regular file: opening it might block forever, or have side effects."""


class Sandbox:
    def __init__(self, config: GuestConfig) -> None:
        self.config = config
        self.defaults = Defaults(config)
        # Whether programs run as the requested user, and files are given to that user.
        self.can_switch_user = config.has_default_root and config.switch_user and os.geteuid() == 0
        self._root = "" if config.has_default_root else os.path.realpath(config.root)
        self.accounts = Accounts(self.to_host_path("/etc"), owned_by_caller=not self.can_switch_user)
        self._own_proc = f"/proc/{os.getpid()}"
        try:
            self._proc_device = os.stat("/proc").st_dev if config.has_default_root else -1
        except OSError:
            self._proc_device = -1

    # users ------------------------------------------------------------------------------------------------------------

    def get_rpc_user(self, request: Request) -> User:
        """Return the user an RPC runs as: from `Authorization: Basic user:`, otherwise the default one."""
        named = parse_basic_user(request)
        try:
            return self.accounts.lookup(self.defaults.user if named is None else named)
        except UnknownUserError:
            what = "invalid default user" if named is None else "invalid username"
            raise RpcError("unauthenticated", f"{what}: '{named or self.defaults.user}'") from None

    def check_named_user(self, request: Request) -> None:
        """Check that the user in a request exists, even if no user is needed."""
        if "authorization" in request.headers:
            self.get_rpc_user(request)

    def get_file_user(self, name: str | None) -> User:
        """Return the user of a plain HTTP request for files."""
        name = self.defaults.user if name is None else name
        try:
            return self.accounts.lookup(name)
        except UnknownUserError as error:
            raise HttpError(401, f"error looking up user '{name}': {error}") from None

    # paths ------------------------------------------------------------------------------------------------------------

    def resolve(self, path: str, user: User) -> str:
        """Return an absolute path: relative ones and `~` are relative to the user's home, an empty one is the default
        directory."""
        path = path or self.defaults.workdir or ""
        if "\0" in path:
            raise PathError("the path contains a NUL byte")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise PathError("the path contains characters that UTF-8 cannot encode") from None
        if path.startswith("~"):
            if len(path) > 1 and path[1] != "/":
                raise PathError(
                    f"failed to expand path '{path}' for user '{user.name}': cannot expand user-specific home dir"
                )
            path = user.home + path[1:]
        if path.startswith("/"):
            return path if not self._root else posixpath.normpath(path)
        return posixpath.normpath(posixpath.join(user.home, path))

    def to_host_path(self, path: str) -> str:
        """Return where the agent finds an absolute path of the sandbox."""
        return self._root + path if self._root else path

    def to_sandbox_path(self, path: str) -> str:
        """Return the inverse of `to_host_path`. A path outside the root is returned unchanged."""
        if self._root and (path == self._root or path.startswith(self._root + "/")):
            return path[len(self._root) :] or "/"
        return path

    # files ------------------------------------------------------------------------------------------------------------

    def open_file(self, path: str, flags: int, mode: int = 0o666) -> int:
        """Open a regular file (a host path) without ever blocking. Raises NotAFileError for anything else.

        The agent's own directory in /proc is not accessible, because it exposes the agent's memory and descriptors.
        """
        fd = self._open(path, flags | os.O_NONBLOCK | os.O_NOCTTY, mode)
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode) and not self._is_own_proc(fd, status.st_dev):
            return fd
        os.close(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        raise NotAFileError(errno.EINVAL, "not a regular file", path)

    def open_directory(self, path: str) -> int:
        """Open a directory (a host path). Raises PermissionError for the agent's own directory in /proc."""
        fd = self._open(path, os.O_RDONLY | os.O_DIRECTORY, 0)
        if self._is_own_proc(fd, os.fstat(fd).st_dev):
            os.close(fd)
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return fd

    def _open(self, path: str, flags: int, mode: int) -> int:
        if self.config.has_default_root:
            return open_no_magic(path, flags, mode)
        return os.open(path, flags, mode)

    def _is_own_proc(self, fd: int, device: int) -> bool:
        if device != self._proc_device:
            return False
        path = os.readlink(f"/proc/self/fd/{fd}")
        return path == self._own_proc or path.startswith(self._own_proc + "/")

    def set_owner(self, fd: int, user: User) -> None:
        """Make the user the owner of an open file."""
        if self.can_switch_user:
            os.fchown(fd, user.uid, user.gid)

    def ensure_directory(self, path: str, user: User) -> None:
        """Create a directory (a host path) and its missing parents; new ones belong to the user."""
        missing: list[str] = []
        while True:
            try:
                status = os.stat(path)
            except FileNotFoundError:
                missing.append(path)
                path = posixpath.dirname(path.rstrip("/")) or "/"
                continue
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "path is a file", path)
            break
        for folder in reversed(missing):
            try:
                os.mkdir(folder, 0o755)
            except FileExistsError:
                if not os.path.isdir(folder):
                    raise
                continue
            if self.can_switch_user:
                os.chown(folder, user.uid, user.gid, follow_symlinks=False)


def parse_basic_user(request: Request) -> str | None:
    """Return the user name in an `Authorization: Basic` header, or None if there is none."""
    scheme, _, encoded = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, _password = base64.b64decode(encoded.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return name if colon else None
