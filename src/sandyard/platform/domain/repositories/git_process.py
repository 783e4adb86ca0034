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
from sandyard.kit.processes import Output, Process
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.repositories.error_translation import (
    NO_HOST,
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
from sandyard.platform.domain.repositories.model import Credential, Progress, no_progress
from sandyard.platform.domain.repositories.remote import Remote

OUTPUT_LIMIT = 64 << 20
MEMORY = 4 << 30
"""Memory limit of one git process, in bytes. Fetching and packing need about a hundred bytes per object of a repository."""
AT_ONCE = 8
"""Maximum number of concurrent git processes of one platform, not counting those that talk to a remote."""
_STDERR_LIMIT = 64 << 10
_LINE_LIMIT = 4 << 10
_CHUNK = 64 << 10
_STDERR_CHUNK = 4 << 10  # lines cost more than bytes, and a remote may send empty ones
_STDERR_READ = 4 << 20  # output beyond this is ignored
_BLOCK = 512  # unit of `ulimit -f`
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

    `truncated`: stdout exceeded the limit and git was stopped; `code` is then meaningless. `took_s` is the run time of
    git without the time spent waiting for a slot.
    """

    code: int
    stdout: bytes
    stderr: str
    truncated: bool = False
    took_s: float = 0.0


class Git:
    """Runs git, one process group per call, without the configuration of this machine or user."""

    def __init__(
        self, folder: Path, *, timeout_s: float, destinations: Destinations | None = None, local: str | None = None
    ) -> None:
        """Create a runner.

        `destinations` limits the hosts of remotes that no administrator has approved. None: any host. `local`: see
        `prepare_environment`.
        """
        self.folder = folder
        self._timeout_s = timeout_s
        self._destinations = destinations
        self._local = local
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(
        self,
        *arguments: str,
        cwd: Path | None,
        credential: Credential | None = None,
        remote: Remote | None = None,
        stdin: Stdin = None,
        progress: Progress = no_progress,
        timeout_s: float | None = None,
        limit: int = OUTPUT_LIMIT,
        ok: Container[int] = (0,),
        objects: Path | None = None,
        largest: int | None = None,
        writes: int | None = None,
        memory: int | None = None,
    ) -> GitResult:
        """Run `git arguments…` in `cwd` (the git folder if None) until it exits.

        Git can connect only to `remote`, or to none if that is None. Limits and options:

        - `objects`: folder for new objects, instead of the repository.
        - `largest`: maximum size of one memory allocation by git.
        - `writes`: maximum size of a file that git writes. Raises TooMuchError if exceeded.
        - `memory`: maximum memory of git and of each process it starts (MEMORY if None). Raises TooMuchError if exceeded. Packs do not
          count, because they are mapped from disk.

        Waits while AT_ONCE others run, which does not count towards the timeout. Commands with a remote do not wait,
        because a remote decides how long they take and could block everyone else.

        Raises RepositoryInvalidError if the remote is in a private network and may not be, GitFailedError or a more
        specific error if the exit code is not in `ok`, and GitTimeoutError after `timeout_s`. On a timeout or
        cancellation, git and everything it started have ended when this returns. No text that is returned or raised
        contains the credential.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        where = cwd or self.folder
        mask = create_mask(credential)
        only = await self._allowed_addresses(remote) if remote is not None else None
        async with AsyncExitStack() as stack:
            if remote is None:
                await stack.enter_async_context(self._slots)
            around = stack.enter_context(
                prepare_environment(self.folder, credential, remote, only=only, local=self._local)
            )
            environment = around.environment | {"GIT_CEILING_DIRECTORIES": str(where.parent)}
            if objects is not None:
                environment["GIT_OBJECT_DIRECTORY"] = str(objects)
            if largest is not None:
                environment["GIT_ALLOC_LIMIT"] = str(largest)
            try:
                limits = _limit_command(MEMORY if memory is None else memory, writes)
                # not in the configuration: hooks of a local remote are its own rules and must run
                process = processes.start(
                    [*limits, "git", "-c", "core.hooksPath=/dev/null", *arguments],
                    cwd=where,
                    env=environment,
                    stdin=_open_stdin(stdin, stack),
                    pass_fds=around.descriptors,
                )
            except FileNotFoundError as missing:
                raise GitFailedError(f"The folder {where} no longer exists.") from missing
            patience = self._timeout_s if timeout_s is None else timeout_s
            started = time.monotonic()
            try:
                async with asyncio.timeout(patience):
                    listening = asyncio.create_task(_read_stderr(process.stderr, mask, progress))
                    try:
                        stdout, truncated = await _collect(process.stdout, limit)
                        if truncated:
                            process.signal_all(signal.SIGTERM)
                            await _drain(process.stdout)
                        code = await process.wait()
                        stderr = await listening
                    finally:
                        await end_tasks(listening)
            except TimeoutError:
                raise GitTimeoutError(
                    f"Git took longer than {patience:g} seconds ({_subcommand(arguments)}) and was stopped. Try again."
                ) from None
            finally:
                await _terminate(process)
        if code == _NOT_FOUND:
            raise GitFailedError("Git is not installed on the platform's machine.")
        if code not in ok and not truncated:
            raise translate_error(stderr, _subcommand(arguments))
        return GitResult(code, stdout, stderr, truncated, time.monotonic() - started)

    async def _allowed_addresses(self, remote: Remote) -> Sequence[str] | None:
        """Return the addresses that git may connect to. Empty: connect through a proxy. None: any address."""
        if self._destinations is None or remote.vouched or remote.host is None:
            return None
        try:
            self._destinations.check_name(remote.host)
            if remote.kind == "http" and is_proxied(remote.scheme, remote.host):
                return ()
            return await self._destinations.resolve(remote.host)
        except PrivateAddressError as error:
            raise RepositoryInvalidError(error.message) from None
        except OSError:
            raise RemoteUnreachableError(NO_HOST) from None


def _limit_command(memory: int, writes: int | None) -> tuple[str, ...]:
    """Return a command prefix that limits the memory and the file size of a command and of everything it starts.

    Uses a shell, because it sets the limits before git starts; set from outside, they would come after git has started
    others. The signal is ignored, so that git can report the problem instead of being killed. The memory limit is
    RLIMIT_DATA, which counts allocations but not the packs that git maps.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
    limits = f"ulimit -d {memory >> 10}"
    if writes is not None:
        limits += f" && trap '' XFSZ && ulimit -f {-(-writes // _BLOCK)}"
    return ("/bin/sh", "-c", f'{limits} && exec "$@"', "sh")


def _open_stdin(stdin: Stdin, stack: AsyncExitStack) -> int | IO[bytes]:
    if stdin is None:
        return subprocess.DEVNULL
    if isinstance(stdin, bytes):
        descriptor = create_memory_file("git-stdin", stdin)
        stack.callback(os.close, descriptor)
        return descriptor
    return stack.enter_context(stdin.open("rb")) if isinstance(stdin, Path) else stdin


def _subcommand(arguments: tuple[str, ...]) -> str:
    """Return the git subcommand: the first argument that is neither an option nor the value of `-c`."""
    previous = ""
    for argument in arguments:
        if not argument.startswith("-") and previous not in ("-c", "-C"):
            return argument
        previous = argument
    return "git"


async def _collect(stream: Output, limit: int) -> tuple[bytes, bool]:
    """Read stdout up to `limit` bytes. Return it and whether there was more."""
    held = bytearray()
    while chunk := await stream.read(_CHUNK):
        held += chunk
        if len(held) > limit:
            return bytes(held[:limit]), True
    return bytes(held), False


async def _drain(stream: Output) -> None:
    """Discard the rest of the stream. Its end shows that every process that could write to it has ended."""
    while await stream.read(_CHUNK):
        pass


async def _read_stderr(stream: Output, mask: Callable[[str], str], progress: Progress) -> str:
    """Return the last lines of stderr that are not progress, out of its first _STDERR_READ bytes. Reports progress as
    it arrives."""
    kept: list[str] = []
    size = 0
    told: tuple[str, int] | None = None
    rest = b""
    left = _STDERR_READ
    while True:
        chunk = await stream.read(_STDERR_CHUNK)
        left -= len(chunk)
        if left < 0:
            await _drain(stream)
            return "\n".join(kept)
        await take_turn("git")
        *lines, rest = _LINE_END.split(rest + chunk) if chunk else [rest, b""]
        if len(rest) > _LINE_LIMIT:
            lines, rest = [*lines, rest], b""
        for raw in lines:
            # cleaned first: control characters could hide a token from the mask
            line = mask(clean_line(raw.decode(errors="replace"))).rstrip()[:_LINE_LIMIT]
            if match := _PERCENT.match(line):
                now = (match["what"], min(100, int(match["percent"])))
                if now != told:
                    told = now
                    progress(*now)
            elif line and not _COUNTED.match(line):
                kept.append(line)
                size += len(line)
                while size > _STDERR_LIMIT:
                    size -= len(kept.pop(0))
        if not chunk:
            return "\n".join(kept)


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
    wanted = ".".join(str(number) for number in MINIMUM_VERSION)
    try:
        told = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return f"Git is not installed on this machine. Install Git {wanted} or newer to use projects with a repository."
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_VERSION:
        return f"{told.strip()} is too old for projects with a repository. Install Git {wanted} or newer."
    return None
