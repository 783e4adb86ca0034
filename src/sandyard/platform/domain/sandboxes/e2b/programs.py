"""Run short programs of the platform itself in a running sandbox: takes an argv, returns the output and the real exit
code.

The SDK runs a shell command line. Here that line is always the same text, which takes the argv from a variable or a
file, so that no value ever becomes part of a command line. Output is transferred as base64, because the SDK decodes it
as text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.ids import make_random_id
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    EngineTimeoutError,
    ProcessesFullError,
    says_processes_full,
)
from sandyard.platform.domain.sandboxes.e2b.guest_sources import read_script
from sandyard.platform.domain.sandboxes.e2b.processes import GuestProcess
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

TIMEOUT_S = 60.0
LIMIT = 8 << 20
STDERR_LIMIT = 16 << 10
"""Only the end is kept, because a failing program prints the reason last."""
MAX_STDERR_BYTES = 4 << 20
"""A program that writes more is ended: reading costs the platform more than writing costs the sandbox."""
NO_ENVS: Mapping[str, str] = MappingProxyType({})
_MAX_INLINE = 96 << 10
"""A longer argv does not fit into a variable and is passed in a file."""
_MAX_NOISE = 32 << 20
"""Maximum output of a login shell's profile before the program starts."""
MAX_PIECES = 100_000
"""Maximum number of pieces of output. Each costs the same, whatever its length."""
_THREAD_THRESHOLD = 256 << 10
GRACE_S = 10.0
"""Extra time after the timeout for the sandbox to end a program."""
_KILL_S = 5.0
_TIMED_OUT = (124, 137)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSTORABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

_RUN_PROGRAM = read_script("run_program.sh")
_KILL_CHILDREN = read_script("kill_children.sh")


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program.

    `truncated`: it wrote more than the limit and the rest is lost; unless it had finished, it was ended by that
    (SIGPIPE, exit code 141). `stderr` is the end of its standard error, as returned by `replace_control_characters`.
    """

    exit_code: int
    stdout: bytes
    stderr: str
    truncated: bool = False


class ProgramTimeoutError(EngineTimeoutError):
    """The program in the sandbox did not finish in time and was killed."""

    transient = False  # it has used all its time, so a retry would not help


class DirectoryMissingError(InvalidInputError):
    """The working directory of the program does not exist in the sandbox."""


class Programs:
    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def run(
        self,
        engine_id: str,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        envs: Mapping[str, str] = NO_ENVS,
        timeout_s: float = TIMEOUT_S,
        limit: int = LIMIT,
        idempotent: bool = False,
    ) -> ProgramResult:
        """Run a program as the sandbox's default user, without standard input, and wait for it to exit.

        Words may contain any bytes except NUL (as os.fsdecode returns them). Runs at most once unless `idempotent`.
        Whatever the sandbox sends, at most about three times `limit` is held in memory.

        Raises DirectoryMissingError and ProgramTimeoutError, and EngineError if the program writes more than
        MAX_STDERR_BYTES to its standard error, in which case it is ended.
        """
        blob = _encode(argv, cwd, envs, timeout_s, limit)

        async def attempt(handle: SandboxHandle) -> ProgramResult | None:
            return await _Run(self._transport, limit).execute(handle, blob, timeout_s)

        ran = await self._transport.call_sandbox("run_program", engine_id, attempt, idempotent=idempotent)
        if ran is None:
            raise ProgramTimeoutError(
                f"The program {argv[0]!r} did not finish within {timeout_s:g} s in the sandbox and was killed."
            )
        return ran


class _Run:
    """One run of a program and its output."""

    def __init__(self, transport: EngineTransport, limit: int) -> None:
        self._process = GuestProcess(transport)
        self._limit = limit
        self._max_encoded = (limit + 1) * 3 // 2 + 1024  # base64 with line breaks
        self._mark = make_random_id()
        self._token = f"\n:{self._mark}"
        self._begun = False
        self._tail = ""
        self._parts: list[str] = []
        self._size = 0
        self._noise = 0
        self._stderr = ""
        self._stderr_size = 0
        self._pieces = 0
        self._abort_reason: str | None = None

    async def execute(self, handle: SandboxHandle, blob: bytes, timeout_s: float) -> ProgramResult | None:
        """Run the program and return its result. None if it timed out."""
        envs = {"SANDYARD_MARK": self._mark}
        encoded = base64.b64encode(blob).decode()
        path = None
        if len(encoded) <= _MAX_INLINE:
            envs["SANDYARD_ARGV"] = encoded
        else:
            path = envs["SANDYARD_FILE"] = f"/tmp/.sandyard-argv-{make_random_id()}"  # noqa: S108 - in the sandbox
            await handle.sandbox.files.write(path, blob)
        now = asyncio.get_running_loop().time
        began = now()
        try:
            async with asyncio.timeout(timeout_s + GRACE_S):
                await self._process.start(handle, _RUN_PROGRAM, envs=envs, on_stderr=self._add_stderr)
                while (text := await self._process.read()) is not None:
                    self._add_stdout(text)
        except TimeoutError:
            if self._process.pid is None or now() - began < timeout_s:
                raise
            return None
        except Exception:
            if self._abort_reason is not None:
                raise EngineError(self._abort_reason) from None
            raise
        finally:
            if not self._process.ended:
                await self._end(handle)
        result = await asyncio.to_thread(self._result) if self._size > _THREAD_THRESHOLD else self._result()
        return None if result.exit_code in _TIMED_OUT and now() - began >= timeout_s else result

    async def _end(self, handle: SandboxHandle) -> None:
        """End the shell, even if the caller was cancelled.

        After an abort, also end the program itself, which otherwise may finish its work.
        """
        await self._process.disconnect()
        if self._process.pid is not None and self._abort_reason is not None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_KILL_S):
                    envs = {"SANDYARD_PID": str(self._process.pid)}
                    await handle.sandbox.commands.run(_KILL_CHILDREN, timeout=_KILL_S, envs=envs, retain_output=False)
        await self._process.kill()

    def _add_stdout(self, text: str) -> None:
        self._count_piece()
        if not self._begun:
            self._noise += len(text)
            if self._noise > _MAX_NOISE:
                self._abort(_CANNOT_RUN)
            before, found, text = (self._tail + text).partition(self._token)
            if not found:
                self._tail = before[-len(self._token) :]
                return
            self._begun = True
        self._size += len(text)
        if self._size > self._max_encoded:
            self._abort(_CANNOT_RUN)
        self._parts.append(text)

    def _add_stderr(self, text: str) -> None:
        self._count_piece()
        self._stderr_size += len(text)
        if self._stderr_size > MAX_STDERR_BYTES:
            self._abort(_TOO_MUCH_STDERR)
        stderr = self._stderr + text[-STDERR_LIMIT:]
        self._stderr = stderr.rpartition(f"{self._token}\n")[2][-STDERR_LIMIT:]

    def _count_piece(self) -> None:
        self._pieces += 1
        if self._pieces > MAX_PIECES:
            self._abort(_TOO_MUCH_STDERR)

    def _abort(self, why: str) -> NoReturn:
        """Abort the run. If this is raised in a callback of the SDK, the SDK replaces the message."""
        self._abort_reason = self._abort_reason or why
        self._parts.clear()
        raise EngineError(self._abort_reason)

    def _result(self) -> ProgramResult:
        body, found, last = "".join(self._parts).rpartition(self._token)
        self._parts.clear()
        last = last.strip()
        if not found and last.startswith("!"):
            raise _to_error(last[1:])
        if not found or not re.fullmatch("[0-9]{1,3}", last):
            raise ProcessesFullError if says_processes_full(self._stderr) else EngineError(_CANNOT_RUN)
        try:
            data = binascii.a2b_base64(body)
        except ValueError:
            raise EngineError(_CANNOT_RUN) from None
        return ProgramResult(
            int(last), data[: self._limit], replace_control_characters(self._stderr), truncated=len(data) > self._limit
        )


_CANNOT_RUN = "The sandbox could not run the platform's program. Check that /bin/bash, base64 and head work in it and its disk is not full."

_TOO_MUCH_STDERR = (
    f"The program in the sandbox wrote more than {MAX_STDERR_BYTES >> 20} MiB to its standard error, or in too many pieces, and was "
    "killed. Check its error output in the sandbox."
)


def replace_control_characters(text: str) -> str:
    """Replace each character that a database or a terminal does not accept: NUL, surrogates, and control characters
    other than line breaks and tabs."""
    return _UNSTORABLE.sub("\ufffd", text)


def _to_error(word: str) -> Exception:
    if word == "cwd":
        return DirectoryMissingError()
    if word == "bash":
        return EngineError("The sandbox's /bin/bash is older than 4.4. Use a template with a newer version.")
    if word in ("base64", "head"):
        return EngineError(
            f"The program {word!r}, which the platform needs, is not installed in the sandbox. Install it in the template."
        )
    return EngineError(_CANNOT_RUN)


def _encode(argv: Sequence[str], cwd: str | None, envs: Mapping[str, str], timeout_s: float, limit: int) -> bytes:
    if not argv:
        raise InvalidInputError("argv must not be empty.")
    for name in envs:
        if not _NAME.fullmatch(name):
            raise InvalidInputError(f"{name!r} is not a valid environment variable name.")
    variables = [f"{name}={value}" for name, value in envs.items()]
    fields = [cwd or "", str(math.ceil(timeout_s)), str(limit + 1), str(len(envs)), *variables, *argv]
    if any("\0" in field for field in fields):
        raise InvalidInputError("Arguments of a program must not contain NUL characters.")
    try:
        return b"".join(os.fsencode(field) + b"\0" for field in fields)
    except UnicodeEncodeError:
        raise InvalidInputError("Arguments of a program must be valid Unicode.") from None
