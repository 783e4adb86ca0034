"""Line-based communication in both directions with a program in a running sandbox, while the connection lasts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from e2b import AsyncCommandHandle, CommandExitException

from sandyard.kit.ids import random_id
from sandyard.kit.tasks import end_tasks
from sandyard.platform.domain.sandboxes.e2b.errors import EngineError, SandboxUnreachableError, translate
from sandyard.platform.domain.sandboxes.e2b.transport import EngineTransport, SandboxHandle

SILENCE_S = 30.0
"""The program writes something every 10 s. A stream that is silent for longer is considered dead."""
PACE_S = 0.02
"""Lines sent within this time are combined, because each message to a sandbox costs the same, whatever its length."""
LONGEST = 256 << 10
"""Maximum length of a line. A tenant may replace our program, but only in their own sandbox."""
UNSENT = 48 << 20
"""Maximum number of unsent characters. A program that never reads its input is given up."""
LINES_AT_ONCE = 100
_BATCH_SIZE = 256 << 10
_SEND_S, _KILL_S = 30.0, 5.0
_QUEUE = 32
_MAX_NOISE = 4 << 20
_INSTALL = """
import binascii, os, sys
source, path = binascii.a2b_base64(os.environ.pop("SANDYARD_PROGRAM")), sys.argv[1]
try:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.stat(os.path.dirname(path)).st_uid == os.geteuid(): os.chmod(os.path.dirname(path), 0o1777)
    if not (os.path.isfile(path) and os.stat(path).st_uid == os.geteuid() and open(path, "rb").read() == source):
        new = path + "." + str(os.getpid())
        with open(new, "wb") as file: file.write(source)
        os.rename(new, path)
    os.execv(sys.executable, [sys.executable, "-I", "-S", path] + sys.argv[2:])
except OSError: pass
sys.argv = sys.argv[1:]
exec(compile(source, path, "exec"), {"__name__": "__main__"})
"""
_COMMAND_LINE = f"""command -v python3 >/dev/null 2>&1 || {{ printf '\\n:: MARK\\n:n\\n'; exit 0; }}
exec python3 -I -S -c '{_INSTALL}' PATH MARK ARGUMENTS"""


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

    @property
    def path(self) -> str:
        digest = hashlib.sha256(self.source).hexdigest()[:16]
        return f"/tmp/.sandyard/{self.name}-{digest}-$EUID.py"  # noqa: S108 - in the sandbox


class LineStream:
    """One run of a program. Closing the stream ends the process."""

    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport
        self._mark = random_id()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(_QUEUE)
        self._unsent: deque[str] = deque()
        self._waiting = 0
        self._to_send = asyncio.Event()
        self._process: AsyncCommandHandle[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._error: BaseException | None = None
        self._ended = False

    async def begin(self, handle: SandboxHandle, program: GuestProgram, arguments: str) -> None:
        line = _COMMAND_LINE.replace("PATH", program.path).replace("ARGUMENTS", arguments).replace("MARK", self._mark)
        self._process = await handle.sandbox.commands.run(
            line,
            background=True,
            stdin=True,
            timeout=0,
            envs={"SANDYARD_PROGRAM": base64.b64encode(program.source).decode()},
            on_stdout=self._queue.put,
            retain_output=False,
        )
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._wait(self._process)), loop.create_task(self._send(self._process))]

    async def lines(self) -> AsyncIterator[str]:
        """Yield the program's lines until it ends.

        Raises EngineError if the connection breaks, if the program is silent for too long or violates the protocol, and
        NoPythonError.
        """
        rest, heard, noise = "", False, 0
        now = asyncio.get_running_loop().time
        while (chunk := await self._next_chunk()) is not None:
            if self._waiting > UNSENT:
                raise EngineError("A program in the sandbox does not read its input.")
            *lines, rest = (rest + chunk).split("\n")
            if len(rest) > LONGEST:
                raise EngineError("Protocol error: a line from the sandbox is too long.")
            begun = now()
            for count, line in enumerate(lines, 1):
                if heard and line == ":n":
                    raise NoPythonError
                if heard and line:
                    yield line
                heard = heard or line == f":: {self._mark}"
                if count % LINES_AT_ONCE == 0:  # a chatty program gets half of the time, so that others can run
                    await asyncio.sleep(min(1.0, now() - begun))
                    begun = now()
            noise += 0 if heard else len(chunk)
            if noise > _MAX_NOISE:
                raise EngineError("The sandbox's login shell writes too much output.")
        if self._error is not None:
            raise translate(self._error, self._transport.config.api_key) from self._error

    def say(self, line: str) -> None:
        """Send a line soon, in the order of the calls. If that fails, `lines` ends."""
        if self._waiting <= UNSENT:  # otherwise `lines` is about to end
            self._unsent.append(line)
            self._waiting += len(line)
        self._to_send.set()

    async def close(self) -> None:
        await end_tasks(*self._tasks)
        if self._process is not None:
            with contextlib.suppress(Exception):
                await self._process.disconnect()
                if not self._ended:
                    async with asyncio.timeout(_KILL_S):
                        await self._process.kill()

    async def _next_chunk(self) -> str | None:
        try:
            async with asyncio.timeout(SILENCE_S):
                return await self._queue.get()
        except TimeoutError:
            raise SandboxUnreachableError("The sandbox did not respond in time.") from None

    async def _send(self, process: AsyncCommandHandle[None]) -> None:
        """Send queued lines. Never retried: a partial line must not be followed by the whole one."""
        now = asyncio.get_running_loop().time
        try:
            while True:
                await self._to_send.wait()
                begun = now()
                await process.send_stdin(self._packed(), request_timeout=_SEND_S)
                await asyncio.sleep(max(0.0, PACE_S - (now() - begun)))
        except Exception as error:
            self._error = self._error or error
            await self._queue.put(None)

    def _packed(self) -> str:
        parts, size = [], 0
        while self._unsent and size < _BATCH_SIZE:
            parts.append(self._unsent.popleft() + "\n")
            size += len(parts[-1])
        self._waiting -= size - len(parts)
        if not self._unsent:
            self._to_send.clear()
        return "".join(parts)

    async def _wait(self, process: AsyncCommandHandle[None]) -> None:
        try:
            await process.wait()
        except CommandExitException:
            self._ended = True
        except Exception as error:
            self._error = self._error or error
        else:
            self._ended = True
        await self._queue.put(None)


class Streams:
    def __init__(self, transport: EngineTransport) -> None:
        self._transport = transport

    async def open(self, engine_id: str, program: GuestProgram, *arguments: str) -> LineStream:
        """Run the program as the sandbox's default user. Tried once. Raises SandboxNotRunningError if it is paused,
        without resuming it."""
        assert all(word.isalnum() for word in arguments), "they become part of a line of shell"
        stream = LineStream(self._transport)

        async def begin(handle: SandboxHandle) -> None:
            await stream.begin(handle, program, " ".join(arguments))

        try:
            await self._transport.call_sandbox("open_stream", engine_id, begin, idempotent=True, attempts=1)
        except BaseException:
            await stream.close()
            raise
        return stream
