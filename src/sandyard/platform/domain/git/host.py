"""Git on the platform's own machine: the only git that ever sees a remote or a credential."""

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
from sandyard.platform.domain.git.errors import (
    GitFailedError,
    GitTimeoutError,
    RemoteUnreachableError,
    RepositoryInvalidError,
)
from sandyard.platform.domain.git.faults import NO_HOST, masking, storable, translated
from sandyard.platform.domain.git.hardened import memory_file, surroundings
from sandyard.platform.domain.git.model import Credential, Progress, no_progress
from sandyard.platform.domain.git.remote import Remote

OUTPUT_LIMIT = 64 << 20
MEMORY = 4 << 30
"""Bytes of memory for one git process. Fetching and packing need some hundred of them for each object of a repository."""
AT_ONCE = 8
"""Git processes of one platform that run at the same time, those that speak with a remote apart."""
_STDERR_LIMIT = 64 << 10
_LINE_LIMIT = 4 << 10
_CHUNK = 64 << 10
_STDERR_CHUNK = 4 << 10  # lines cost more than bytes, and a remote may send empty ones
_STDERR_READ = 4 << 20  # what comes after so much is not looked at
_BLOCK = 512  # of `ulimit -f`
_NOT_FOUND = 127  # what a shell ends with when there is no such program
_GRACE_S = 2.0  # for git to remove its lock files after SIGTERM

_LINE_END = re.compile(rb"[\r\n]+")
_PERCENT = re.compile(r"^(?:remote: )?(?P<what>[A-Z][A-Za-z /-]+):\s+(?P<percent>\d{1,3})% ")
_COUNTED = re.compile(r"^(?:remote: )?[A-Z][A-Za-z /-]+: \d+(, done\.)?$")

NEEDED = (2, 38)
"""Of git: the first that can merge without a work tree."""

Stdin = bytes | Path | IO[bytes] | None
"""A file is read from where it stands."""


@dataclass(frozen=True, slots=True)
class Finished:
    """`truncated`: there was more than the limit on stdout, and git was stopped there; `code` then says nothing. `took_s`: how long git
    ran, without the time it waited for its turn."""

    code: int
    stdout: bytes
    stderr: str
    truncated: bool = False
    took_s: float = 0.0


class Git:
    """Runs git, one process (group) per call, with nothing of this machine's or user's configuration."""

    def __init__(
        self, folder: Path, *, timeout_s: float, destinations: Destinations | None = None, local: str | None = None
    ) -> None:
        """`destinations`: where remotes may be that no administrator answers for; None: anywhere. `local`: see `surroundings`."""
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
    ) -> Finished:
        """Runs `git arguments…` in `cwd` (the git folder when None) until it ends.

        It can speak with `remote` alone, and with none when that is None. `objects`: new objects go there instead of into the
        repository. `largest`: git may not ask for more memory than this at once. `writes`: no file it writes may be larger than
        this; TooMuchError when one would be. `memory`: what git, and each process it starts, may have in all (MEMORY when None);
        TooMuchError when it needs more. Packs do not count: they are mapped from the disk.

        Waits while AT_ONCE others run, and does not count that as time git takes. Conversations with a remote do not wait: a remote
        decides how long each one takes, and would keep everybody else from their own.

        Raises RepositoryInvalidError when the remote is in a private network and may not be, GitFailedError or one of its more exact
        kin when git's exit code is not among `ok`, GitTimeoutError when it takes
        longer than `timeout_s`. On a timeout and on cancellation git and all it has started are gone when this returns. No text
        that leaves here holds the credential.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        where = cwd or self.folder
        mask = masking(credential)
        only = await self._addresses(remote) if remote is not None else None
        async with AsyncExitStack() as stack:
            if remote is None:
                await stack.enter_async_context(self._slots)
            around = stack.enter_context(surroundings(self.folder, credential, remote, only=only, local=self._local))
            environment = around.environment | {"GIT_CEILING_DIRECTORIES": str(where.parent)}
            if objects is not None:
                environment["GIT_OBJECT_DIRECTORY"] = str(objects)
            if largest is not None:
                environment["GIT_ALLOC_LIMIT"] = str(largest)
            try:
                limits = _bounded(MEMORY if memory is None else memory, writes)
                # hooks not in the configuration: a local remote's own are its rules
                process = processes.start(
                    [*limits, "git", "-c", "core.hooksPath=/dev/null", *arguments],
                    cwd=where,
                    env=environment,
                    stdin=_opened(stdin, stack),
                    pass_fds=around.descriptors,
                )
            except FileNotFoundError as missing:
                raise GitFailedError(f"The folder {where} no longer exists.") from missing
            patience = self._timeout_s if timeout_s is None else timeout_s
            started = time.monotonic()
            try:
                async with asyncio.timeout(patience):
                    listening = asyncio.create_task(_listen(process.stderr, mask, progress))
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
                    f"Git took longer than {patience:g} seconds ({_verb(arguments)}) and was stopped. Try again."
                ) from None
            finally:
                await _end(process)
        if code == _NOT_FOUND:
            raise GitFailedError("Git is not installed on the platform's machine.")
        if code not in ok and not truncated:
            raise translated(stderr, _verb(arguments))
        return Finished(code, stdout, stderr, truncated, time.monotonic() - started)

    async def _addresses(self, remote: Remote) -> Sequence[str] | None:
        """Those that git may connect to; none: through a proxy. None: it is not looked at."""
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


def _bounded(memory: int, writes: int | None) -> tuple[str, ...]:
    """Return the words before a command that keep it, and all it starts, from using more memory or writing a larger file.

    A shell, because it sets the limits before git is there: from outside they would come after git has started others. The signal
    is off, so that git can say what was wrong instead of being killed. The memory is RLIMIT_DATA: what is allocated, and not the
    packs that git maps.
    """
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    memory = memory if most == resource.RLIM_INFINITY else min(memory, most)
    limits = f"ulimit -d {memory >> 10}"
    if writes is not None:
        limits += f" && trap '' XFSZ && ulimit -f {-(-writes // _BLOCK)}"
    return ("/bin/sh", "-c", f'{limits} && exec "$@"', "sh")


def _opened(stdin: Stdin, stack: AsyncExitStack) -> int | IO[bytes]:
    if stdin is None:
        return subprocess.DEVNULL
    if isinstance(stdin, bytes):
        descriptor = memory_file("git-stdin", stdin)
        stack.callback(os.close, descriptor)
        return descriptor
    return stack.enter_context(stdin.open("rb")) if isinstance(stdin, Path) else stdin


def _verb(arguments: tuple[str, ...]) -> str:
    """What git was asked to do: the first argument that is neither an option nor the value of `-c`."""
    previous = ""
    for argument in arguments:
        if not argument.startswith("-") and previous not in ("-c", "-C"):
            return argument
        previous = argument
    return "git"


async def _collect(stream: Output, limit: int) -> tuple[bytes, bool]:
    """What is on stdout, no more than `limit` bytes of it; whether there was more."""
    held = bytearray()
    while chunk := await stream.read(_CHUNK):
        held += chunk
        if len(held) > limit:
            return bytes(held[:limit]), True
    return bytes(held), False


async def _drain(stream: Output) -> None:
    """Nobody wants the rest, but its end tells that all who could write there are gone."""
    while await stream.read(_CHUNK):
        pass


async def _listen(stream: Output, mask: Callable[[str], str], progress: Progress) -> str:
    """The last lines of stderr that are not progress, of its first _STDERR_READ bytes; progress is told as it comes."""
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
        await take_turn()
        *lines, rest = _LINE_END.split(rest + chunk) if chunk else [rest, b""]
        if len(rest) > _LINE_LIMIT:
            lines, rest = [*lines, rest], b""
        for raw in lines:
            # cleaned first: what hides a token from the mask would be gone after it
            line = mask(storable(raw.decode(errors="replace"))).rstrip()[:_LINE_LIMIT]
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


async def _end(process: Process) -> None:
    """Nothing of the process group is left afterwards, however this is left."""
    try:
        try:
            if process.returncode is None:
                process.signal_all(signal.SIGTERM)
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE_S):
                        await _gone(process)
        finally:
            process.signal_all(signal.SIGKILL)
        if process.returncode is None:
            await _gone(process)
    finally:
        process.close()


async def _gone(process: Process) -> None:
    await asyncio.gather(process.wait(), _drain(process.stdout), _drain(process.stderr))


def lacking() -> str | None:
    """What is wrong with the git of this machine, as a sentence; None: nothing. Blocks for a moment."""
    wanted = ".".join(str(number) for number in NEEDED)
    try:
        told = subprocess.run(["git", "--version"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return f"Git is not installed on this machine. Install Git {wanted} or newer to use projects with a repository."
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < NEEDED:
        return f"{told.strip()} is too old for projects with a repository. Install Git {wanted} or newer."
    return None
