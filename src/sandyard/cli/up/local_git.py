"""Serve local repositories to a platform whose user may not read them.

Administrators configure paths. The platform connects to a socket that only accepts its user, and git runs in the repository as the
repository's owner: without its hooks, without any program that its configuration names, and with nothing else writable. The platform
gets what `git fetch` and `git push` transfer, and no file access.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import socket
import stat
import struct
import subprocess
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandyard.cli.up import stepdown
from sandyard.kit.errors import SandyardError
from sandyard.kit.python import SAFE_FOLDER, make_bare_python_command

SERVICES = {"git-upload-pack": "upload-pack", "git-receive-pack": "receive-pack"}
MAX_CONNECTIONS = 64
MAX_REQUEST_BYTES = 8192
REQUEST_TIMEOUT_SECONDS = 10.0
CONFIG = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.alternateRefsCommand=true",
    "core.sshCommand=false",
    "gpg.program=false",
    "gpg.ssh.program=false",
    "gpg.x509.program=false",
    "receive.autogc=false",
    "receive.denyCurrentBranch=refuse",
    "gc.auto=0",
    "maintenance.auto=false",
    "pack.window=0",
)
"""Overrides of the repository's configuration: every setting by which serving it could run a program or write to its work tree.
Delta compression is off, because data that stays on this machine need not be smaller."""
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}


class RefusedError(SandyardError):
    """A repository is not served. The message is for the user who configured it."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository. `folder` is its git directory, the only one that git writes to. `uid` and `gid` are its owner."""

    folder: str
    uid: int
    gid: int


class LocalGit:
    """Serves repositories below `folders` to processes of `uid` only, from `start` until `close` or exit."""

    def __init__(self, uid: int, folders: Sequence[str] = ("/",)) -> None:
        self._uid = uid
        self._folders = tuple(folders)
        self.name = f"sandyard-git-{secrets.token_hex(16)}"
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)

    def start(self) -> None:
        """Listen on an abstract socket, which needs no directory that both sides can access."""
        self._listener.bind("\0" + self.name)
        self._listener.listen(MAX_CONNECTIONS)
        threading.Thread(target=self._listen, name="local-git", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if _get_peer_uid(connection) != self._uid or not self._slots.acquire(timeout=REQUEST_TIMEOUT_SECONDS):
                connection.close()
                continue
            threading.Thread(target=self._serve, args=(connection,), name="local-git", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError):
                connection.settimeout(REQUEST_TIMEOUT_SECONDS)
                connection.send(json.dumps(_handle_request(connection, self._folders)).encode())
        finally:
            self._slots.release()


def _handle_request(connection: socket.socket, folders: Sequence[str]) -> dict[str, Any]:
    with ExitStack() as stack:
        data, files, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 3)
        for descriptor in files:
            stack.callback(os.close, descriptor)
        try:
            request = json.loads(data)
            service, protocol = SERVICES[request["service"]], str(request["protocol"])
            stdin, stdout, stderr = files
            repository = find_repository(request["path"], folders)
        except RefusedError as refused:
            return {"refused": refused.message}
        except (ValueError, KeyError, TypeError):
            return {"refused": "Invalid request."}
        process = subprocess.Popen(
            make_command(service, repository),
            cwd=SAFE_FOLDER,
            env=ENVIRONMENT | ({"GIT_PROTOCOL": protocol} if re.fullmatch(r"version=\d", protocol) else {}),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        _wait_for_exit_or_disconnect(process, connection)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {"code": process.returncode if process.returncode >= 0 else 128}


def make_command(service: str, repository: Repository) -> list[str]:
    """Return the command that serves the repository as its owner."""
    writes = repository.folder if service == "receive-pack" else ""
    order = {"uid": repository.uid, "gid": repository.gid, "sealed": writes}
    settings = (word for setting in CONFIG for word in ("-c", setting))
    return make_bare_python_command(stepdown.__file__, json.dumps(order), "git", *settings, service, repository.folder)


def find_repository(path: str, folders: Sequence[str] = ("/",)) -> Repository:
    """Return the repository at exactly this path. Raises RefusedError if there is none, or none that can be served safely.

    No link is followed: otherwise anyone with write access to a parent directory could redirect us to another user's repository.
    """
    if not isinstance(path, str) or not path.startswith("/") or "\0" in path or path != os.path.normpath(path):
        raise RefusedError("Use the absolute path of a repository on this machine.")
    if not any(Path(path).is_relative_to(folder) for folder in folders):
        raise RefusedError(
            f"{path} is not below a directory that is allowed for repositories (SANDYARD_LOCAL_REPOSITORIES)."
        )
    top = _stat_directory(path, path)
    owner = (top.st_uid, top.st_gid)
    _check_not_writable_by_others(path, top)
    git = f"{path}/.git"
    try:
        inner = os.lstat(git)
    except OSError:
        if not (Path(path, "HEAD").exists() and Path(path, "objects").is_dir()):
            raise RefusedError(f"{path} does not appear to be a git repository.") from None
        return Repository(path, *owner)
    if stat.S_ISREG(inner.st_mode) and inner.st_uid == top.st_uid:
        git = _find_common_git_dir(git)
        inner = _stat_directory(git, path)
    if not stat.S_ISDIR(inner.st_mode) or inner.st_uid != top.st_uid:
        raise RefusedError(f"{git} is a link or belongs to a different user than {path}.")
    _check_not_writable_by_others(git, inner)
    return Repository(git, *owner)


def _stat_directory(path: str, named: str) -> os.stat_result:
    """Return the status of a directory without following a link anywhere in its path."""
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC
    parent = os.open("/", flags)
    try:
        for name in path.strip("/").split("/"):
            child = os.open(name, flags, dir_fd=parent)
            os.close(parent)
            parent = child
        return os.fstat(parent)
    except NotADirectoryError:
        raise RefusedError(
            f"{named} contains a symbolic link or is not a directory. Use the real path: {os.path.realpath(path)}."
        ) from None
    except OSError as error:
        raise RefusedError(f"Could not open {named}: {error.strerror}.") from None
    finally:
        os.close(parent)


def _find_common_git_dir(file: str) -> str:
    """Return the repository that the `.git` file of a linked work tree points to."""
    try:
        text = Path(file).read_text(errors="replace")[:MAX_REQUEST_BYTES]
        folder = os.path.normpath(Path(file).parent / text.removeprefix("gitdir:").strip())
        common = Path(folder, "commondir")
        return os.path.normpath(Path(folder) / common.read_text().strip()) if common.exists() else folder
    except (OSError, ValueError):
        raise RefusedError(f"{file} does not point to a repository.") from None


def _check_not_writable_by_others(path: str, found: os.stat_result) -> None:
    """Raise RefusedError for a directory of root that others may write to, because git would run as root in it."""
    if found.st_uid == 0 and found.st_mode & 0o022:
        raise RefusedError(
            f"{path} belongs to root, and other users may write to it. Run `chmod go-w` on it or change its owner."
        )


def _get_peer_uid(connection: socket.socket) -> int:
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return int(uid)


def _wait_for_exit_or_disconnect(process: subprocess.Popen[bytes], connection: socket.socket) -> None:
    """Return when the process has ended or the client has disconnected."""
    pidfd = os.pidfd_open(process.pid)
    try:
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.register(connection, select.POLLIN | select.POLLHUP)
        waiting.poll()
    finally:
        os.close(pidfd)
