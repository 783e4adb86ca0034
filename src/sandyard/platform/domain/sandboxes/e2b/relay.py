"""Communication with the relay in a sandbox: the shell line that runs it, the specification it gets, and the lines it
answers with.

The relay itself is the package `guest/relay`, or `guest/relay.sh` if there is no python3.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sandyard.kit import bounded_json
from sandyard.kit.ids import make_random_id
from sandyard.platform.domain.sandboxes.e2b.errors import ProcessesFullError, says_processes_full
from sandyard.platform.domain.sandboxes.e2b.guest_sources import join_relay_modules, read_script
from sandyard.platform.domain.sandboxes.e2b.processes import GuestProcess
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

_PYTHON = join_relay_modules()
_SHELL = read_script("relay.sh")
_FOLDERS = ("/tmp/.sandyard", "/dev/shm/.sandyard")  # noqa: S108 - in the sandbox; BASES of guest/relay/journal.py
_FOLDER = _FOLDERS[0]
_PROGRAM = f"{_FOLDER}/relay-{hashlib.sha256(_PYTHON).hexdigest()[:16]}"
_LINE = (
    read_script("start_relay.sh").replace("@PROGRAM@", _PROGRAM).replace("@INSTALL@", read_script("install_relay.py"))
)
_SHELL_LINE = "exec /bin/bash -c 'eval \"$SANDYARD_RELAY\"' relay @MARK@ @ARGUMENTS@"

SPEC_INLINE = 96 << 10
_MAX_RESULT = 4096
"""Limits of specifications and results. A specification longer than SPEC_INLINE does not fit into a variable and is
passed in a file."""
SILENCE_S = 30.0
"""The relay writes something every 10 s. A stream that is silent for longer is considered dead."""
_MAX_LINE = 1 << 20
_MAX_STDERR = 4 << 10
"""Limits of a line and of stderr. The relay never exceeds them. A tenant may replace the relay, but only in their own
sandbox."""
_MAX_EMPTY_LINES = 1000
"""Maximum number of lines in a row without content. The relay writes `:h` every 10 s."""
_LINES_AT_ONCE = 100
"""Number of lines after which other tasks may run."""
_MAX_NUMBER = 1 << 53


@dataclass(frozen=True, slots=True)
class CommandSpec:
    """A command for a sandbox. `id` is chosen by the caller and makes it run at most once. `timeout_s` None: no limit."""

    id: str
    command: str
    cwd: str | None = None
    envs: Mapping[str, str] = field(default_factory=dict)
    timeout_s: float | None = None
    user: str | None = None

    def encode(self) -> bytes:
        fields = [self.id, self.command, self.cwd or "", str(self.timeout_s or 0)]
        return "\0".join(fields + [f"{name}={value}" for name, value in self.envs.items()]).encode()


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class EndReason(StrEnum):
    """The reason why a command ended.

    LOST: the sandbox died or was restarted, so that the result is unknown. NOT_STARTED: the command never ran and never
    will.
    """

    EXITED = "exited"
    TIMED_OUT = "timed_out"
    KILLED = "killed"
    LOST = "lost"
    NOT_STARTED = "not_started"


@dataclass(frozen=True, slots=True)
class CommandStarted:
    """The command has started. `pid` is its process id in the sandbox, None if it was started before."""

    pid: int | None


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """Output of the command. `offset` is the position of `data` in the stream."""

    stream: Stream
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class CommandEnded:
    """The command has ended, with `code` or `signal`; neither for LOST and NOT_STARTED.

    `stdout_bytes` and `stderr_bytes` count everything it wrote. Less may be available if the disk was full and nobody
    was listening.
    """

    reason: EndReason
    code: int | None = None
    signal: int | None = None
    duration_s: float | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None

    @classmethod
    def parse(cls, text: str) -> CommandEnded:
        """Parse a result. Anything invalid, because somebody wrote to the journal, counts as LOST."""
        try:
            result: dict[str, Any] = bounded_json.parse(text, largest=_MAX_RESULT, values=100)
            ms = result.get("ms")
            return cls(
                reason=EndReason(result["reason"]),
                code=_parse_optional_number(result.get("code")),
                signal=_parse_optional_number(result.get("signal")),
                duration_s=None if ms is None else parse_number(ms) / 1000,
                stdout_bytes=_parse_optional_number(result.get("out")),
                stderr_bytes=_parse_optional_number(result.get("err")),
            )
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return cls(EndReason.LOST)


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of the relay: its kind, which is a letter or the number of a stream, and the rest."""

    kind: str
    rest: str

    @classmethod
    def parse(cls, line: str) -> Frame | None:
        """Parse a line. None if it is not from the relay."""
        if len(line) < 2 or line[0] != ":" or line[1] not in "12abefhinrsx" or line[2:3] not in ("", " "):
            return None
        return cls(line[1], line[3:])

    @property
    def chunk(self) -> tuple[int, bytes]:
        """Return the offset and the bytes of an output line."""
        offset, _, body = self.rest.partition(" ")
        return parse_number(offset), binascii.a2b_base64(body)

    @property
    def grown(self) -> tuple[str, int, int]:
        """Return the stream's number, the length and the folder of a journal to fetch."""
        stream, end, folder = self.rest.split(" ")
        if stream not in ("1", "2") or folder not in ("0", "1"):
            raise ValueError("not a valid journal")
        return stream, parse_number(end), int(folder)

    @property
    def refusal(self) -> tuple[str, str]:
        """Return a code for programs and a message."""
        word, _, body = self.rest.partition(" ")
        return word, base64.b64decode(body).decode(errors="replace")


class RelayStream:
    """The output of one run of the relay. Closing it never ends a command."""

    def __init__(self, transport: EngineTransport, silence_s: float) -> None:
        self.process = GuestProcess(transport)
        self._silence = silence_s
        self._handle: SandboxHandle | None = None
        self._user = ""
        self._disposable = False
        self._mark = make_random_id()
        self._stderr = ""

    @property
    def lacks_processes(self) -> bool:
        """Whether the sandbox's shell reports that it cannot start a process."""
        return says_processes_full(self._stderr)

    def _add_stderr(self, text: str) -> None:
        self._stderr = (self._stderr + text)[-_MAX_STDERR:]

    async def open(
        self,
        handle: SandboxHandle,
        arguments: str,
        *,
        user: str | None,
        envs: Mapping[str, str],
        disposable: bool = False,
    ) -> None:
        """Run the relay. `disposable`: this run serves nobody else and ends with the stream."""
        self._disposable = disposable
        self._handle, self._user = handle, user or ""
        variables = dict(envs)
        if not handle.python:
            variables["SANDYARD_RELAY"] = _SHELL
        elif self._user not in handle.relays:
            variables["SANDYARD_RELAY"] = base64.b64encode(_PYTHON).decode()
        line = _LINE if handle.python else _SHELL_LINE
        line = line.replace("@ARGUMENTS@", arguments).replace("@MARK@", self._mark)
        await self.process.start(handle, line, user=user, envs=variables, on_stderr=self._add_stderr)

    async def frames(self) -> AsyncIterator[Frame]:
        """Yield frames until the stream ends. Raises EngineError if it breaks."""
        rest, heard, empty = "", False, 0
        while (chunk := await self.process.read(self._silence)) is not None:
            *lines, rest = (rest + chunk).split("\n")
            if len(rest) > _MAX_LINE:
                yield Frame("e", "")  # an end without a result: LOST
                return
            for number, line in enumerate(lines, 1):
                if number % _LINES_AT_ONCE == 0:
                    await asyncio.sleep(0)
                heard = heard or line == f":: {self._mark}"
                frame = Frame.parse(line) if heard else None
                empty = empty + 1 if frame is None or frame.kind == "h" else 0
                if empty > _MAX_EMPTY_LINES:
                    yield Frame("e", "")
                    return
                if frame is not None:
                    self._note_capabilities(frame)
                    yield frame
        if not heard and self.lacks_processes:
            raise ProcessesFullError(unsent=True)

    async def close(self, *, patience_s: float) -> None:
        """Disconnect, after waiting `patience_s` for the end, so that the connection can be reused."""
        await self.process.disconnect(patience_s=patience_s)
        if self._disposable:
            await self.process.kill()

    def _note_capabilities(self, frame: Frame) -> None:
        """Note what a line shows about the sandbox: whether it has python3 and the relay."""
        if self._handle is None:
            return
        if frame.kind == "n":
            self._handle.python = False
        elif frame.kind == "i":
            self._handle.relays.discard(self._user)
        elif self._handle.python:
            self._handle.relays.add(self._user)


def _parse_optional_number(value: Any) -> int | None:
    return None if value is None else parse_number(value)


def parse_number(value: Any) -> int:
    """Parse a number from a sandbox. Raises ValueError if it is invalid or unrealistically large."""
    text = str(value)
    if len(text) > 16 or not 0 <= int(text) <= _MAX_NUMBER:
        raise ValueError("not a valid number")
    return int(text)


def get_spec_path(command_id: str) -> str:
    return f"{_FOLDER}/spec-{command_id}"


def sweep_paths(command_id: str) -> tuple[str, str]:
    """Return the paths of the file that asks a relay to end leftover processes, and of the file with its answer."""
    folder = f"{_FOLDER}/commands/{command_id}"
    return f"{folder}/sweep", f"{folder}/swept"


def get_journal_path(command_id: str, stream: str, folder: int) -> str:
    """Return the path of the file with the output of a stream, given by number."""
    return f"{_FOLDERS[folder]}/commands/{command_id}/{'out' if stream == '1' else 'err'}"
