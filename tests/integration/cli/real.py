"""`sandyard up` for tests: the real engine and the real platform, and the CLI as somebody types it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from sandyard.cli.main import cli
from tests.integration.cli.up.running import ROOT, Running
from tests.protocol.engine import SCRATCH

SECONDS = 60


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: bytes
    stderr: bytes


class Yard:
    """One `sandyard up` with its own data directory, and somebody logged in as its administrator."""

    def __init__(self, *options: str, settings: dict[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sandyard-cli-", dir=SCRATCH))
        self.data = self.folder / "data"
        self.options = options
        self.settings = {"SANDYARD_POOL_SIZE": "1", **(settings or {})}
        self.token = ""
        self.url = ""
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "sandyard", "up", "--port", self.port, "--data-dir", str(self.data)]
        self.up = Running([*command, *self.options], str(self.data), self.settings)
        try:
            self.url = self.up.heard(r"Sandyard is at (http://\S+);", seconds=120)[1]
        except AssertionError:
            self.stop()
            raise
        if not self.token:
            self.token = self.up.heard(r"^admin token: (sy_\S+)$")[1]

    @property
    def port(self) -> str:
        return self.url.rpartition(":")[2] or "0"

    @property
    def environment(self) -> dict[str, str]:
        config = {"XDG_CONFIG_HOME": str(self.folder / "config"), "COLUMNS": "200"}
        return {**os.environ, **config, "SANDYARD_URL": self.url, "SANDYARD_TOKEN": self.token}

    def pids(self, name: str) -> list[int]:
        """Of the process `sandyard engine` or `sandyard platform`."""
        return [number for number, line in self.up.processes().items() if f"-m sandyard {name}" in line]

    def kill(self, name: str, *, noticed: Callable[[], None] = lambda: None) -> None:
        """SIGKILL to the engine or the platform; returns when it is ready again. `noticed` is called in between."""
        before = len([line for line in self.up.said if re.match(rf"{name} +ready", line)])
        (number,) = self.pids(name)
        os.kill(number, signal.SIGKILL)
        noticed()
        self.up.heard(rf"^{name} +ready", before + 1)

    def run(self, *arguments: str, stdin: bytes = b"", **settings: str | None) -> Done:
        """In this process, which has loaded everything already. `settings`: variables that differ; None unsets one."""
        said = CliRunner().invoke(cli, arguments, input=stdin, env=self.environment | settings)
        if said.exception is not None and not isinstance(said.exception, SystemExit):
            raise said.exception
        return Done(said.exit_code, said.stdout_bytes, said.stderr_bytes)

    def ok(self, *arguments: str, stdin: bytes = b"") -> str:
        """What it prints; fails when it does."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.decode()

    def begin(self, *arguments: str) -> Running:
        return Running(self.command(*arguments), str(self.folder), self.environment)

    @staticmethod
    def command(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "sandyard", *arguments]

    def stop(self) -> None:
        if self.up.process.poll() is None:
            with contextlib.suppress(Exception):
                self.clear()
            self.up.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.up.ends()
        self.up.close()
        for mount in sorted(self._mounts(), key=len, reverse=True):
            subprocess.run(["umount", "-l", mount], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def clear(self) -> None:
        for box in json.loads(self.ok("sandbox", "list", "--limit", "200"))["items"]:
            self.run("sandbox", "kill", box["id"])

    def _mounts(self) -> list[str]:
        points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        return [point for point in points if point.startswith(f"{self.folder}/")]


def read(yard: Yard, *arguments: str) -> Any:
    """The JSON that a command prints."""
    return json.loads(yard.ok(*arguments, "-o", "json"))


class Terminal:
    """A command in a terminal of its own: what it shows is in `shown`."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.shown = b""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execve(command[0], command, {**environment, "TERM": "xterm"})
        self._code: int | None = None

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def until(self, text: str, seconds: float = SECONDS) -> None:
        """Waits until that is shown, and forgets what was shown up to there."""
        deadline = time.monotonic() + seconds
        while text.encode() not in self.shown:
            assert time.monotonic() < deadline, f"{text!r} was not shown: {self.shown!r}"
            assert self._read(0.1) or self._code is None, f"it ended before {text!r}: {self.shown!r}"
        self.shown = self.shown.partition(text.encode())[2]

    def ends(self, seconds: float = SECONDS) -> int:
        deadline = time.monotonic() + seconds
        while self._code is None:
            assert time.monotonic() < deadline, f"it does not end: {self.shown!r}"
            self._read(0.1)
        return self._code

    def close(self) -> None:
        if self._code is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._master)

    def _read(self, seconds: float) -> bool:
        if select.select([self._master], [], [], seconds)[0]:
            with contextlib.suppress(OSError):
                if data := os.read(self._master, 65536):
                    self.shown += data
                    return True
        if self._code is None:
            number, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if number else None
        return False


@contextlib.contextmanager
def in_terminal(yard: Yard, *arguments: str) -> Iterator[Terminal]:
    terminal = Terminal(yard.command(*arguments), yard.environment)
    try:
        yield terminal
    finally:
        terminal.close()
