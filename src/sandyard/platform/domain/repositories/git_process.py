"""Run git on the platform's machine. Only this git ever connects to a remote or sees a credential."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Container, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sandyard.kit import processes
from sandyard.kit.destinations import Destinations, PrivateAddressError, is_proxied
from sandyard.kit.pacing import take_turn
from sandyard.kit.processes import PipeReader, Process
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.repositories.error_translation import (
    HOST_NOT_FOUND,
    LOCAL_PATH_REFUSED,
    clean_line,
    create_mask,
    translate_error,
)
from sandyard.platform.domain.repositories.errors import (
    GitFailedError,
    GitTimeoutError,
    RemoteUnreachableError,
    RepositoryInvalidError,
)
from sandyard.platform.domain.repositories.git_environment import create_memory_file, prepare_environment
from sandyard.platform.domain.repositories.model import Credential, Progress, ignore_progress
from sandyard.platform.domain.repositories.remote import Remote

OUTPUT_LIMIT = 64 << 20
DEFAULT_MEMORY_BYTES = 4 << 30
"""Memory limit of one git process, in bytes. Fetching and packing need about a hundred bytes per object of a repository."""
MAX_PROCESSES = 8
"""Maximum number of concurrent git processes of one platform, not counting those that talk to a remote."""
_KEPT_STDERR_LENGTH = 64 << 10
_MAX_LINE_BYTES = 4 << 10
_CHUNK_BYTES = 64 << 10
_STDERR_CHUNK_BYTES = 4 << 10  # lines cost more than bytes, and a remote may send empty ones
_MAX_STDERR_BYTES = 4 << 20  # output beyond this is ignored
_FILE_SIZE_UNIT = 512  # unit of `ulimit -f`
_NOT_FOUND = 127  # exit code of a shell if there is no such program
_GRACE_S = 2.0  # for git to remove its lock files after SIGTERM

_LINE_END = re.compile(rb"[\r\n]+")
_PERCENT = re.compile(r"^(?:remote: )?(?P<what>[A-Z][A-Za-z /-]+):\s+(?P<percent>\d{1,3})% ")
_COUNTED = re.compile(r"^(?:remote: )?[A-Z][A-Za-z /-]+: \d+(, done\.)?$")

MINIMUM_VERSION = (2, 38)
"""Minimum version of git: the first that can merge without a work tree."""

Stdin = bytes | Path | IO[bytes] | None
"""Input of a process. An open file is read from its current position."""


@dataclass(frozen=True, slots=True)
class GitResult:
    """Result of a git process.

    `truncated`: stdout exceeded the limit and git was stopped; `code` is then meaningless. `duration_s` is the run time of
    git without the time spent waiting for a slot.
    """

    code: int
    stdout: bytes
    stderr: str
    truncated: bool = False
    duration_s: float = 0.0


class Git:
    """Runs git, one process group per call, without the configuration of this machine or user."""

    def __init__(
        self,
        folder: Path,
        *,
        timeout_s: float,
        destinations: Destinations | None = None,
        local: str | None = None,
        samples: Path | None = None,
    ) -> None:
        """Create a runner.

        `destinations` limits the hosts of remotes that no administrator is responsible for; of paths on this machine, these may
        only use those in the folder `samples`. None: any host and path. `local`: see `prepare_environment`.
        """
        self.folder = folder
        self._timeout_s = timeout_s
        self._destinations = destinations
        self._local = local
        self._samples = None if samples is None else samples.absolute()
        self._slots = asyncio.Semaphore(MAX_PROCESSES)

    async def run(
        self,
        *arguments: str,
        cwd: Path | None,
        credential: Credential | None = None,
        remote: Remote | None = None,
        stdin: Stdin = None,
        progress: Progress = ignore_progress,
        timeout_s: float | None = None,
        limit: int = OUTPUT_LIMIT,
        ok: Container[int] = (0,),
        objects: Path | None = None,
        max_allocation: int | None = None,
        max_file_size: int | None = None,
        memory: int | None = None,
    ) -> GitResult:
        """Run `git arguments…` in `cwd` (the git folder if None) until it exits.

        Git can connect only to `remote`, or to none if that is None. Limits and options:

        - `objects`: folder for new objects, instead of the repository.
        - `max_allocation`: maximum size of one memory allocation by git.
        - `max_file_size`: maximum size of a file that git writes. Raises TooMuchError if exceeded.
        - `memory`: maximum memory of git and of each process it starts (DEFAULT_MEMORY_BYTES if None). Packs do not count, because they are
          mapped from disk. Raises TooMuchError if exceeded.

        Waits while MAX_PROCESSES other processes run, which does not count towards the timeout. Commands with a remote do not wait,
        because a remote decides how long they take and could block everyone else.

        Raises RepositoryInvalidError if the remote is on this machine or in a private network and may not be, GitFailedError or a more
        specific error if the exit code is not in `ok`, and GitTimeoutError after `timeout_s`. On a timeout or
        cancellation, git and everything it started have ended when this returns. No text that is returned or raised
        contains the credential.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder = cwd or self.folder
        mask = create_mask(credential)
        addresses = await self._list_allowed_addresses(remote) if remote is not None else None
        async with AsyncExitStack() as stack:
            if remote is None:
                await stack.enter_async_context(self._slots)
            prepared = stack.enter_context(
                prepare_environment(self.folder, credential, remote, addresses=addresses, local=self._local)
            )
            environment = prepared.environment | {"GIT_CEILING_DIRECTORIES": str(folder.parent)}
            if objects is not None:
                environment["GIT_OBJECT_DIRECTORY"] = str(objects)
            if max_allocation is not None:
                environment["GIT_ALLOC_LIMIT"] = str(max_allocation)
            try:
                limits = _make_limit_command(DEFAULT_MEMORY_BYTES if memory is None else memory, max_file_size)
                # not in the configuration: hooks of a local remote are its own rules and must run
                process = processes.start(
                    [*limits, "git", "-c", "core.hooksPath=/dev/null", *arguments],
                    cwd=folder,
                    env=environment,
                    stdin=_open_stdin(stdin, stack),
                    pass_fds=prepared.descriptors,
                )
            except FileNotFoundError as error:
                raise GitFailedError(f"The folder {folder} no longer exists.") from error
            timeout = self._timeout_s if timeout_s is None else timeout_s
            started = time.monotonic()
            try:
                async with asyncio.timeout(timeout):
                    reading_stderr = asyncio.create_task(_read_stderr(process.stderr, mask, progress))
                    try:
                        stdout, truncated = await read_stdout(process.stdout, limit)
                        if truncated:
                            process.signal_all(signal.SIGTERM)
                            await _drain(process.stdout)
                        code = await process.wait()
                        stderr = await reading_stderr
                    finally:
                        await end_tasks(reading_stderr)
            except TimeoutError:
                raise GitTimeoutError(
                    f"Git took longer than {timeout:g} seconds ({_get_subcommand(arguments)}) and was stopped. Try again."
                ) from None
            finally:
                await _terminate(process)
        if code == _NOT_FOUND:
            raise GitFailedError("Git is not installed on the platform's machine.")
        if code not in ok and not truncated:
            raise translate_error(stderr, _get_subcommand(arguments))
        return GitResult(code, stdout, stderr, truncated, time.monotonic() - started)

    async def _list_allowed_addresses(self, remote: Remote) -> Sequence[str] | None:
        """Return the addresses that git may connect to. Empty: connect through a proxy. None: any address."""
        if self._destinations is None or remote.trusted:
            return None
        if remote.host is None:
            if Path(remote.path).parent != self._samples:
                raise RepositoryInvalidError(LOCAL_PATH_REFUSED)
            return None
        try:
            self._destinations.check_name(remote.host)
            if remote.kind == "http" and is_proxied(remote.scheme, remote.host):
                return ()
            return await self._destinations.resolve(remote.host)
        except PrivateAddressError as error:
            raise RepositoryInvalidError(error.message) from None
        except OSError:
            raise RemoteUnreachableError(HOST_NOT_FOUND) from None


def _make_limit_command(memory: int, max_file_size: int | None) -> tuple[str, ...]:
    """Return a command prefix that limits the memory and the file size of a command and of everything it starts.

    Uses a shell, because it sets the limits before git starts. Limits set from outside could come too late for processes that git starts.
    The signal is ignored, so that git can report the problem instead of being killed. The memory limit is
    RLIMIT_DATA, which counts allocations but not the packs that git maps.
    """
    _, hard_limit = resource.getrlimit(resource.RLIMIT_DATA)
    memory = memory if hard_limit == resource.RLIM_INFINITY else min(memory, hard_limit)
    limits = f"ulimit -d {memory >> 10}"
    if max_file_size is not None:
        limits += f" && trap '' XFSZ && ulimit -f {-(-max_file_size // _FILE_SIZE_UNIT)}"
    return ("/bin/sh", "-c", f'{limits} && exec "$@"', "sh")


def _open_stdin(stdin: Stdin, stack: AsyncExitStack) -> int | IO[bytes]:
    if stdin is None:
        return subprocess.DEVNULL
    if isinstance(stdin, bytes):
        descriptor = create_memory_file("git-stdin", stdin)
        stack.callback(os.close, descriptor)
        return descriptor
    return stack.enter_context(stdin.open("rb")) if isinstance(stdin, Path) else stdin


def _get_subcommand(arguments: tuple[str, ...]) -> str:
    """Return the git subcommand: the first argument that is neither an option nor the value of `-c`."""
    previous = ""
    for argument in arguments:
        if not argument.startswith("-") and previous not in ("-c", "-C"):
            return argument
        previous = argument
    return "git"


async def read_stdout(stream: PipeReader, limit: int) -> tuple[bytes, bool]:
    """Read stdout up to `limit` bytes. Return it and whether there was more."""
    output = bytearray()
    while chunk := await stream.read(_CHUNK_BYTES):
        output += chunk
        if len(output) > limit:
            return bytes(output[:limit]), True
    return bytes(output), False


async def _drain(stream: PipeReader) -> None:
    """Discard the rest of the stream. Its end shows that every process that could write to it has ended."""
    while await stream.read(_CHUNK_BYTES):
        pass


async def _read_stderr(stream: PipeReader, mask: Callable[[str], str], progress: Progress) -> str:
    """Return the last lines of stderr that are not progress, out of its first _MAX_STDERR_BYTES. Reports progress as it arrives."""
    last_lines: list[str] = []
    size = 0
    reported: tuple[str, int] | None = None
    rest = b""
    remaining = _MAX_STDERR_BYTES
    while True:
        chunk = await stream.read(_STDERR_CHUNK_BYTES)
        remaining -= len(chunk)
        if remaining < 0:
            await _drain(stream)
            return "\n".join(last_lines)
        await take_turn("git")
        *lines, rest = _LINE_END.split(rest + chunk) if chunk else [rest, b""]
        if len(rest) > _MAX_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        for raw in lines:
            # cleaned first: control characters could hide a token from the mask
            line = mask(clean_line(raw.decode(errors="replace"))).rstrip()[:_MAX_LINE_BYTES]
            if match := _PERCENT.match(line):
                now = (match["what"], min(100, int(match["percent"])))
                if now != reported:
                    reported = now
                    progress(*now)
            elif line and not _COUNTED.match(line):
                last_lines.append(line)
                size += len(line)
                while size > _KEPT_STDERR_LENGTH:
                    size -= len(last_lines.pop(0))
        if not chunk:
            return "\n".join(last_lines)


async def _terminate(process: Process) -> None:
    """End the whole process group, also if this is cancelled."""
    try:
        try:
            if process.returncode is None:
                process.signal_all(signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_S):
                        await _wait_until_closed(process)
        finally:
            process.signal_all(signal.SIGKILL)
        if process.returncode is None:
            await _wait_until_closed(process)
    finally:
        process.close()


async def _wait_until_closed(process: Process) -> None:
    await asyncio.gather(process.wait(), _drain(process.stdout), _drain(process.stderr))


def find_git_problem() -> str | None:
    """Return what is wrong with this machine's git, as a sentence, or None. Blocks briefly."""
    minimum = ".".join(str(number) for number in MINIMUM_VERSION)
    try:
        version = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return (
            f"Git is not installed on this machine. Install Git {minimum} or newer to use projects with a repository."
        )
    found = re.search(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_VERSION:
        return f"{version.strip()} is too old for projects with a repository. Install Git {minimum} or newer."
    return None
