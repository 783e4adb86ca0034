"""A child process: start it, wait until it is ready, restart it when it dies, stop it."""

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
from sandyard.cli.up.health import is_healthy
from sandyard.kit.python import SAFE_FOLDER

FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 10.0
"""Pause before the first restart. Each further pause is twice as long, up to the maximum."""
SETTLED_SECONDS = 60.0
"""A process that has run for this long gets the first pause again."""
START_TIMEOUT_SECONDS = 660.0
"""An engine may have to unpack a template before it serves."""
REMINDER_SECONDS = 15.0
"""How often to print that a process is still starting."""
POLL_SECONDS = 1.0

PrintLine = Callable[[str], None]


@dataclass(slots=True)
class Child:
    """A child process. It is ready when `url` returns the HTTP status `expected`. `lock` is the descriptor of the supervisor's lock, which
    the child inherits. `on_output` is called with each line of its output. A child that `starts_early` can be started before its turn and
    waits for its turn (`lifeline.wait_for_turn`)."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    url: str
    expected: int
    lock: int
    print_line: PrintLine
    on_output: Callable[[str], None] = lambda line: None
    starts_early: bool = False
    process: asyncio.subprocess.Process | None = field(default=None, init=False)
    _pipe: int = field(default=-1, init=False)
    _output_reader: asyncio.Task[None] | None = field(default=None, init=False)
    _standing_by: bool = field(default=False, init=False)  # it waits until another process ends (`lifeline.STANDBY`)

    async def start_early(self) -> None:
        """Start the child early, if it can wait for its turn. Raises CommandError if it cannot be started."""
        if self.starts_early:
            await self._start(early=True)

    async def start_and_wait(self) -> None:
        """Start the child, or tell it that its turn has come, and return when it is ready. Raises CommandError if it ends first, because a
        restart would not help."""
        if self.process is None:
            await self._start()
        else:
            with contextlib.suppress(BrokenPipeError):  # it has ended, which `_wait_until_ready` reports
                os.write(self._pipe, b"\n")
        if not await self._wait_until_ready(time.monotonic()):
            assert self._output_reader is not None
            await asyncio.wait((self._output_reader,), timeout=1)  # its orphans may keep the output open
            raise CommandError(f"The {self.name} did not start: {self._describe_exit()}. See its output above.")

    async def keep_running(self) -> None:
        """Restart the child whenever it ends. Never returns; cancel it before `stop`."""
        pause, since = FIRST_PAUSE_SECONDS, time.monotonic()
        while True:
            assert self.process is not None
            await _wait_for_end(self.process)
            if time.monotonic() - since > SETTLED_SECONDS:
                pause = FIRST_PAUSE_SECONDS
            self.print_line(f"The {self.name} ended: {self._describe_exit()}. Restarting in {pause:g} s.")
            await asyncio.sleep(pause)
            pause, since = min(MAX_PAUSE_SECONDS, pause * 2), time.monotonic()
            try:
                await self._start()
                await self._wait_until_ready(since)
            except CommandError as error:
                self.print_line(error.message)

    async def stop(self, kill_now: asyncio.Event) -> None:
        """Send SIGTERM, then SIGKILL after 20 s or as soon as `kill_now` is set. Returns when the child is gone."""
        process = self.process
        if process is not None and process.returncode is None:
            self.print_line(f"Stopping the {self.name}.")
            _send_signal(process, signal.SIGTERM)
            gone, kill_requested = asyncio.ensure_future(_wait_for_end(process)), asyncio.ensure_future(kill_now.wait())
            await asyncio.wait(
                (gone, kill_requested), timeout=lifeline.STOP_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            kill_requested.cancel()
            if not gone.done():
                self.print_line(f"The {self.name} did not stop. Killing it.")
                _send_signal(process, signal.SIGKILL)
            await gone
        self._close_pipe()

    async def _start(self, *, early: bool = False) -> None:
        self._close_pipe()
        self._standing_by = False
        reader, self._pipe = os.pipe()
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                env={**self.environment, lifeline.VARIABLE: lifeline.format_value(reader, self.lock, early=early)},
                cwd=SAFE_FOLDER,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(reader, self.lock),
                start_new_session=True,  # Ctrl-C is handled by the supervisor, which stops children in order
            )
        except OSError as error:
            raise CommandError(f"Could not start the {self.name}: {error.strerror}: {error.filename}.") from None
        finally:
            os.close(reader)
        assert self.process.stdout is not None
        self._output_reader = asyncio.create_task(self._read_output(self.process.stdout))

    async def _wait_until_ready(self, since: float) -> bool:
        """Return True when the child serves. Return False if it ended or was killed because it took too long."""
        assert self.process is not None
        reminder = since + REMINDER_SECONDS
        while self.process.returncode is None:
            if await is_healthy(self.url, self.expected) and self.process.returncode is None:
                self.print_line(f"{self.name:<8}  ready  {time.monotonic() - since:.1f} s")
                return True
            now = time.monotonic()
            if self._standing_by:
                await asyncio.sleep(POLL_SECONDS)
                continue
            if now > since + START_TIMEOUT_SECONDS:
                _send_signal(self.process, signal.SIGKILL)
                break
            if now > reminder:
                self.print_line(f"{self.name:<8}  still starting, {now - since:.0f} s")
                reminder += REMINDER_SECONDS
            await asyncio.sleep(0.05)
        await _wait_for_end(self.process)
        return False

    async def _read_output(self, stream: asyncio.StreamReader) -> None:
        while line := await _read_line(stream):
            text = line.decode(errors="replace").rstrip("\n")
            self._standing_by = self._standing_by or text.startswith(lifeline.STANDBY)
            self.on_output(text)

    def _describe_exit(self) -> str:
        assert self.process is not None
        code = self.process.returncode or 0
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    def _close_pipe(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1


async def _read_line(stream: asyncio.StreamReader) -> bytes:
    """Return the next line, cut off at the stream's limit."""
    try:
        return await stream.readuntil(b"\n")
    except asyncio.IncompleteReadError as error:
        return error.partial
    except asyncio.LimitOverrunError as error:
        return await stream.readexactly(error.consumed)


async def _wait_for_end(process: asyncio.subprocess.Process) -> None:
    """Wait for the process to end. `process.wait` alone returns only when the output is closed too, and orphans may keep it open."""
    waiting = asyncio.ensure_future(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait((waiting,), timeout=POLL_SECONDS)
    finally:
        waiting.cancel()


def _send_signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(number)
