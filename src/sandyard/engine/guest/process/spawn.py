"""Start a program as a user of the sandbox, without a fork.

The agent itself switches to the user for an instant, lets `posix_spawn` (a vfork) start the program, and switches back:
this needs no copy of the agent's page tables, 0.13 ms instead of 1.2 ms for fork + setuid + exec of an interpreter. It
is safe because the agent has one thread, so nothing else runs in between; the saved ids stay 0, so it can always switch
back; exec sets the program's saved ids to the user's, so the program cannot; and the agent is undumpable, so that a
process of the same user may not trace it during that instant.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sandyard.engine.guest.kernel import open_no_magic
from sandyard.engine.guest.users import User

_EXHAUSTED = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC})
_NOT_A_PROGRAM = frozenset({errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
_SHELL, _BASH = "/bin/sh", "/bin/bash"
_AGENT_FILE_LIMIT = 1 << 16


class SpawnError(Exception):
    """A process could not be started. `exhausted` means that the same request may succeed later."""

    def __init__(self, message: str, *, exhausted: bool = False) -> None:
        super().__init__(message)
        self.exhausted = exhausted


class NoDirectoryError(Exception):
    """The working directory of a program does not exist."""


FileLimits = tuple[tuple[int, int], tuple[int, int]]
"""RLIMIT_NOFILE (soft, hard) of the started programs, and of the agent."""


def raise_file_limit() -> FileLimits:
    """Allow the agent more open files than the programs it starts, because it needs some for each of them."""
    inherited = resource.getrlimit(resource.RLIMIT_NOFILE)
    hard = inherited[1]
    wanted = _AGENT_FILE_LIMIT if hard == resource.RLIM_INFINITY else min(hard, _AGENT_FILE_LIMIT)
    own = (max(wanted, inherited[0]), hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, own)
    return inherited, own


def keep_file_limit() -> FileLimits:
    """Return the current limit for both, and change nothing."""
    current = resource.getrlimit(resource.RLIMIT_NOFILE)
    return current, current


@dataclass(frozen=True, slots=True)
class Program:
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str


class Spawner:
    """Starts programs: with `switch_user` as the requested user, otherwise as the agent's own."""

    def __init__(self, *, switch_user: bool, file_limits: FileLimits) -> None:
        self._switch_user = switch_user
        self._own_groups = os.getgroups()
        self._ignored = _list_ignored_signals()
        self._inherited_limit, self._own_limit = file_limits
        self._oom_score: bytes | None = None
        if _read_own_oom_score() < 0:
            self._oom_score = b"0"  # the agent is protected; its programs must not be
        elif os.getpid() == 1:
            self._oom_score = b"500"  # if the agent cannot be protected, its programs are killed first

    def spawn(self, program: Program, user: User, stdio: Sequence[int]) -> int:
        """Start `program` in a new session, with `stdio` as descriptors 0, 1 and 2. Return its pid. Raises SpawnError or
        NoDirectoryError."""
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(stdio) if fd != target]
        return self._start(program, user, actions)

    def spawn_on_terminal(self, program: Program, user: User, slave: int) -> int:
        """Start `program` in a new session whose controlling terminal is `slave`. Return its pid. Raises like `spawn`."""
        if self._switch_user:
            os.fchown(slave, user.uid, -1)
        # The first terminal that a session leader opens becomes its controlling terminal.
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.ttyname(slave), os.O_RDWR, 0),
            (os.POSIX_SPAWN_DUP2, 0, 1),
            (os.POSIX_SPAWN_DUP2, 0, 2),
        ]
        return self._start(program, user, actions)

    def _start(self, program: Program, user: User, actions: Sequence[tuple[int | str, ...]]) -> int:
        switched = self._switch_user and user.uid != 0
        try:
            if switched:
                self._become_user(user)
            _change_directory(program.cwd)
            pid = self._spawn(program, actions)
        except OSError as error:
            reason = f"error starting process '{' '.join(program.argv)}': {error.strerror or error}"
            raise SpawnError(reason, exhausted=error.errno in _EXHAUSTED) from None
        except ValueError as error:
            raise SpawnError(f"error starting process: {error}") from None
        finally:
            if switched:
                self._become_root()
            os.chdir("/")
        if self._oom_score is not None:
            with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:
                file.write(self._oom_score)
        return pid

    def _become_user(self, user: User) -> None:
        os.setgroups(user.groups)
        os.setresgid(user.gid, user.gid, 0)
        os.setresuid(user.uid, user.uid, 0)

    def _become_root(self) -> None:
        os.setresuid(0, 0, 0)
        os.setresgid(0, 0, 0)
        os.setgroups(self._own_groups)

    def _spawn(self, program: Program, actions: Sequence[tuple[int | str, ...]]) -> int:
        limited = self._inherited_limit != self._own_limit
        if limited:
            resource.setrlimit(resource.RLIMIT_NOFILE, self._inherited_limit)
        try:
            for path in _find_candidates(program):
                try:
                    return self._posix_spawn(path, program.argv, program.env, actions)
                except OSError as error:
                    if error.errno not in _NOT_A_PROGRAM:
                        raise
            if program.argv[0] == _BASH:  # an image without bash has a shell that supports -l, -i and -c as well
                argv: tuple[str, ...] = (_SHELL, *program.argv[1:])
                return self._posix_spawn(_SHELL, argv, program.env, actions)
            # Like envd: the process starts, and a shell reports the error on stderr and exits with 126 or 127. A script
            # without a shebang line is run by the shell.
            argv = (_SHELL, "-c", 'exec "$@"', _SHELL, *program.argv)
            return self._posix_spawn(_SHELL, argv, program.env, actions)
        finally:
            if limited:
                resource.setrlimit(resource.RLIMIT_NOFILE, self._own_limit)

    def _posix_spawn(
        self, path: str, argv: tuple[str, ...], env: dict[str, str], actions: Sequence[tuple[int | str, ...]]
    ) -> int:
        return os.posix_spawn(
            path, argv, env, file_actions=actions, setsid=True, setsigmask=(), setsigdef=self._ignored
        )


def _change_directory(path: str) -> None:
    """Change the current directory, with the permissions of the current user. Raises NoDirectoryError if it is missing."""
    try:
        fd = open_no_magic(path, os.O_PATH | os.O_DIRECTORY)
    except FileNotFoundError:
        raise NoDirectoryError from None
    try:
        os.fchdir(fd)
    finally:
        os.close(fd)


def _find_candidates(program: Program) -> Iterator[str]:
    """Yield the files that the command may name, in the order of PATH. The current directory must be the program's."""
    command = program.argv[0]
    if "/" in command:
        yield command
        return
    for folder in program.env.get("PATH", "").split(":"):
        path = f"{folder or '.'}/{command}"
        with contextlib.suppress(OSError):
            if stat.S_ISREG(os.stat(path).st_mode):
                yield path


def _list_ignored_signals() -> list[int]:
    """Return the signals that the agent ignores, and programs must not. Two belong to the C library and stay as they are."""
    field = _read_own_file("status").partition(b"SigIgn:")[2].split()
    if not field:  # gVisor does not report it
        return [number for number in signal.valid_signals() if signal.getsignal(number) == signal.SIG_IGN]
    mask = int(field[0], 16)
    return [number for number in range(1, 65) if mask >> (number - 1) & 1 and number not in (32, 33)]


def _read_own_oom_score() -> int:
    return int(_read_own_file("oom_score_adj"))


def _read_own_file(name: str) -> bytes:
    """Read a file about this process. Avoids Python's file objects, which would use more memory than anything else in
    an idle agent."""
    fd = os.open(f"/proc/self/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, 4096)
    finally:
        os.close(fd)
