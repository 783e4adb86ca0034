"""One process that is kept running: started, waited for, started again when it dies, stopped when asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from sandyard.cli.errors import CommandError
from sandyard.cli.up import lifeline
from sandyard.cli.up.health import answers
from sandyard.kit.python import SAFE_FOLDER

FIRST_PAUSE, LONGEST_PAUSE, SETTLED_SECONDS = 0.5, 10.0, 60.0
"""A process that dies is started again after growing pauses; one that has lived for a minute starts over with them."""
PATIENCE_SECONDS, REMINDER_SECONDS = 660.0, 15.0
"""An engine may have a template to unpack before it serves."""
LOOK_SECONDS = 1.0

Say = Callable[[str], None]


@dataclass(slots=True)
class Child:
    """`url` with `expected` as its status is how it says that it is ready. `heard` gets each line of its output. `patient`: it can be
    started early, and waits for its turn (`lifeline.wait_for_turn`)."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    url: str
    expected: int
    lock: int
    say: Say
    heard: Callable[[str], None] = lambda line: None
    patient: bool = False
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _pipe: int = field(default=-1, init=False)
    _reading: asyncio.Task[None] | None = field(default=None, init=False)
    _standing_by: bool = field(default=False, init=False)

    async def load(self) -> None:
        """Start it early, if it can wait for its turn. CommandError when it cannot be started."""
        if self.patient:
            await self._start(early=True)

    async def first(self) -> None:
        """Start it, or tell it that its turn has come, and return when it is ready. CommandError when it ends before: that would not
        get better."""
        if self.process is None:
            await self._start()
        else:
            with contextlib.suppress(BrokenPipeError):  # it has ended: `_ready` tells
                os.write(self._pipe, b"\n")
        if not await self._ready(time.monotonic()):
            assert self._reading is not None
            await asyncio.wait((self._reading,), timeout=1)  # a process it has left may hold the other end
            raise CommandError(f"The {self.name} did not start: {self._ending()}. What it said is above.")

    async def keep(self) -> None:
        """Start it again whenever it ends. Never returns; cancel it before `stop`."""
        pause, since = FIRST_PAUSE, time.monotonic()
        while True:
            assert self.process is not None
            await _end(self.process)
            if time.monotonic() - since > SETTLED_SECONDS:
                pause = FIRST_PAUSE
            self.say(f"The {self.name} ended: {self._ending()}. It is started again in {pause:g} s.")
            await asyncio.sleep(pause)
            pause, since = min(LONGEST_PAUSE, pause * 2), time.monotonic()
            try:
                await self._start()
                await self._ready(since)
            except CommandError as error:
                self.say(error.message)

    async def stop(self, at_once: asyncio.Event) -> None:
        """SIGTERM; SIGKILL after 20 s, or as soon as `at_once` is set. Returns when it is gone."""
        process = self.process
        if process is not None and process.returncode is None:
            self.say(f"Stopping the {self.name}.")
            _send(process, signal.SIGTERM)
            gone, hurry = asyncio.ensure_future(_end(process)), asyncio.ensure_future(at_once.wait())
            await asyncio.wait((gone, hurry), timeout=lifeline.STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            if not gone.done():
                self.say(f"The {self.name} does not stop; it is killed.")
                _send(process, signal.SIGKILL)
            await gone
        self._let_go()

    async def _start(self, *, early: bool = False) -> None:
        self._let_go()
        self._standing_by = False
        reader, self._pipe = os.pipe()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**self.environment, lifeline.VARIABLE: lifeline.spell(reader, self.lock, early=early)},
                cwd=SAFE_FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(reader, self.lock),
                start_new_session=True,  # Ctrl-C is for the supervisor, which stops them in order
            )
        except OSError as error:
            raise CommandError(f"The {self.name} cannot be started: {error.strerror}: {error.filename}.") from None
        finally:
            os.close(reader)
        assert self.process.stdout is not None
        self._reading = asyncio.create_task(self._listen(self.process.stdout))

    async def _ready(self, since: float) -> bool:
        """True when it serves; False when it has ended, or was killed because it took too long."""
        assert self.process is not None
        reminder = since + REMINDER_SECONDS
        while self.process.returncode is None:
            if await answers(self.url, self.expected) and self.process.returncode is None:
                self.say(f"{self.name:<8}  ready  {time.monotonic() - since:.1f} s")
                return True
            now = time.monotonic()
            if self._standing_by:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            if now > since + PATIENCE_SECONDS:
                _send(self.process, signal.SIGKILL)
                break
            if now > reminder:
                self.say(f"{self.name:<8}  still starting, {now - since:.0f} s")
                reminder += REMINDER_SECONDS
            await asyncio.sleep(0.05)
        await _end(self.process)
        return False

    async def _listen(self, stream: asyncio.StreamReader) -> None:
        while line := await _line(stream):
            text = line.decode(errors="replace").rstrip("\n")
            self._standing_by = self._standing_by or text.startswith(lifeline.STANDBY)
            self.heard(text)

    def _ending(self) -> str:
        assert self.process is not None
        code = self.process.returncode or 0
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def _let_go(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line, or as much of it as anybody would print."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


async def _end(process: asyncio.subprocess.Process) -> None:
    """Asyncio tells of it when nobody holds the output any more, and what a process has left behind may hold it for long."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait((waiting,), timeout=LOOK_SECONDS)
    finally:
        waiting.cancel()


def _send(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
