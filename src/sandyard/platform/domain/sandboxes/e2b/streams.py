"""Line-based communication in both directions with a program in a running sandbox, while the connection lasts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sandyard.kit.ids import make_random_id
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import EngineError
from sandyard.platform.domain.sandboxes.e2b.guest_sources import read_script
from sandyard.platform.domain.sandboxes.e2b.processes import GuestProcess
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

SILENCE_S = 30.0
"""The program writes something every 10 s. A stream that is silent for longer is considered dead."""
PACE_S = 0.02
"""Lines sent within this time are combined, because each message to a sandbox costs the same, whatever its length."""
LONGEST = 256 << 10
"""Maximum length of a line. A tenant may replace our program, but only in their own sandbox."""
QUEUED = 1 << 20
"""Number of unsent characters above which `drain` waits: a few batches, so that sending never pauses."""
UNSENT = 4 << 20
"""Maximum number of unsent characters. A program that never reads its input is given up."""
LINES_AT_ONCE = 100
_BATCH_SIZE = 256 << 10
_SEND_S = 30.0
_MAX_NOISE = 4 << 20
_LINE = read_script("start_program.sh").replace("@INSTALL@", read_script("install_program.py"))


class ProgramProtocolError(EngineError):
    """A program in the sandbox violated the protocol."""

    code = "program_protocol"


class NoPythonError(EngineError):
    """The sandbox has no python3, which the platform needs. Use a template that has it."""

    code, status = "no_python", 409


@dataclass(frozen=True, slots=True)
class GuestProgram:
    """A Python program that uses only the standard library.

    It is called with a mark and the given words (letters and digits), and prints `:: MARK` on a line of its own first.
    """

    name: str
    source: bytes

    @classmethod
    def load(cls, name: str) -> GuestProgram:
        """Return the program `guest/NAME.py`."""
        return cls(name, read_script(f"{name}.py").encode())

    @property
    def path(self) -> str:
        digest = hashlib.sha256(self.source).hexdigest()[:16]
        return f"/tmp/.sandyard/{self.name}-{digest}-$EUID.py"  # noqa: S108 - in the sandbox


class LineStream:
    """One run of a program. Closing the stream ends the process."""

    def __init__(self, transport: EngineTransport) -> None:
        self.process = GuestProcess(transport)
        self.mark = make_random_id()
        self.unsent: deque[str] = deque()
        self.unsent_size = 0
        self._to_send = asyncio.Event()
        self._sent = asyncio.Event()
        self._turn = asyncio.Lock()
        self._sender: asyncio.Task[None] | None = None

    async def start(self, handle: SandboxHandle, program: GuestProgram, arguments: str) -> None:
        line = _LINE.replace("@PATH@", program.path).replace("@ARGUMENTS@", arguments).replace("@MARK@", self.mark)
        source = base64.b64encode(program.source).decode()
        await self.process.start(handle, line, stdin=True, envs={"SANDYARD_PROGRAM": source})
        self._sender = asyncio.get_running_loop().create_task(self._send())

    async def read_lines(self) -> AsyncIterator[str]:
        """Yield the program's lines until it ends.

        Raises EngineError if the connection breaks or the program is silent for too long, ProgramProtocolError and
        NoPythonError.
        """
        rest, heard, noise = "", False, 0
        now = asyncio.get_running_loop().time
        while (chunk := await self.process.read(SILENCE_S)) is not None:
            if self.unsent_size > UNSENT:
                raise ProgramProtocolError("A program in the sandbox does not read its input.")
            *lines, rest = (rest + chunk).split("\n")
            if len(rest) > LONGEST:
                raise ProgramProtocolError("Protocol error: a line from the sandbox is too long.")
            begun = now()
            for count, line in enumerate(lines, 1):
                if heard and line == ":n":
                    raise NoPythonError
                if heard and line:
                    yield line
                heard = heard or line == f":: {self.mark}"
                if count % LINES_AT_ONCE == 0:  # a chatty program gets half of the time, so that others can run
                    await asyncio.sleep(min(1.0, now() - begun))
                    begun = now()
            noise += 0 if heard else len(chunk)
            if noise > _MAX_NOISE:
                raise ProgramProtocolError("The sandbox's login shell writes too much output.")

    def send_line(self, line: str) -> None:
        """Send a line soon, in the order of the calls. If that fails, `read_lines` ends."""
        if self.unsent_size <= UNSENT:  # otherwise `read_lines` is about to end
            self.unsent.append(line)
            self.unsent_size += len(line)
        self._to_send.set()

    async def drain(self) -> None:
        """Wait until few lines are unsent, first come, first served. Call it before `send_line` for everything that is long."""
        async with self._turn:
            while self.unsent_size >= QUEUED:
                self._sent.clear()
                await self._sent.wait()

    async def close(self) -> None:
        sender, self._sender = self._sender, None  # a cancelled task keeps its frames
        if sender is not None:
            await end_tasks(sender)
        self.unsent.clear()
        await self.process.disconnect()
        await self.process.kill()

    async def _send(self) -> None:
        """Send queued lines. Never retried: a partial line must not be followed by the whole one."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                await self._to_send.wait()
                begun = now()
                await self.process.write(self.take_batch(), _SEND_S)
                await asyncio.sleep(max(0.0, PACE_S - (now() - begun)))
        except Exception as error:
            await self.process.fail(error)

    def take_batch(self) -> str:
        parts, size = [], 0
        while self.unsent and size < _BATCH_SIZE:
            parts.append(self.unsent.popleft() + "\n")
            size += len(parts[-1])
        self.unsent_size -= size - len(parts)
        self._sent.set()
        if not self.unsent:
            self._to_send.clear()
        return "".join(parts)


class Streams:
    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def open(self, engine_id: str, program: GuestProgram, *arguments: str) -> LineStream:
        """Run the program as the sandbox's default user. Tried once. Raises SandboxNotRunningError if it is paused,
        without resuming it."""
        assert all(word.isalnum() for word in arguments), "they become part of a line of shell"
        stream = LineStream(self._transport)

        async def start(handle: SandboxHandle) -> None:
            await stream.start(handle, program, " ".join(arguments))

        try:
            await self._transport.call_sandbox("open_stream", engine_id, start, idempotent=True, attempts=1)
        except BaseException:
            await stream.close()
            raise
        return stream
