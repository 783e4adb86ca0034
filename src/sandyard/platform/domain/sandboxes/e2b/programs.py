"""Short programs in a running sandbox, run for the platform itself: an argv in, its output and its real exit code out.

The SDK runs a line of shell. Here that line is always the same text, which takes the argv from a variable or a file, so
that no value ever becomes part of a line. Output comes as base64, because the SDK decodes what it gets as text.
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

from e2b import AsyncCommandHandle, CommandExitException

from sandyard.kit.errors import InvalidInputError
from sandyard.kit.ids import random_id
from sandyard.platform.domain.sandboxes.e2b.errors import (
    EngineError,
    EngineTimeoutError,
    ProcessesFullError,
    says_processes_full,
)
from sandyard.platform.domain.sandboxes.e2b.gate import Gate, Handle

TIMEOUT_S = 60.0
LIMIT = 8 << 20
STDERR_LIMIT = 16 << 10
"""The end of it is kept: a program that fails says last why."""
STDERR_MOST = 4 << 20
"""Who says more is ended: to listen costs the platform more than it costs the sandbox to speak."""
NO_ENVS: Mapping[str, str] = MappingProxyType({})
_INLINE = 96 << 10
"""A longer argv does not fit into a variable and goes by a file."""
_NOISE = 32 << 20
"""What a login shell's profile may write before the program begins."""
_PIECES = 100_000
"""In which all of it may come: each costs the same, however short it is."""
_APART = 256 << 10
_GRACE_S = 10.0
"""How long after its time the sandbox may still be busy to end a program."""
_KILL_S = 5.0
_TIMED_OUT = (124, 137)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNSTORABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")

# $SANDYARD_MARK begins and ends what the program writes: a login shell's profile may write before it. The argv is a list of
# fields, each ended by a zero byte: directory, seconds, bytes, number of variables, the variables, the words. The variables
# come that way because a profile could change those the SDK sets.
_PROGRAM = r"""set +eu
m=$SANDYARD_MARK
no() { printf '\n:%s !%s\n' "$m" "$1"; exit 0; }
((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404)) || no bash
for p in base64 head; do type -P "$p" >/dev/null || no "$p"; done
if [ -n "$SANDYARD_FILE" ]; then mapfile -d '' -t a <"$SANDYARD_FILE"; rm -f -- "$SANDYARD_FILE"
else mapfile -d '' -t a < <(printf %s "$SANDYARD_ARGV" | base64 -d); fi
unset SANDYARD_MARK SANDYARD_FILE SANDYARD_ARGV
((${#a[@]} >= 5 + a[3])) || no argv
[ -z "${a[0]}" ] || cd -- "${a[0]}" 2>/dev/null || no cwd
((a[3])) && export "${a[@]:4:a[3]}"
c=("${a[@]:4+a[3]}")
type -P timeout >/dev/null && c=(timeout -k 3 "${a[1]}" "${c[@]}")
printf '\n:%s\n' "$m" >&2
printf '\n:%s\n' "$m"
"${c[@]}" </dev/null | head -c "${a[2]}" | base64
printf '\n:%s %s\n' "$m" "${PIPESTATUS[0]}"
"""
# `timeout` has a process group of its own with all that it started
_END = r"""read -r -a c <"/proc/$SANDYARD_PID/task/$SANDYARD_PID/children"
for p in "${c[@]}"; do kill -- "-$p" || kill "$p"; done 2>/dev/null
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended. `truncated`: it wrote more than the limit, and the rest is lost; it was ended by that (SIGPIPE,
    exit code 141) unless it was through. `stderr` is the end of what it said, as `storable` has it."""

    exit_code: int
    stdout: bytes
    stderr: str
    truncated: bool = False


class ProgramTimeoutError(EngineTimeoutError):
    """The program in the sandbox did not finish in time and was killed."""

    transient = False  # it has run for all its time: to begin anew would be no help


class DirectoryMissingError(InvalidInputError):
    """The working directory of the program does not exist in the sandbox."""


class Programs:
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

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
    ) -> Ran:
        """Run it as the sandbox's default user, without a standard input, and wait for its end. Words may hold any bytes but
        zero (as os.fsdecode has them). Happens at most once unless `idempotent`. DirectoryMissingError,
        ProgramTimeoutError; whatever the sandbox sends, no more than about three times `limit` is held of it. EngineError
        when the program says more than STDERR_MOST on its standard error: it is ended."""
        blob = _encode(argv, cwd, envs, timeout_s, limit)

        async def attempt(handle: Handle) -> Ran | None:
            return await _Run(limit).through(handle, blob, timeout_s)

        ran = await self._gate.inside("run_program", engine_id, attempt, idempotent=idempotent)
        if ran is None:
            raise ProgramTimeoutError(
                f"The program {argv[0]!r} did not finish within {timeout_s:g} s in the sandbox and was killed."
            )
        return ran


class _Run:
    """One run, and what came of it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most = (limit + 1) * 3 // 2 + 1024  # base64 in lines
        self._mark = random_id()
        self._token = f"\n:{self._mark}"
        self._begun = False
        self._tail = ""
        self._parts: list[str] = []
        self._size = 0
        self._noise = 0
        self._stderr = ""
        self._complaints = 0
        self._pieces = 0
        self._flood: str | None = None

    async def through(self, handle: Handle, blob: bytes, timeout_s: float) -> Ran | None:
        """None: its time was over."""
        envs = {"SANDYARD_MARK": self._mark}
        encoded = base64.b64encode(blob).decode()
        path = None
        if len(encoded) <= _INLINE:
            envs["SANDYARD_ARGV"] = encoded
        else:
            path = envs["SANDYARD_FILE"] = f"/tmp/.sandyard-argv-{random_id()}"  # noqa: S108 - in the sandbox
            await handle.sandbox.files.write(path, blob)
        now = asyncio.get_running_loop().time
        began, ended = now(), False
        running: AsyncCommandHandle[None] | None = None
        try:
            async with asyncio.timeout(timeout_s + _GRACE_S):
                running = await handle.sandbox.commands.run(
                    _PROGRAM,
                    background=True,
                    timeout=0,
                    envs=envs,
                    on_stdout=self._heard,
                    on_stderr=self._complained,
                    retain_output=False,
                )
                with contextlib.suppress(CommandExitException):  # a shell that could not even begin: it said nothing
                    await running.wait()
                ended = True
        except TimeoutError:
            if running is None or now() - began < timeout_s:
                raise
            return None
        except Exception:
            if self._flood is not None:
                raise EngineError(self._flood) from None
            raise
        finally:
            if running is not None and not ended:
                await _end(handle, running, with_children=self._flood is not None)
        ran = await asyncio.to_thread(self._result) if self._size > _APART else self._result()
        return None if ran.exit_code in _TIMED_OUT and now() - began >= timeout_s else ran

    def _heard(self, text: str) -> None:
        self._count_piece()
        if not self._begun:
            self._noise += len(text)
            if self._noise > _NOISE:
                self._stop(_STRANGE)
            before, found, text = (self._tail + text).partition(self._token)
            if not found:
                self._tail = before[-len(self._token) :]
                return
            self._begun = True
        self._size += len(text)
        if self._size > self._most:
            self._stop(_STRANGE)
        self._parts.append(text)

    def _complained(self, text: str) -> None:
        self._count_piece()
        self._complaints += len(text)
        if self._complaints > STDERR_MOST:
            self._stop(_LOUD)
        said = self._stderr + text[-STDERR_LIMIT:]
        self._stderr = said.rpartition(f"{self._token}\n")[2][-STDERR_LIMIT:]

    def _count_piece(self) -> None:
        self._pieces += 1
        if self._pieces > _PIECES:
            self._stop(_LOUD)

    def _stop(self, why: str) -> NoReturn:
        """The SDK ends its waiting with this, in words of its own."""
        self._flood = self._flood or why
        self._parts.clear()
        raise EngineError(self._flood)

    def _result(self) -> Ran:
        body, found, last = "".join(self._parts).rpartition(self._token)
        self._parts.clear()
        last = last.strip()
        if not found and last.startswith("!"):
            raise _refusal(last[1:])
        if not found or not re.fullmatch("[0-9]{1,3}", last):
            raise ProcessesFullError if says_processes_full(self._stderr) else EngineError(_STRANGE)
        try:
            data = binascii.a2b_base64(body)
        except ValueError:
            raise EngineError(_STRANGE) from None
        return Ran(int(last), data[: self._limit], storable(self._stderr), truncated=len(data) > self._limit)


_STRANGE = "The sandbox could not run the platform's program. Check that /bin/bash, base64 and head work in it and its disk is not full."

_LOUD = (
    f"The program in the sandbox wrote more than {STDERR_MOST >> 20} MiB to its standard error, or in too many pieces, and was "
    "killed. Check its error output in the sandbox."
)


def storable(text: str) -> str:
    """What a sandbox said, with a replacement for each character that a database or a terminal does not take: zero bytes, half
    characters, control characters other than line ends and tabs."""
    return _UNSTORABLE.sub("\ufffd", text)


def _refusal(word: str) -> Exception:
    if word == "cwd":
        return DirectoryMissingError()
    if word == "bash":
        return EngineError("The sandbox's /bin/bash is older than 4.4. Use a template with a newer version.")
    if word in ("base64", "head"):
        return EngineError(
            f"The program {word!r}, which the platform needs, is not installed in the sandbox. Install it in the template."
        )
    return EngineError(_STRANGE)


async def _end(handle: Handle, running: AsyncCommandHandle[None], *, with_children: bool) -> None:
    """What was started goes, whoever waited for it has left. `with_children`: the program itself too, which else may finish
    what it does."""
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_KILL_S):
            await running.disconnect()
    if with_children:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(_KILL_S):
                envs = {"SANDYARD_PID": str(running.pid)}
                await handle.sandbox.commands.run(_END, timeout=_KILL_S, envs=envs, retain_output=False)
    with contextlib.suppress(Exception):
        async with asyncio.timeout(_KILL_S):
            await running.kill()


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
